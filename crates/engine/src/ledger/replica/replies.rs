//! What came of a call. A write may have happened, have been refused, or be unknown because its reply was lost.

use std::collections::BTreeSet;

use super::Replica;
use crate::basics::{Uid, Version};
use crate::claims::{Ledger, TokenId};
use crate::coverage::Coverage;
use crate::decision::{Decision, Denial, DenialReason};
use crate::facts::{BudgetKey, Input, Pod};
use crate::ledger::lists::GroupObject;
use crate::ledger::messages::{Call, CallId, Note, Reply, WriteOutcome};
use crate::ledger::outbox::Purpose;
use crate::ledger::queue::{PendingWrite, Reread};
use crate::ledger::requests::Agreement;
use crate::ledger::settings::ProtocolRule;

impl Replica {
    /// A call came back.
    pub(super) fn reply(&mut self, id: CallId, reply: Reply) {
        // It shows a controller as it was before its end, or misses the next one of its name.
        let reply = if self.outbox.is_outdated(id) { Reply::Lost } else { reply };
        match self.outbox.returned(id) {
            Some(Purpose::Write(key)) => self.written(&key, reply),
            Some(Purpose::Reread(key)) => self.reread(&key, reply),
            Some(Purpose::ListPods(key, coverage)) => self.pods_listed(&key, coverage, reply),
            Some(Purpose::ReadSource(key, source)) => self.source_read(&key, source, &reply),
            Some(Purpose::Read(target)) => self.object_read(&target, &reply),
            Some(Purpose::Expire(key, uid)) => self.expire(&key, &uid, reply),
            Some(Purpose::ExpireListed(key, coverage)) => self.expire_listed(&key, coverage, reply),
            Some(Purpose::PodsVersion) => self.pods_version_read(&reply),
            Some(Purpose::ListReplicas(budgets)) => self.replicas_listed(&budgets, reply),
            Some(Purpose::ListPodsToOpen(key, seen_at)) => self.pods_listed_to_open(&key, seen_at, reply),
            None => {}
        }
    }

    fn written(&mut self, key: &BudgetKey, reply: Reply) {
        self.budgets.work.add(key.clone());
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let Some(write) = state.queue.take_write() else { return };
        match reply {
            Reply::Written(WriteOutcome::Done(budget)) => {
                if let (Some(tested), true) = (write.number, budget.ledger.number > 0) {
                    state.lists.own_write(tested, budget.ledger.number);
                }
                let (uid, ledger) = (budget.uid.clone(), budget.ledger.clone());
                self.take_shown_budget(*budget);
                self.finish_write(key, &write, (&uid, &ledger), true);
            }
            Reply::Written(WriteOutcome::Gone) => {
                self.queue_again(key, &write);
                self.lose_budget(key, Some(&write.budget));
            }
            // Nothing was written. If the budget is open now, another write opened it.
            Reply::Written(WriteOutcome::Refused) => {
                self.write_refused(key, PendingWrite { opens: false, ..write });
            }
            _ => self.start_reread(key, write),
        }
    }

    /// Another writer was faster. Where the watch has shown what it wrote there is nothing to read: the next decision rests
    /// on that, and if it is not the newest either, the next write will be refused too.
    fn write_refused(&mut self, key: &BudgetKey, write: PendingWrite) {
        let shown = self.engine.budget(key).filter(|known| {
            known.uid == write.budget && write.number.is_some_and(|tested| known.ledger.number > tested)
        });
        match shown.map(|known| known.ledger.clone()) {
            Some(ledger) => self.finish_write(key, &write, (&write.budget, &ledger), false),
            None => self.start_reread(key, write),
        }
    }

