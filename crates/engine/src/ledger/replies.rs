//! What came of a call: of a write above all, which may have happened, have been refused, or be a riddle.

use crate::basics::Uid;
use crate::claims::{Ledger, TokenId};
use crate::decision::{Decision, Denial, DenialReason};
use crate::facts::{BudgetKey, Input};
use crate::ledger::commit::{PendingWrite, Rereading};
use crate::ledger::leader::{Opening, REOPEN_AFTER};
use crate::ledger::messages::{Call, CallId, Note, Output, Reply, WriteOutcome};
use crate::ledger::replica::{Purpose, Replica};
use crate::ledger::requests::Agreement;
use crate::ledger::settings::ProtocolRule;

impl Replica {
    /// A call came back.
    pub(super) fn reply(&mut self, id: CallId, reply: Reply) {
        let Some(purpose) = self.calls.remove(&id) else { return };
        match purpose {
            Purpose::Write(key) => self.wrote(&key, reply),
            Purpose::Reread(key) => self.reread(&key, reply),
            Purpose::ListPods(key, coverage) => self.pods_listed(&key, coverage, reply),
            Purpose::Source(key, source) => self.source_was_read(&key, source, &reply),
            Purpose::Read(target) => self.object_read(&target, &reply),
            Purpose::Expire(key, uid) => self.expire(&key, &uid, reply),
            Purpose::ListReplicas(key, seen_at) => self.replicas_listed(&key, seen_at, reply),
            Purpose::ListPodsToOpen(key, seen_at) => self.pods_listed_to_open(&key, seen_at, reply),
        }
    }

    fn wrote(&mut self, key: &BudgetKey, reply: Reply) {
        self.due.insert(key.clone());
        let Some(queue) = self.queues.get_mut(key) else { return };
        let Some(writing) = queue.writing.take() else { return };
        match reply {
            Reply::Written(WriteOutcome::Done(budget)) => {
                // Our own write does not make a list of ours older than it was.
                if let (Some(tested), true) = (writing.number, budget.ledger.number > 0) {
                    for stamp in queue.stamps_mut() {
                        if stamp.number == tested && budget.ledger.number == tested + 1 {
                            stamp.number = budget.ledger.number;
                        }
                    }
                }
                let (uid, ledger) = (budget.uid.clone(), budget.ledger.clone());
                self.take_budget(*budget);
                self.finish_write(key, &writing, (&uid, &ledger), true);
            }
            Reply::Written(WriteOutcome::Gone) => {
                self.requeue(key, &writing);
                self.lose_budget(key, Some(&writing.budget));
            }
            // Nothing was written, so whoever opened the budget meanwhile, it was not this write.
            Reply::Written(WriteOutcome::Refused) => {
                self.refused(key, PendingWrite { opens: false, ..writing })
            }
            _ => self.rereading(key, writing),
        }
    }

    /// Another was faster. Where the watch has shown what it wrote there is nothing to read: that is what to decide on
    /// now, and if it is not the newest either the next write will tell.
    fn refused(&mut self, key: &BudgetKey, writing: PendingWrite) {
        let shown = self.engine.budget(key).filter(|known| {
            known.uid == writing.budget && writing.number.is_some_and(|tested| known.ledger.number > tested)
        });
        match shown.map(|known| known.ledger.clone()) {
            Some(ledger) => self.finish_write(key, &writing, (&writing.budget, &ledger), false),
            None => self.rereading(key, writing),
        }
    }

    fn rereading(&mut self, key: &BudgetKey, writing: PendingWrite) {
        let uid = self.engine.budget(key).map(|budget| budget.uid.clone());
        if let Some(queue) = self.queues.get_mut(key) {
            queue.rereading = Some(Rereading { writing, uid });
        }
        self.call(Call::GetBudget(key.clone()), Purpose::Reread(key.clone()));
    }

    fn reread(&mut self, key: &BudgetKey, reply: Reply) {
        self.due.insert(key.clone());
        let Some(Rereading { writing, uid }) =
            self.queues.get_mut(key).and_then(|queue| queue.rereading.take())
        else {
            return;
        };
        match reply {
            Reply::Budget(Some(budget)) => {
                let (uid, ledger) = (budget.uid.clone(), budget.ledger.clone());
                self.take_budget(*budget);
                self.finish_write(key, &writing, (&uid, &ledger), false);
            }
            Reply::Budget(None) => {
                self.requeue(key, &writing);
                self.lose_budget(key, uid.as_ref());
            }
            _ => self.rereading(key, writing),
        }
    }

