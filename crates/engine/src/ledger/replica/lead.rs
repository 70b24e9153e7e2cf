//! What the leader does for every budget: settles claims that have had their effect, expires those that never will, opens
//! budgets that are new.
//!
//! There may be two leaders for a while; every write here tests what it rests on.

use std::collections::{BTreeMap, BTreeSet};

use super::Replica;
use super::commit::claim_steps;
use crate::basics::{ObjectKey, Uid, Version};
use crate::claims::{Claim, Ledger, PROTOCOL, Token, TokenId};
use crate::coverage::Coverage;
use crate::facts::{Budget, BudgetKey};
use crate::ledger::messages::{Call, Note, PodRead, ReplicaLease, Reply};
use crate::ledger::outbox::Purpose;
use crate::ledger::patch::Step;
use crate::ledger::queue::{Backfill, PendingWrite};
use crate::ledger::settings::ProtocolRule;
use crate::ledger::settle::{self, PodToken};

/// The largest number of lists of pods in flight for openings. The other budgets wait for the next list of the replicas:
/// if a thousand budgets are ready at once, a thousand lists at once would time out.
const MAX_LISTS_TO_OPEN: usize = 32;

/// Whether another version of the protocol, whose rules are not known here, writes this ledger.
fn is_foreign(ledger: &Ledger) -> bool {
    ledger.protocol.is_some_and(|protocol| protocol != PROTOCOL)
}

impl Replica {
    /// Whether a budget has something that only time or the leader can finish.
    pub(super) fn needs_leader(&self, key: &BudgetKey) -> bool {
        let has_claims = |budget: &Budget| !budget.ledger.claims.is_empty();
        let unfinished = self.engine.budget(key).is_some_and(has_claims);
        self.process.leads
            && (unfinished || self.is_closed(key) || self.is_outdated(key) || self.is_settled_ahead(key))
    }

    /// Does the next thing that a budget needs.
    pub(super) fn lead(&mut self, key: &BudgetKey, budget: &Budget) {
        if is_foreign(&budget.ledger)
            || self.lower_settled(key, budget)
            || self.settle(key, budget)
            || self.finish_updates(key, budget)
        {
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

    /// Reads the pods of tokens that are due: a watch may lag, so nothing is dropped on its word. Several pods are read by one
    /// list, a single one by its name. So is a pod that the budget does not cover any more: a list would not show it.
    fn find_expired(&mut self, key: &BudgetKey, budget: &Budget) {
        if self.is_without(ProtocolRule::Expiry) || self.drop_unused(key, budget) {
            return;
        }
        let may_expire = |state: &super::BudgetState| state.settlement.may_expire(self.process.now);
        if !self.budgets.states.get(key).is_some_and(may_expire) {
            return;
        }
        let claims = budget.ledger.claims.iter();
        let due: Vec<PodToken> = claims.flat_map(|(uid, claim)| self.due_of(key, uid, claim)).collect();
        let Some((first, _)) = due.first().cloned() else { return };
        if self.is_without(ProtocolRule::ExpiryReads) {
            let unread = due.into_iter().map(|token| (token, Version(0))).collect();
            self.drop_tokens(key, budget, &unread);
            return;
        }
        let listed: BTreeSet<PodToken> =
            due.iter().filter(|(uid, _)| self.engine.is_covered_by(uid, key)).cloned().collect();
        let pods: BTreeSet<&Uid> = listed.iter().map(|(uid, _)| uid).collect();
        let is_list = pods.len() > 1;
        let Some(claim) = budget.ledger.claims.get(&first) else { return };
        let pod = ObjectKey { namespace: key.object.namespace.clone(), name: claim.pod.clone() };
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if is_list {
            state.settlement.start_expiry(listed);
            let purpose = Purpose::ExpireListed(key.clone(), state.coverage);
            self.outbox.call(Call::ListPods(key.clone()), purpose);
        } else {
            state.settlement.start_expiry(due.into_iter().filter(|(uid, _)| *uid == first).collect());
            self.outbox.call(Call::GetPod(pod), Purpose::Expire(key.clone(), first));
        }
    }

    /// The tokens of a claim that are due.
    fn due_of(&self, key: &BudgetKey, uid: &Uid, claim: &Claim) -> Vec<PodToken> {
        let tokens = claim.tokens.iter().filter(|(token, what)| self.is_due(key, uid, token, what));
        tokens.map(|(token, _)| (uid.clone(), token.clone())).collect()
    }

    /// Whether a token has stood for so long that it can be dropped.
    fn is_due(&self, key: &BudgetKey, uid: &Uid, token: &TokenId, what: &Token) -> bool {
        let Some(first) = self.claims.first_seen(key, uid, token) else { return false };
        if self.process.now < first.at.after(self.settings.expiry) {
            return false;
        }
        let (pod, available) = (self.engine.pod_by_uid(uid), self.engine.is_available(uid, key));
        let after = settle::drops_after(what, pod, available, &self.settings);
        after.is_some_and(|after| self.process.now >= first.at.after(after))
    }

    /// The pod of a token that is due was read.
    pub(super) fn expire(&mut self, key: &BudgetKey, uid: &Uid, reply: Reply) {
        let mut alive = BTreeMap::new();
        if let Reply::Pod(PodRead::There(pod)) = reply
            && pod.uid == *uid
            && !pod.terminating
        {
            alive.insert(pod.uid.clone(), pod.version);
            self.learn(*pod);
        }
        self.end_expiry(key, &alive);
    }

    /// The pods of several tokens that are due were listed. A list of other pods than the budget covers now proves nothing.
    pub(super) fn expire_listed(&mut self, key: &BudgetKey, coverage: Option<Coverage>, reply: Reply) {
        let mut alive = BTreeMap::new();
        if let Reply::Pods(pods, version) = reply
            && self.coverage(key) == coverage
        {
            alive
                .extend(pods.iter().filter(|pod| !pod.terminating).map(|pod| (pod.uid.clone(), pod.version)));
            self.take_pod_list(key, pods, version);
        }
        self.end_expiry(key, &alive);
    }

    fn end_expiry(&mut self, key: &BudgetKey, alive: &BTreeMap<Uid, Version>) {
        self.budgets.work.add(key.clone());
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.settlement.end_expiry(alive, self.process.now);
        }
    }

    /// Drops the tokens whose pods were left alone.
    fn drop_unused(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let Some(mut settlement) = self.budgets.states.get(key).map(|state| state.settlement.clone()) else {
            return false;
        };
        let unused = settlement.unused(|(uid, token)| {
            let claim = budget.ledger.claims.get(uid);
            let what = claim.and_then(|claim| claim.tokens.get(token));
            what.is_some_and(|what| self.is_due(key, uid, token, what))
        });
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.settlement = settlement;
        }
        self.drop_tokens(key, budget, &unused)
    }

