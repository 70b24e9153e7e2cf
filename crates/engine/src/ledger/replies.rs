//! What came of a call: of a write above all, which may have happened, have been refused, or be a riddle.

use crate::basics::Uid;
use crate::claims::{Ledger, TokenId};
use crate::facts::{BudgetKey, Input};
use crate::ledger::asks::Consent;
use crate::ledger::desk::{Rereading, Writing};
use crate::ledger::messages::{Call, CallId, Note, Output, Reply, Wrote};
use crate::ledger::replica::{Purpose, Replica};
use crate::ledger::settings::Rule;
use crate::ledger::tend::{Opening, REOPEN_AFTER};
use crate::verdict::{Block, Reason, Verdict};

impl Replica {
    /// A call came back.
    pub(super) fn reply(&mut self, id: CallId, reply: Reply) {
        let Some(purpose) = self.calls.remove(&id) else { return };
        match purpose {
            Purpose::Write(key) => self.wrote(&key, reply),
            Purpose::Reread(key) => self.reread(&key, reply),
            Purpose::Look(key, coverage) => self.looked(&key, coverage, reply),
            Purpose::Find(subject) => self.found(&subject, &reply),
            Purpose::Expire(key, uid) => self.expire(&key, &uid, reply),
            Purpose::Muster(key, seen_at) => self.mustered(&key, seen_at, reply),
            Purpose::Survey(key, seen_at) => self.surveyed(&key, seen_at, reply),
        }
    }

    fn wrote(&mut self, key: &BudgetKey, reply: Reply) {
        self.due.insert(key.clone());
        let Some(desk) = self.desks.get_mut(key) else { return };
        let Some(writing) = desk.writing.take() else { return };
        match reply {
            Reply::Wrote(Wrote::Done(budget)) => {
                // Our own write does not make a list of ours older than it was.
                if let (Some(tested), true) = (writing.number, budget.ledger.number > 0) {
                    for look in [&mut desk.looked, &mut desk.looking].into_iter().flatten() {
                        if look.number == tested && budget.ledger.number == tested + 1 {
                            look.number = budget.ledger.number;
                        }
                    }
                }
                let (uid, ledger) = (budget.uid.clone(), budget.ledger.clone());
                self.take_budget(*budget);
                self.settle_writing(key, &writing, (&uid, &ledger), true);
            }
            Reply::Wrote(Wrote::Gone) => {
                self.requeue(key, &writing);
                self.lose_budget(key, Some(&writing.budget));
            }
            // Nothing was written, so whoever opened the budget meanwhile, it was not this write.
            Reply::Wrote(Wrote::Refused) => self.refused(key, Writing { opens: false, ..writing }),
            _ => self.rereading(key, writing),
        }
    }

    /// Another was faster. Where the watch has shown what it wrote there is nothing to read: that is what to decide on
    /// now, and if it is not the newest either the next write will tell.
    fn refused(&mut self, key: &BudgetKey, writing: Writing) {
        let shown = self.engine.budget(key).filter(|known| {
            known.uid == writing.budget && writing.number.is_some_and(|tested| known.ledger.number > tested)
        });
        match shown.map(|known| known.ledger.clone()) {
            Some(ledger) => self.settle_writing(key, &writing, (&writing.budget, &ledger), false),
            None => self.rereading(key, writing),
        }
    }

    fn rereading(&mut self, key: &BudgetKey, writing: Writing) {
        let uid = self.engine.budget(key).map(|budget| budget.uid.clone());
        if let Some(desk) = self.desks.get_mut(key) {
            desk.rereading = Some(Rereading { writing, uid });
        }
        self.call(Call::GetBudget(key.clone()), Purpose::Reread(key.clone()));
    }

    fn reread(&mut self, key: &BudgetKey, reply: Reply) {
        self.due.insert(key.clone());
        let Some(Rereading { writing, uid }) = self.desks.get_mut(key).and_then(|desk| desk.rereading.take())
        else {
            return;
        };
        match reply {
            Reply::Budget(Some(budget)) => {
                let (uid, ledger) = (budget.uid.clone(), budget.ledger.clone());
                self.take_budget(*budget);
                self.settle_writing(key, &writing, (&uid, &ledger), false);
            }
            Reply::Budget(None) => {
                self.requeue(key, &writing);
                self.lose_budget(key, uid.as_ref());
            }
            _ => self.rereading(key, writing),
        }
    }