    fn start_reread(&mut self, key: &BudgetKey, write: PendingWrite) {
        let uid = self.engine.budget(key).map(|budget| budget.uid.clone());
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.queue.start_reread(Reread { write, uid });
        }
        self.outbox.call(Call::GetBudget(key.clone()), Purpose::Reread(key.clone()));
    }

    fn reread(&mut self, key: &BudgetKey, reply: Reply) {
        self.budgets.work.add(key.clone());
        let state = self.budgets.states.get_mut(key);
        let Some(Reread { write, uid }) = state.and_then(|state| state.queue.take_reread()) else { return };
        match reply {
            Reply::Budget(Some(budget)) => {
                let (uid, ledger) = (budget.uid.clone(), budget.ledger.clone());
                self.take_shown_budget(*budget);
                self.finish_write(key, &write, (&uid, &ledger), false);
            }
            Reply::Budget(None) => {
                self.queue_again(key, &write);
                self.lose_budget(key, uid.as_ref());
            }
            _ => self.start_reread(key, write),
        }
    }

    /// Sorts out what of a write is there, now that the budget is known again.
    fn finish_write(
        &mut self,
        key: &BudgetKey,
        write: &PendingWrite,
        (uid, ledger): (&Uid, &Ledger),
        done: bool,
    ) {
        // The queue is for the budget that is there now. One that had its name before cannot have got its tokens.
        let current = self.engine.budget(key).is_some_and(|known| known.uid == *uid);
        let unneeded: BTreeSet<TokenId> = self
            .budgets
            .states
            .get(key)
            .into_iter()
            .flat_map(|state| state.queue.backfills())
            .filter(|(_, backfill)| !self.needs_claim(&backfill.uid, &backfill.what))
            .map(|(token, _)| token.clone())
            .collect();
        if let (Some(state), true) = (self.budgets.states.get_mut(key), current) {
            state.queue.confirm(write, ledger, done, |token| !unneeded.contains(token));
            if done && state.queue.note_pruned(write, self.process.now) {
                self.outbox.note(Note::NothingSticks(key.clone()));
            }
            if let Some(named) = write.names.filter(|_| done && ledger.enforced_generation.is_none()) {
                state.opening.dropped(named);
            }
            if write.opens && ledger.enforced == state.coverage {
                self.outbox.note(Note::Opened(key.clone()));
            } else if write.opens && done && ledger.enforced.is_none() {
                state.opening.pruned(self.process.now);
                self.outbox.note(Note::NothingSticks(key.clone()));
            }
            self.check_backfilled(key);
        }
        for written in &write.requests {
            let is_there = ledger.has_token(&written.uid, &written.token);
            match (self.requests.contains(written.request), is_there) {
                (true, true) => {
                    let agreement = Agreement { budget: uid.clone(), ..written.agreement.clone() };
                    self.agreed(written.request, key, agreement);
                }
                // Written, and not there: the CustomResourceDefinition that is installed does not have claims.
                (true, false) if done => {
                    let reason = DenialReason::OutdatedDefinition;
                    let denial = Denial { budget: Some(key.clone()), reason };
                    self.answer(written.request, Decision::Deny(vec![denial]));
                }
                (true, false) => {
                    if let Some(state) = self.budgets.states.get_mut(key) {
                        state.queue.push_again([written.request]);
                    }
                }
                // Its deadline passed during the write.
                (false, true) => {
                    if let (Some(state), true) = (self.budgets.states.get_mut(key), current) {
                        state.queue.withdraw(written.token.clone(), written.uid.clone());
                    }
                }
                (false, false) => {}
            }
        }
    }

    fn queue_again(&mut self, key: &BudgetKey, write: &PendingWrite) {
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.queue.push_again(write.requests.iter().map(|written| written.request));
        }
    }

    /// A budget is gone, whatever the watch shows. That says nothing about another one which the watch has shown under its
    /// name since: what that one must get stays in its queue.
    fn lose_budget(&mut self, key: &BudgetKey, lost: Option<&Uid>) {
        if self.engine.budget(key).map(|budget| &budget.uid) != lost {
            return;
        }
        self.forget_budget(key);
        self.apply(Input::BudgetGone(key.clone()));
    }

    /// Lets the budget be acknowledged if it has every token that it must get.
    pub(super) fn check_backfilled(&mut self, key: &BudgetKey) {
        let state = self.budgets.states.get(key);
        if !state.is_some_and(|state| state.queue.has_required_backfills()) {
            self.acknowledgements.backfilled(key);
        }
    }

    fn pods_listed(&mut self, key: &BudgetKey, coverage: Option<Coverage>, reply: Reply) {
        self.budgets.work.add(key.clone());
        let any_coverage = self.is_without(ProtocolRule::ListOfCoverage);
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let stamp = state.lists.take_list(coverage);
        // A list for what the budget covered before, or for another budget of its name, says nothing.
        let counts = stamp.is_some() && state.coverage == coverage;
        if let Reply::Pods(pods, version) = reply
            && (counts || any_coverage)
        {
            state.lists.listed(stamp, version);
            self.take_pod_list(key, pods, version);
        }
    }

    /// Takes a list of a budget's pods in.
    pub(super) fn take_pod_list(&mut self, key: &BudgetKey, pods: Vec<Pod>, version: Version) {
        let changes = self.engine.apply_pod_list(key, pods, version, self.process.now);
        self.outbox.changed(changes);
    }

    /// The object that says how many groups of a budget there should be was read.
    fn source_read(&mut self, key: &BudgetKey, source: GroupObject, reply: &Reply) {
        self.budgets.work.add(key.clone());
        let Reply::Controller(shown) = reply else {
            if let Some(state) = self.budgets.states.get_mut(key) {
                state.lists.source_lost(&source);
            }
            return;
        };
        let known = self.engine.controller_named(&source.0, &source.1).map(|known| known.uid.clone());
        match (shown, known) {
            (Some(shown), _) => self.apply(Input::Controller((**shown).clone())),
            (None, Some(known)) => {
                self.outdate_reads(&known);
                self.apply(Input::ControllerGone(known));
            }
            (None, None) => {}
        }
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.lists.source_read(source);
        }
    }
}