    /// Drops these tokens in one write.
    fn drop_tokens(
        &mut self,
        key: &BudgetKey,
        budget: &Budget,
        unused: &BTreeMap<PodToken, Version>,
    ) -> bool {
        let mut ledger = budget.ledger.clone();
        let mut settled = budget.ledger.settled;
        let mut notes = BTreeSet::new();
        for ((uid, token), version) in unused {
            let Some(claim) = ledger.claims.get_mut(uid) else { continue };
            let Some(what) = claim.tokens.get(token) else { continue };
            if !settle::has_happened(what, self.engine.pod_by_uid(uid)) {
                notes.insert(claim.pod.clone());
            }
            settled = settled.max(*version);
            claim.tokens.remove(token);
            if claim.tokens.is_empty() {
                ledger.claims.remove(uid);
            }
        }
        let releases = self.release(key, budget, &ledger, settled);
        if releases {
            let notes = notes.into_iter().map(|pod| Note::NotDisrupted { budget: key.clone(), pod });
            notes.for_each(|note| self.outbox.note(note));
        }
        releases
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
        let (closed, outdated) = (self.is_closed(key), self.is_outdated(key));
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if !closed {
            state.opening.reset();
            if outdated {
                self.write_generation(key, budget);
            }
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
            self.await_replicas(key);
        }
    }

    /// Lets a budget wait for the next list of the replicas.
    fn await_replicas(&mut self, key: &BudgetKey) {
        #[cfg(feature = "mutations")]
        if let Some(mut known) = self.process.last_replicas.clone() {
            let own = known.iter_mut().filter(|replica| replica.name == self.settings.name);
            own.for_each(|replica| replica.acknowledged = self.acknowledgements.acknowledged());
            self.open_if_acknowledged(key, &known);
            return;
        }
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        self.budgets.replica_lists.queue(key);
        state.opening.queue();
    }

    /// Lists the replicas for all budgets that wait for it. The list is sent after each of them was seen: a replica that
    /// started before does not escape it.
    pub(super) fn list_replicas(&mut self) {
        let may_open = self.process.leads && self.process.freshness.may_acknowledge();
        let pause = self.settings.list_pause;
        let Some(due_at) = self.budgets.replica_lists.due_at(pause).filter(|_| may_open) else { return };
        if due_at > self.process.now {
            self.budgets.work.wake_at(due_at);
            return;
        }
        let queued = self.budgets.replica_lists.start(self.process.now);
        let mut budgets = Vec::new();
        for key in queued {
            let state = self.budgets.states.get_mut(&key);
            if let Some(seen_at) = state.and_then(|state| state.opening.list_replicas()) {
                budgets.push((key, seen_at));
            }
        }
        if budgets.is_empty() {
            self.budgets.replica_lists.done(true);
            return;
        }
        self.outbox.call(Call::ListReplicas, Purpose::ListReplicas(budgets));
    }