    /// Sorts out what of a write is there, now that the budget is known again.
    fn finish_write(
        &mut self,
        key: &BudgetKey,
        writing: &PendingWrite,
        (uid, ledger): (&Uid, &Ledger),
        done: bool,
    ) {
        let has = |uid: &Uid, token: &TokenId| {
            ledger.claims.get(uid).is_some_and(|claim| claim.tokens.contains_key(token))
        };
        // What stands at the queue is meant for the budget that is there now: one that had its name before cannot have
        // been told in its stead.
        let current = self.engine.budget(key).is_some_and(|known| known.uid == *uid);
        if let (Some(queue), true) = (self.queues.get_mut(key), current) {
            queue.withdrawals.retain(|token, uid| !writing.withdrawals.contains(token) || has(uid, token));
            let engine = &self.engine;
            queue.backfills.retain(|token, backfill| {
                let told = has(&backfill.uid, token) || (done && !engine.knows(&backfill.uid));
                !(writing.backfills.contains(token) && told)
            });
            if writing.opens && ledger.enforced == queue.coverage {
                self.outputs.push(Output::Note(Note::Opened(key.clone())));
            } else if writing.opens && done && ledger.enforced.is_none() {
                queue.opening = Some(Opening::Pruned(self.now.after(REOPEN_AFTER)));
                self.outputs.push(Output::Note(Note::NothingSticks(key.clone())));
            }
            self.backfilled(key);
        }
        for written in &writing.requests {
            let stuck = has(&written.uid, &written.token);
            let waiting = self.requests.get_mut(&written.request);
            match (waiting, stuck) {
                (Some(pending), true) => {
                    pending
                        .committed
                        .insert(key.clone(), Agreement { budget: uid.clone(), ..written.agreement.clone() });
                    self.advance(written.request);
                }
                (Some(_), false) if done => {
                    // Written, and not there: the definition that is installed does not know claims.
                    let denial =
                        Denial { budget: Some(key.clone()), reason: DenialReason::OutdatedDefinition };
                    self.finish(written.request, Decision::Deny(vec![denial]));
                }
                (Some(_), false) => {
                    if let Some(queue) = self.queues.get_mut(key) {
                        queue.waiting.push_back(written.request);
                    }
                }
                // It was refused, for want of time, while this was being written.
                (None, true) => {
                    if let (Some(queue), true) = (self.queues.get_mut(key), current) {
                        queue.withdrawals.insert(written.token.clone(), written.uid.clone());
                    }
                }
                (None, false) => {}
            }
        }
    }

    fn requeue(&mut self, key: &BudgetKey, writing: &PendingWrite) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.waiting.extend(writing.requests.iter().map(|written| written.request));
        }
    }

    /// A budget is not there any more, whatever the watch says. That says nothing of another one which the watch has
    /// shown under its name since: what that one is to be told stays at the queue.
    fn lose_budget(&mut self, key: &BudgetKey, lost: Option<&Uid>) {
        if self.engine.budget(key).map(|budget| &budget.uid) != lost {
            return;
        }
        self.forget_budget(key);
        let changes = self.engine.apply(Input::BudgetGone(key.clone()), self.now);
        self.note_changes(changes);
    }

    /// Every admission that the budget had to be told of is there.
    pub(super) fn backfilled(&mut self, key: &BudgetKey) {
        let binding = self
            .queues
            .get(key)
            .is_some_and(|queue| queue.backfills.values().any(|backfill| backfill.binding));
        if !binding {
            self.backfilling.remove(key);
        }
    }

    fn pods_listed(&mut self, key: &BudgetKey, coverage: Option<u64>, reply: Reply) {
        self.due.insert(key.clone());
        let of_any = self.without(ProtocolRule::ListOfCoverage);
        let Some(queue) = self.queues.get_mut(key) else { return };
        let stamp = queue.listing.take_if(|stamp| stamp.coverage == coverage);
        // The list of what the budget covered before, or one of its name, is nobody's any more.
        let is_ours = stamp.is_some() && queue.coverage == coverage;
        if let Reply::Pods(pods, version) = reply
            && (is_ours || of_any)
        {
            let changes = self.engine.apply_pod_list(key, pods, version, self.now);
            self.note_changes(changes);
            if let Some(queue) = self.queues.get_mut(key) {
                queue.listed = stamp;
                queue.listed_version = queue.listed_version.max(version);
            }
        }
    }
}
