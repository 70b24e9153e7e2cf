//! What the leader does for every budget: settles claims that have had their effect, expires those that never will, opens
//! budgets that are new.
//!
//! There may be two leaders for a while; every write here tests what it rests on.

use super::Replica;
use super::commit::claim_steps;
use crate::basics::{ObjectKey, Uid, Version};
use crate::claims::{Claim, Ledger, PROTOCOL, Token, TokenId};
use crate::facts::{Budget, BudgetKey};
use crate::ledger::messages::{Call, Note, PodRead, ReplicaLease, Reply};
use crate::ledger::outbox::Purpose;
use crate::ledger::patch::Step;
use crate::ledger::queue::PendingWrite;
use crate::ledger::settings::ProtocolRule;
use crate::ledger::settle;

/// Whether another version of the protocol, whose rules are not known here, writes this ledger.
fn is_foreign(ledger: &Ledger) -> bool {
    ledger.protocol.is_some_and(|protocol| protocol != PROTOCOL)
}

impl Replica {
    /// Whether a budget has something that only time or the leader can finish.
    pub(super) fn needs_leader(&self, key: &BudgetKey) -> bool {
        let unfinished = |budget: &Budget| !budget.ledger.claims.is_empty() || self.is_closed(key, budget);
        self.process.leads && self.engine.budget(key).is_some_and(unfinished)
    }

    /// Does the next thing that a budget needs.
    pub(super) fn lead(&mut self, key: &BudgetKey, budget: &Budget) {
        if is_foreign(&budget.ledger) || self.settle(key, budget) || self.finish_updates(key, budget) {
            return;
        }
        self.find_expired(key, budget);
        self.open(key, budget);
    }

    /// Removes the claims of pods that are terminating, ended or gone. No health comes back by that, so the number stays: a
    /// replica that still counts the claim is only too careful.
    fn settle(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let over = self.finished(key, budget);
        let (now, delay) = (self.process.now, self.settings.settle_delay);
        let Some(state) = self.budgets.states.get_mut(key) else { return false };
        if !state.settlement.is_due(!over.is_empty(), now, delay) {
            return false;
        }
        let settled = over.iter().map(|(_, version)| *version).fold(budget.ledger.settled, Version::max);
        let mut steps = self.preamble(budget);
        self.raise_settled(&budget.ledger, settled, &mut steps);
        // What was claimed on such a pod meanwhile is without effect too, so the claims need no test.
        steps.extend(over.into_iter().map(|(uid, _)| Step::RemoveClaim(uid)));
        self.start_write(key, steps, PendingWrite::default());
        true
    }

    /// Takes claims that have had their effect out of a ledger that is about to be written anyway, and returns the version of
    /// the pods that this rests on. A claim that the write adds a token to stays: a request waits to see it there.
    pub(super) fn settle_with_commit(
        &mut self,
        key: &BudgetKey,
        budget: &Budget,
        draft: &mut Ledger,
    ) -> Option<Version> {
        if !self.process.leads || is_foreign(&budget.ledger) {
            return None;
        }
        let mut settled = None;
        for (uid, version) in self.finished(key, budget) {
            if draft.claims.get(&uid) == budget.ledger.claims.get(&uid) {
                draft.claims.remove(&uid);
                settled = settled.max(Some(version.max(budget.ledger.settled)));
            }
        }
        if let (Some(state), Some(_)) = (self.budgets.states.get_mut(key), settled) {
            state.settlement.settled();
        }
        settled
    }

    /// The claims whose pods are seen to be terminating, ended or gone, each with the version that showed it.
    fn finished(&self, key: &BudgetKey, budget: &Budget) -> Vec<(Uid, Version)> {
        let claims = budget.ledger.claims.iter();
        claims.filter_map(|(uid, claim)| Some((uid.clone(), self.finished_at(key, uid, claim)?))).collect()
    }

    /// The version that showed a claimed pod terminating, ended or gone.
    fn finished_at(&self, key: &BudgetKey, uid: &Uid, claim: &Claim) -> Option<Version> {
        if let Some(pod) = self.engine.pod_by_uid(uid) {
            return (pod.terminating || pod.phase.is_terminal()).then_some(pod.version);
        }
        if self.engine.knows(uid) {
            return None;
        }
        // Never seen is not gone: the pods must be newer than the claim.
        let pods = self.engine.pods_version();
        let gone = self.claims.gone_at(uid);
        let newer = self.claims.is_no_newer_than(key, uid, claim, pods);
        if gone.is_none() && !newer && !self.is_without(ProtocolRule::SettleOnlySeen) {
            return None;
        }
        Some(gone.unwrap_or(pods))
    }