    /// The replicas were listed.
    pub(super) fn replicas_listed(&mut self, budgets: &[(BudgetKey, Version)], reply: Reply) {
        let listed = match reply {
            Reply::Replicas(listed) => Some(listed),
            _ => None,
        };
        if let Some(listed) = &listed {
            let ended = listed.iter().filter(|replica| !replica.serves);
            self.process.handed_over = ended.flat_map(|replica| replica.admitted.clone()).collect();
        }
        let mut gets_on = false;
        for (key, seen_at) in budgets {
            let Some(state) = self.budgets.states.get_mut(key) else { continue };
            if state.opening.replicas_listed(*seen_at)
                && let Some(listed) = &listed
            {
                gets_on |= self.open_if_acknowledged(key, listed);
            }
        }
        self.budgets.replica_lists.done(gets_on);
        #[cfg(feature = "mutations")]
        if self.is_without(ProtocolRule::ListReplicas) {
            self.process.last_replicas = listed;
        }
    }

    /// Opens the budget if every replica that decides knows it; returns whether that is so.
    fn open_if_acknowledged(&mut self, key: &BudgetKey, replicas: &[ReplicaLease]) -> bool {
        let no_wait = self.is_without(ProtocolRule::WaitForAcknowledgement);
        let crowded = self.outbox.lists_to_open() >= MAX_LISTS_TO_OPEN;
        let Some(state) = self.budgets.states.get_mut(key) else { return false };
        let mut replicas = replicas.iter();
        let ready = replicas.all(|replica| no_wait || !state.opening.is_blocked_by(replica, key.kind));
        if !ready || crowded {
            state.opening.wait();
        } else if self.is_without(ProtocolRule::ListAfterAcknowledgement) {
            self.write_open(key, None);
        } else {
            self.list_pods_to_open(key);
        }
        ready
    }

    fn list_pods_to_open(&mut self, key: &BudgetKey) {
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let seen_at = state.opening.list_pods();
        self.outbox.call(Call::ListPods(key.clone()), Purpose::ListPodsToOpen(key.clone(), seen_at));
    }

    /// The pods were listed after the last acknowledgement.
    pub(super) fn pods_listed_to_open(&mut self, key: &BudgetKey, seen_at: Version, reply: Reply) {
        self.budgets.work.add(key.clone());
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if !state.opening.pods_listed(seen_at) {
            return;
        }
        let Reply::Pods(pods, version) = reply else { return };
        state.lists.saw_version(version);
        self.take_pod_list(key, pods, version);
        if self.is_without(ProtocolRule::ListAfterAcknowledgement) {
            self.await_replicas(key);
        } else if !self.backfill_handed_over(key) {
            self.write_open(key, Some(version));
        }
    }

    /// Queues the tokens of replicas that have ended; returns whether the budget must still get one. Which pods it covers
    /// is known now that they have been listed.
    fn backfill_handed_over(&mut self, key: &BudgetKey) -> bool {
        if self.is_without(ProtocolRule::TakeHandedOver) {
            return false;
        }
        let Some(state) = self.budgets.states.get_mut(key) else { return false };
        let mut took = false;
        for admission in &self.process.handed_over {
            // A claim that is not needed does no harm.
            if self.engine.may_cover(key, &admission.uid) && state.opening.take_token(&admission.token) {
                state.queue.backfill(admission.token.clone(), Backfill::required(admission));
                took = true;
            }
        }
        // A pod that is seen terminating or gone by now gets no token, and the list from before may have it healthy: other
        // replicas must not count by that list.
        took || state.queue.has_required_backfills()
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
        steps.extend(self.test_rules(&budget));
        // Its annotations may have been others and are the same again: a commit from before must not hold.
        if !budget.annotations.values.is_empty() && !self.is_without(ProtocolRule::OpeningRaisesNumber) {
            let number = budget.ledger.number;
            steps.extend([Step::TestNumber(number), Step::SetNumber(number + 1)]);
        }
        self.raise_settled(&budget.ledger, budget.ledger.settled.max(listed), &mut steps);
        steps.push(Step::SetEnforced(coverage, budget.generation));
        steps.push(Step::SetProtocol(PROTOCOL));
        self.start_write(key, steps, PendingWrite { opens: true, ..PendingWrite::default() });
    }

    /// Names the present generation in a budget that is open. Its coverage has been the same since it was opened, so no
    /// replica needs to acknowledge that.
    fn write_generation(&mut self, key: &BudgetKey, budget: &Budget) {
        let Some(coverage) = self.coverage(key) else { return };
        let mut steps = self.preamble(budget);
        steps.extend(self.test_rules(budget));
        steps.push(Step::SetEnforced(coverage, budget.generation));
        let names = Some(budget.generation);
        self.start_write(key, steps, PendingWrite { names, ..PendingWrite::default() });
    }
}