    /// Sorts out what of a write is there, now that the budget is known again.
    fn settle_writing(
        &mut self,
        key: &BudgetKey,
        writing: &Writing,
        (uid, ledger): (&Uid, &Ledger),
        done: bool,
    ) {
        let has = |uid: &Uid, token: &TokenId| {
            ledger.claims.get(uid).is_some_and(|claim| claim.tokens.contains_key(token))
        };
        // What stands at the desk is meant for the budget that is there now: one that had its name before cannot have
        // been told in its stead.
        let current = self.engine.budget(key).is_some_and(|known| known.uid == *uid);
        if let (Some(desk), true) = (self.desks.get_mut(key), current) {
            desk.withdrawals.retain(|token, uid| !writing.withdrawals.contains(token) || has(uid, token));
            let engine = &self.engine;
            desk.joins.retain(|token, join| {
                let told = has(&join.uid, token) || (done && !engine.knows(&join.uid));
                !(writing.joins.contains(token) && told)
            });
            if writing.opens && ledger.enforced == desk.coverage {
                self.outputs.push(Output::Note(Note::Opened(key.clone())));
            } else if writing.opens && done && ledger.enforced.is_none() {
                desk.opening = Some(Opening::Pruned(self.now.after(REOPEN_AFTER)));
                self.outputs.push(Output::Note(Note::NothingSticks(key.clone())));
            }
            self.joined(key);
        }
        for written in &writing.asks {
            let stuck = has(&written.uid, &written.token);
            let waiting = self.asks.get_mut(&written.ask);
            match (waiting, stuck) {
                (Some(ask), true) => {
                    ask.committed
                        .insert(key.clone(), Consent { budget: uid.clone(), ..written.consent.clone() });
                    self.go_on(written.ask);
                }
                (Some(_), false) if done => {
                    // Written, and not there: the definition that is installed does not know claims.
                    let block = Block { budget: Some(key.clone()), reason: Reason::OutdatedDefinition };
                    self.finish(written.ask, Verdict::Deny(vec![block]));
                }
                (Some(_), false) => {
                    if let Some(desk) = self.desks.get_mut(key) {
                        desk.queue.push_back(written.ask);
                    }
                }
                // It was refused, for want of time, while this was being written.
                (None, true) => {
                    if let (Some(desk), true) = (self.desks.get_mut(key), current) {
                        desk.withdrawals.insert(written.token.clone(), written.uid.clone());
                    }
                }
                (None, false) => {}
            }
        }
    }

    fn requeue(&mut self, key: &BudgetKey, writing: &Writing) {
        if let Some(desk) = self.desks.get_mut(key) {
            desk.queue.extend(writing.asks.iter().map(|written| written.ask));
        }
    }

    /// A budget is not there any more, whatever the watch says. That says nothing of another one which the watch has
    /// shown under its name since: what that one is to be told stays at the desk.
    fn lose_budget(&mut self, key: &BudgetKey, lost: Option<&Uid>) {
        if self.engine.budget(key).map(|budget| &budget.uid) != lost {
            return;
        }
        self.forget_budget(key);
        let changes = self.engine.apply(Input::BudgetGone(key.clone()), self.now);
        self.note_changes(changes);
    }

    /// Every admission that the budget had to be told of is there.
    pub(super) fn joined(&mut self, key: &BudgetKey) {
        let binding = self.desks.get(key).is_some_and(|desk| desk.joins.values().any(|join| join.binding));
        if !binding {
            self.unjoined.remove(key);
        }
    }

    fn looked(&mut self, key: &BudgetKey, coverage: Option<u64>, reply: Reply) {
        self.due.insert(key.clone());
        let of_any = self.without(Rule::ListOfCoverage);
        let Some(desk) = self.desks.get_mut(key) else { return };
        let look = desk.looking.take_if(|look| look.coverage == coverage);
        // The list of what the budget covered before, or one of its name, is nobody's any more.
        let is_ours = look.is_some() && desk.coverage == coverage;
        if let Reply::Pods(pods, version) = reply
            && (is_ours || of_any)
        {
            let changes = self.engine.look(key, pods, version, self.now);
            self.note_changes(changes);
            if let Some(desk) = self.desks.get_mut(key) {
                desk.looked = look;
                desk.looked_version = desk.looked_version.max(version);
            }
        }
    }
}