    /// Removes the tokens of updates that are over.
    fn finish_updates(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let mut ledger = budget.ledger.clone();
        let mut settled = ledger.settled;
        let all = self.is_without(ProtocolRule::UpdateSettlesUpdates);
        for uid in budget.ledger.claims.keys() {
            let Some(pod) = self.engine.pod_by_uid(uid) else { continue };
            let Some(claim) = ledger.claims.get_mut(uid) else { continue };
            // Once a label has been seen, the pod itself shows when it is gone again; there is nothing else to wait for.
            for token in claim.tokens.values_mut() {
                if token.target.label.is_some() && token.target.is_labelled(pod) {
                    (token.target.label, token.target.base) = (None, None);
                }
            }
            let available = self.engine.is_available(uid, key);
            let over =
                |token: &Token| settle::is_update_over(token, pod, available, &budget.ledger, &self.settings);
            let any = claim.tokens.values().any(over);
            claim.tokens.retain(|_, token| !(over(token) || (any && all)));
            if any {
                settled = settled.max(pod.version);
            }
            if claim.tokens.is_empty() {
                ledger.claims.remove(uid);
            }
        }
        self.release(key, budget, &ledger, settled)
    }

    /// Reads the pod of the first token that is due: a watch may lag, so nothing is dropped on its word.
    fn find_expired(&mut self, key: &BudgetKey, budget: &Budget) {
        let may_expire = |state: &super::BudgetState| state.settlement.may_expire(self.process.now);
        if !self.budgets.states.get(key).is_some_and(may_expire) || self.is_without(ProtocolRule::Expiry) {
            return;
        }
        let is_due = |(uid, claim): &(&Uid, &Claim)| {
            claim.tokens.iter().any(|(token, what)| self.is_due(key, uid, token, what))
        };
        let Some((uid, claim)) = budget.ledger.claims.iter().find(is_due) else { return };
        let pod = ObjectKey { namespace: key.object.namespace.clone(), name: claim.pod.clone() };
        let uid = uid.clone();
        if self.is_without(ProtocolRule::ExpiryReads) {
            self.drop_due(key, budget, &uid, None);
            return;
        }
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.settlement.start_expiry(uid.clone());
        }
        self.outbox.call(Call::GetPod(pod), Purpose::Expire(key.clone(), uid));
    }

    /// Whether a token has stood for the longest time an admitted request may take, without effect.
    fn is_due(&self, key: &BudgetKey, uid: &Uid, token: &TokenId, what: &Token) -> bool {
        let first = self.claims.first_seen(key, uid, token);
        let stood = first.is_some_and(|first| self.process.now >= first.at.after(self.settings.expiry));
        stood && settle::is_droppable(what, self.engine.pod_by_uid(uid), &self.settings)
    }

    /// The pod of a token that is due was read.
    pub(super) fn expire(&mut self, key: &BudgetKey, uid: &Uid, reply: Reply) {
        self.budgets.due.insert(key.clone());
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        state.settlement.end_expiry();
        // A write of this budget is in flight: the next look at it starts over.
        if state.queue.is_busy() || !self.process.leads {
            return;
        }
        let Some(budget) = self.engine.budget(key).cloned() else { return };
        match reply {
            Reply::Pod(PodRead::There(pod)) if pod.uid == *uid && !pod.terminating => {
                let version = pod.version;
                self.learn(*pod);
                self.drop_due(key, &budget, uid, Some(version));
            }
            _ => state.settlement.wait_for_watch(self.process.now),
        }
    }

    fn drop_due(&mut self, key: &BudgetKey, budget: &Budget, uid: &Uid, read: Option<Version>) {
        let mut ledger = budget.ledger.clone();
        let Some(claim) = ledger.claims.get_mut(uid) else { return };
        let tokens = claim.tokens.iter().filter(|(token, what)| self.is_due(key, uid, token, what));
        let due: Vec<TokenId> = tokens.map(|(token, _)| token.clone()).collect();
        if due.is_empty() {
            return;
        }
        // An update that was carried out and then taken back did happen.
        let happened = self.engine.pod_by_uid(uid).is_some_and(|pod| {
            let mut tokens = claim.tokens.iter().filter(|(token, _)| due.contains(token));
            tokens.all(|(_, what)| !what.operation.removes() && what.target.is_stored(pod))
        });
        claim.tokens.retain(|token, _| !due.contains(token));
        let pod = claim.pod.clone();
        if claim.tokens.is_empty() {
            ledger.claims.remove(uid);
        }
        let settled = read.unwrap_or(Version(0)).max(budget.ledger.settled);
        if self.release(key, budget, &ledger, settled) && !happened {
            self.outbox.note(Note::NotDisrupted { budget: key.clone(), pod });
        }
    }

    /// Writes a ledger with fewer tokens in it. Health comes back by that, so the number is raised: a replica that counted on
    /// the token being there must decide again.
    fn release(&mut self, key: &BudgetKey, budget: &Budget, ledger: &Ledger, settled: Version) -> bool {
        if ledger.claims == budget.ledger.claims {
            return false;
        }
        let old = &budget.ledger;
        let mut steps = self.preamble(budget);
        if !self.is_without(ProtocolRule::TestNumber) {
            steps.push(Step::TestNumber(old.number));
        }
        steps.push(Step::SetNumber(old.number + 1));
        self.raise_settled(old, settled, &mut steps);
        steps.extend(claim_steps(old, ledger));
        self.start_write(key, steps, PendingWrite::default());
        true
    }

    /// The steps that raise the version which decisions need, and never lower it.
    pub(super) fn raise_settled(&self, old: &Ledger, settled: Version, steps: &mut Vec<Step>) {
        if !self.is_without(ProtocolRule::TestSettled) {
            steps.push(Step::TestSettled(old.settled));
        }
        if settled > old.settled && !self.is_without(ProtocolRule::RaiseSettled) {
            steps.push(Step::SetSettled(settled));
        }
    }

    /// Goes on with the opening of a budget that is closed.
    fn open(&mut self, key: &BudgetKey, budget: &Budget) {
        let closed = self.is_closed(key, budget);
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if !closed {
            state.opening.reset();
            return;
        }
        // Once the namespace is guarded, the engine reports that this budget has changed.
        if !self.settings.opens_unguarded && !self.engine.is_guarded(key) {
            return;
        }
        if !state.opening.is_due(self.process.now) {
            return;
        }
        if self.is_without(ProtocolRule::ListAfterAcknowledgement) {
            self.list_pods_to_open(key);
        } else {
            self.list_replicas(key);
        }
    }

    fn list_replicas(&mut self, key: &BudgetKey) {
        let remembered = self.process.last_replicas.clone();
        if let Some(mut known) = remembered.filter(|_| self.is_without(ProtocolRule::ListReplicas)) {
            let own = known.iter_mut().filter(|replica| replica.name == self.settings.name);
            own.for_each(|replica| replica.acknowledged = self.acknowledgements.acknowledged());
            self.open_if_acknowledged(key, &known);
            return;
        }
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let seen_at = state.opening.list_replicas();
        self.outbox.call(Call::ListReplicas, Purpose::ListReplicas(key.clone(), seen_at));
    }

    /// The replicas were listed.
    pub(super) fn replicas_listed(&mut self, key: &BudgetKey, seen_at: Version, reply: Reply) {
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if !state.opening.replicas_listed(seen_at) {
            return;
        }
        if let Reply::Replicas(replicas) = reply {
            self.open_if_acknowledged(key, &replicas);
            if self.is_without(ProtocolRule::ListReplicas) {
                self.process.last_replicas = Some(replicas);
            }
        }
    }

    /// Opens the budget if every replica that decides knows it.
    fn open_if_acknowledged(&mut self, key: &BudgetKey, replicas: &[ReplicaLease]) {
        let no_wait = self.is_without(ProtocolRule::WaitForAcknowledgement);
        let vanished_pass = self.is_without(ProtocolRule::WaitForVanished);
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let mut replicas = replicas.iter();
        let ready = replicas.all(|replica| {
            let acknowledged = state.opening.is_acknowledged_by(replica, key.kind);
            acknowledged || no_wait || (replica.vanished && vanished_pass)
        });
        if !ready {
            state.opening.wait();
        } else if self.is_without(ProtocolRule::ListAfterAcknowledgement) {
            self.write_open(key, None);
        } else {
            self.list_pods_to_open(key);
        }
    }

    fn list_pods_to_open(&mut self, key: &BudgetKey) {
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let seen_at = state.opening.list_pods();
        self.outbox.call(Call::ListPods(key.clone()), Purpose::ListPodsToOpen(key.clone(), seen_at));
    }

    /// The pods were listed after the last acknowledgement.
    pub(super) fn pods_listed_to_open(&mut self, key: &BudgetKey, seen_at: Version, reply: Reply) {
        self.budgets.due.insert(key.clone());
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if !state.opening.pods_listed(seen_at) {
            return;
        }
        let Reply::Pods(pods, version) = reply else { return };
        state.lists.saw_version(version);
        self.take_pod_list(key, pods, version);
        if self.is_without(ProtocolRule::ListAfterAcknowledgement) {
            self.list_replicas(key);
        } else {
            self.write_open(key, Some(version));
        }
    }

    fn write_open(&mut self, key: &BudgetKey, listed: Option<Version>) {
        let Some(state) = self.budgets.states.get(key) else { return };
        if state.queue.is_busy() || !self.process.leads {
            return;
        }
        let (Some(coverage), Some(budget)) = (state.coverage, self.engine.budget(key).cloned()) else {
            return;
        };
        let listed = listed.unwrap_or(state.lists.version());
        let mut steps = self.preamble(&budget);
        if !self.is_without(ProtocolRule::TestGeneration) {
            steps.push(Step::TestGeneration(budget.generation));
        }
        self.raise_settled(&budget.ledger, budget.ledger.settled.max(listed), &mut steps);
        steps.push(Step::SetEnforced(coverage));
        steps.push(Step::SetProtocol(PROTOCOL));
        self.start_write(key, steps, PendingWrite { opens: true, ..PendingWrite::default() });
    }
}
