//! What the holder of the lease does for every budget: settle what has happened, expire what has not, open what is new.
//!
//! There may be two holders for a while; every write here tests what it rests on.

use std::time::Duration;

use crate::basics::{Time, Uid, Version};
use crate::claims::{Claim, Ledger, PROTOCOL, Target, Token, TokenId};
use crate::facts::{Budget, BudgetKey, Pod};
use crate::ledger::commit::{PendingWrite, claim_steps};
use crate::ledger::messages::{Call, Note, Output, PodRead, ReplicaLease, Reply};
use crate::ledger::patch::Step;
use crate::ledger::replica::{Purpose, Replica};
use crate::ledger::settings::ProtocolRule;

/// How long the watch is given to show what a read has shown.
const REREAD_AFTER: Duration = Duration::from_secs(5);

/// How long the opening of a budget rests that the installed definition does not let happen.
pub(super) const REOPEN_AFTER: Duration = Duration::from_secs(30);

/// How far the opening of a budget has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Opening {
    /// The replicas are being listed.
    ListingReplicas,
    /// Some replica has not acknowledged the budget: listed again when time passes.
    Waiting,
    /// Every replica has acknowledged it; its pods are being listed.
    ListingPods,
    /// It was written, and is not there: the definition that is installed drops it. Tried again from this time on.
    Pruned(Time),
}

/// Others write it, by rules that are not known here.
fn is_foreign(ledger: &Ledger) -> bool {
    ledger.protocol.is_some_and(|protocol| protocol != PROTOCOL)
}

impl Replica {
    /// Whether a budget has something that only time or the holder can finish.
    pub(super) fn needs_leader(&self, key: &BudgetKey) -> bool {
        self.leader
            && self
                .engine
                .budget(key)
                .is_some_and(|budget| !budget.ledger.claims.is_empty() || self.is_closed(key, budget))
    }

    /// Does the next thing a budget needs.
    pub(super) fn lead(&mut self, key: &BudgetKey, budget: &Budget) {
        if is_foreign(&budget.ledger) || self.settle(key, budget) || self.finish_updates(key, budget) {
            return;
        }
        self.find_expired(key, budget);
        self.open(key, budget);
    }

    pub(super) fn is_closed(&self, key: &BudgetKey, budget: &Budget) -> bool {
        let coverage = self.queues.get(key).and_then(|queue| queue.coverage);
        budget.spec.is_ok() && budget.ledger.enforced != coverage
    }

    /// Removes the claims of pods that are terminating, gone, or ended for good. Nobody's health comes back by that, so
    /// the number stays: who still counts the claim is only too careful. That is also why it may wait for more of them.
    fn settle(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let over = self.ended(key, budget);
        let (now, settle_delay) = (self.now, self.settings.settle_delay);
        let Some(queue) = self.queues.get_mut(key) else { return false };
        if over.is_empty() {
            queue.finished_since = None;
            return false;
        }
        if !settle_delay.is_zero() && now < queue.finished_since.get_or_insert(now).after(settle_delay) {
            return false;
        }
        queue.finished_since = None;
        let settled = over.iter().map(|(_, version)| *version).fold(budget.ledger.settled, Version::max);
        let mut steps = self.preamble(budget);
        self.raise_settled(&budget.ledger, settled, &mut steps);
        // Whatever was claimed on such a pod meanwhile is as moot as the rest, so the claims need no test.
        steps.extend(over.into_iter().map(|(uid, _)| Step::RemoveClaim(uid)));
        self.start_write(key, steps, PendingWrite::default());
        true
    }

    /// Takes the claims that have come to their end out of a ledger that is about to be written anyway, and says which
    /// version of the pods that rests on. A claim that the write adds something to stays: somebody waits to see it there.
    pub(super) fn settle_with_commit(
        &mut self,
        key: &BudgetKey,
        budget: &Budget,
        draft: &mut Ledger,
    ) -> Option<Version> {
        if !self.leader || is_foreign(&budget.ledger) {
            return None;
        }
        let mut settled = None;
        for (uid, version) in self.ended(key, budget) {
            if draft.claims.get(&uid) == budget.ledger.claims.get(&uid) {
                draft.claims.remove(&uid);
                settled = settled.max(Some(version.max(budget.ledger.settled)));
            }
        }
        if let (Some(queue), Some(_)) = (self.queues.get_mut(key), settled) {
            queue.finished_since = None;
        }
        settled
    }

    /// The claims of a budget whose pods are seen to be terminating, ended or gone, each with the version that showed it.
    fn ended(&self, key: &BudgetKey, budget: &Budget) -> Vec<(Uid, Version)> {
        let claims = budget.ledger.claims.iter();
        claims.filter_map(|(uid, claim)| Some((uid.clone(), self.seen_ending(key, uid, claim)?))).collect()
    }

    /// The version that showed a claimed pod terminating, ended or gone.
    fn seen_ending(&self, key: &BudgetKey, uid: &Uid, claim: &Claim) -> Option<Version> {
        if let Some(pod) = self.engine.pod_by_uid(uid) {
            return (pod.terminating || pod.phase.is_terminal()).then_some(pod.version);
        }
        if self.engine.knows(uid) {
            return None;
        }
        // Never seen is not gone: the pods must be newer than the claim.
        let seen = claim.tokens.keys().all(|token| {
            let entry = (key.clone(), uid.clone(), token.clone());
            self.first_seen.get(&entry).is_some_and(|first| first.version <= self.engine.pods_version())
        });
        let gone = self.gone_at.get(uid).copied();
        if gone.is_none() && !seen && !self.without(ProtocolRule::SettleOnlySeen) {
            return None;
        }
        Some(gone.unwrap_or_else(|| self.engine.pods_version()))
    }

    /// Removes the tokens of updates that have come to their end.
    fn finish_updates(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let mut ledger = budget.ledger.clone();
        let mut settled = ledger.settled;
        for uid in budget.ledger.claims.keys() {
            let Some(pod) = self.engine.pod_by_uid(uid) else { continue };
            // Once a label has been seen the pod tells by itself what it is, and all there is to wait for is that.
            for token in ledger.claims.get_mut(uid).into_iter().flat_map(|claim| claim.tokens.values_mut()) {
                if token.target.label.is_some() && token.target.is_labelled(pod) {
                    (token.target.label, token.target.base) = (None, None);
                }
            }
            let available = self.engine.is_available(uid, key);
            let naive = self.without(ProtocolRule::UpdateSeenRunning);
            let all = self.without(ProtocolRule::UpdateSettlesUpdates);
            let replaceable = !self.without(ProtocolRule::ReplacedUpdatesEnd);
            let rash = self.rashly_replaced(pod, &budget.ledger);
            let over = |token: &Token| {
                let target = &token.target;
                let reached = target.is_reached(pod) || (naive && target.is_asked(pod));
                !token.operation.removes()
                    && ((available && reached) || (replaceable && target.is_replaced(pod)) || rash(target))
            };
            let Some(claim) = ledger.claims.get_mut(uid) else { continue };
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

    /// For the tests that show why an update ends no sooner: which of them do under the rules that are left out.
    fn rashly_replaced<'a>(&self, pod: &'a Pod, ledger: &Ledger) -> impl Fn(&Target) -> bool + use<'a> {
        let unstored = self.without(ProtocolRule::UpdateSeenStored);
        let unannounced = self.without(ProtocolRule::AnnouncedHolds);
        let updates =
            |claim: &Claim| claim.tokens.values().filter(|token| !token.operation.removes()).count();
        let several = self.without(ProtocolRule::ReplacedOnceSeen)
            && ledger.claims.get(&pod.uid).is_some_and(|claim| updates(claim) > 1);
        move |target| {
            (unstored && Target { base: None, ..target.clone() }.is_reached(pod))
                || (unannounced && target.is_replaced(&Pod { announced: false, ..pod.clone() }))
                || (several && !target.is_asked(pod))
        }
    }

    /// Reads the pod of the first token that is due: nothing is dropped on the word of a watch that may lag.
    fn find_expired(&mut self, key: &BudgetKey, budget: &Budget) {
        let reading = self.queues.get(key).is_none_or(|queue| {
            queue.expiring.is_some() || queue.expire_after.is_some_and(|after| self.now < after)
        });
        if reading || self.without(ProtocolRule::Expiry) {
            return;
        }
        let due =
            budget.ledger.claims.iter().find(|(uid, claim)| {
                claim.tokens.iter().any(|(token, what)| self.is_due(key, uid, token, what))
            });
        let Some((uid, claim)) = due else { return };
        let pod =
            crate::basics::ObjectKey { namespace: key.object.namespace.clone(), name: claim.pod.clone() };
        let uid = uid.clone();
        if self.without(ProtocolRule::ExpiryReads) {
            self.drop_due(key, budget, &uid, None);
            return;
        }
        if let Some(queue) = self.queues.get_mut(key) {
            queue.expiring = Some(uid.clone());
        }
        self.call(Call::GetPod(pod), Purpose::Expire(key.clone(), uid));
    }

    /// Whether a token has stood for longer than what it admits can take. An update that was written is not due: it
    /// ends when the containers run what was asked for, however long that takes. One that asks for what runs already
    /// took another back; if the kubelet has replaced nothing by now, it never will.
    fn is_due(&self, key: &BudgetKey, uid: &Uid, token: &TokenId, what: &Token) -> bool {
        let entry = (key.clone(), uid.clone(), token.clone());
        let stood =
            self.first_seen.get(&entry).is_some_and(|first| self.now >= first.at.after(self.settings.expiry));
        let takes_back = !self.without(ProtocolRule::TakenBackExpires);
        let written = !what.operation.removes()
            && self.engine.pod_by_uid(uid).is_some_and(|pod| {
                what.target.is_asked(pod) && !(takes_back && what.target.runs_unreplaced(pod))
            });
        stood && !written
    }

    /// The pod of a due token was read.
    pub(super) fn expire(&mut self, key: &BudgetKey, uid: &Uid, reply: Reply) {
        self.due.insert(key.clone());
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.expiring = None;
        // A write of this queue is under way: the next look at it starts over.
        if queue.writing.is_some() || queue.rereading.is_some() || !self.leader {
            return;
        }
        let Some(budget) = self.engine.budget(key).cloned() else { return };
        if let Reply::Pod(PodRead::There(pod)) = reply
            && pod.uid == *uid
            && !pod.terminating
        {
            let version = pod.version;
            let changes = self.engine.learn(*pod, self.now);
            self.note_changes(changes);
            self.drop_due(key, &budget, uid, Some(version));
        } else if let Some(queue) = self.queues.get_mut(key) {
            // Gone or terminating: the watch will show it, and then it is settled.
            queue.expire_after = Some(self.now.after(REREAD_AFTER));
        }
    }

    fn drop_due(&mut self, key: &BudgetKey, budget: &Budget, uid: &Uid, read: Option<Version>) {
        let mut ledger = budget.ledger.clone();
        let Some(claim) = ledger.claims.get_mut(uid) else { return };
        let due: Vec<TokenId> = claim
            .tokens
            .iter()
            .filter(|(token, what)| self.is_due(key, uid, token, what))
            .map(|(token, _)| token.clone())
            .collect();
        if due.is_empty() {
            return;
        }
        // What was carried out and then taken back did happen.
        let happened = self.engine.pod_by_uid(uid).is_some_and(|pod| {
            let mut tokens = claim.tokens.iter().filter(|(token, _)| due.contains(token));
            tokens.all(|(_, what)| !what.operation.removes() && what.target.is_asked(pod))
        });
        claim.tokens.retain(|token, _| !due.contains(token));
        let pod = claim.pod.clone();
        if claim.tokens.is_empty() {
            ledger.claims.remove(uid);
        }
        let settled = read.unwrap_or(Version(0)).max(budget.ledger.settled);
        if self.release(key, budget, &ledger, settled) && !happened {
            self.outputs.push(Output::Note(Note::NotDisrupted { budget: key.clone(), pod }));
        }
    }

    /// Writes a ledger with fewer tokens in it. Health comes back by that, so the number is raised: whoever counted on
    /// the token being there has to look again.
    fn release(&mut self, key: &BudgetKey, budget: &Budget, ledger: &Ledger, settled: Version) -> bool {
        if ledger.claims == budget.ledger.claims {
            return false;
        }
        let old = &budget.ledger;
        let mut steps = self.preamble(budget);
        if !self.without(ProtocolRule::TestNumber) {
            steps.push(Step::TestNumber(old.number));
        }
        steps.push(Step::SetNumber(old.number + 1));
        self.raise_settled(old, settled, &mut steps);
        steps.extend(claim_steps(old, ledger));
        self.start_write(key, steps, PendingWrite::default());
        true
    }

    /// The steps that raise the version which deciding needs, never the other way.
    pub(super) fn raise_settled(&self, old: &Ledger, settled: Version, steps: &mut Vec<Step>) {
        if !self.without(ProtocolRule::TestSettled) {
            steps.push(Step::TestSettled(old.settled));
        }
        if settled > old.settled && !self.without(ProtocolRule::RaiseSettled) {
            steps.push(Step::SetSettled(settled));
        }
    }

    /// Goes on with the opening of a budget that is closed.
    fn open(&mut self, key: &BudgetKey, budget: &Budget) {
        if !self.is_closed(key, budget) {
            if let Some(queue) = self.queues.get_mut(key) {
                queue.opening = None;
            }
            return;
        }
        // Once it is, the engine tells that this budget has changed.
        if !self.settings.opens_unguarded && !self.engine.is_guarded(key) {
            return;
        }
        let Some(queue) = self.queues.get_mut(key) else { return };
        match queue.opening {
            Some(Opening::ListingReplicas | Opening::ListingPods) => return,
            Some(Opening::Pruned(until)) if self.now < until => return,
            Some(Opening::Waiting | Opening::Pruned(_)) | None => {}
        }
        if self.without(ProtocolRule::ListAfterAcknowledgement) {
            self.list_pods_to_open(key);
        } else {
            self.list_replicas(key);
        }
    }

    fn list_replicas(&mut self, key: &BudgetKey) {
        if let Some(mut known) =
            self.last_replicas.clone().filter(|_| self.without(ProtocolRule::ListReplicas))
        {
            let own = known.iter_mut().filter(|member| member.name == self.settings.name);
            own.for_each(|member| member.acknowledged = self.acknowledged);
            self.open_if_acknowledged(key, &known);
            return;
        }
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.opening = Some(Opening::ListingReplicas);
        let seen_at = queue.seen_at;
        self.call(Call::ListReplicas, Purpose::ListReplicas(key.clone(), seen_at));
    }

    /// The replicas were listed. A list that was asked for before the budget covered what it covers now is too old: a
    /// replica may have started in between.
    pub(super) fn replicas_listed(&mut self, key: &BudgetKey, seen_at: Version, reply: Reply) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.opening != Some(Opening::ListingReplicas) || queue.seen_at != seen_at {
            return;
        }
        queue.opening = Some(Opening::Waiting);
        if let Reply::Replicas(members) = reply {
            self.open_if_acknowledged(key, &members);
            if self.without(ProtocolRule::ListReplicas) {
                self.last_replicas = Some(members);
            }
        }
    }

    /// Opens the budget if every replica that answers anybody knows it.
    fn open_if_acknowledged(&mut self, key: &BudgetKey, members: &[ReplicaLease]) {
        let Some(queue) = self.queues.get(key) else { return };
        let seen_at = queue.seen_at;
        let (no_wait, vanished_pass) =
            (self.without(ProtocolRule::WaitForAcknowledgement), self.without(ProtocolRule::WaitForVanished));
        let ready = members.iter().all(|member| {
            let knows = member.acknowledged.of(key.kind) >= seen_at && !member.vanished;
            knows || no_wait || (member.vanished && vanished_pass)
        });
        if !ready {
            if let Some(queue) = self.queues.get_mut(key) {
                queue.opening = Some(Opening::Waiting);
            }
        } else if self.without(ProtocolRule::ListAfterAcknowledgement) {
            self.write_open(key, None);
        } else {
            self.list_pods_to_open(key);
        }
    }

    fn list_pods_to_open(&mut self, key: &BudgetKey) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.opening = Some(Opening::ListingPods);
        let seen_at = queue.seen_at;
        self.call(Call::ListPods(key.clone()), Purpose::ListPodsToOpen(key.clone(), seen_at));
    }

    pub(super) fn pods_listed_to_open(&mut self, key: &BudgetKey, seen_at: Version, reply: Reply) {
        self.due.insert(key.clone());
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.opening != Some(Opening::ListingPods) || queue.seen_at != seen_at {
            return;
        }
        queue.opening = Some(Opening::Waiting);
        let Reply::Pods(pods, version) = reply else { return };
        queue.listed_version = queue.listed_version.max(version);
        let changes = self.engine.apply_pod_list(key, pods, version, self.now);
        self.note_changes(changes);
        if self.without(ProtocolRule::ListAfterAcknowledgement) {
            self.list_replicas(key);
        } else {
            self.write_open(key, Some(version));
        }
    }

    fn write_open(&mut self, key: &BudgetKey, listed: Option<Version>) {
        let Some(queue) = self.queues.get(key) else { return };
        if queue.writing.is_some() || queue.rereading.is_some() || !self.leader {
            return;
        }
        let (Some(coverage), Some(budget)) = (queue.coverage, self.engine.budget(key).cloned()) else {
            return;
        };
        let mut steps = self.preamble(&budget);
        if !self.without(ProtocolRule::TestGeneration) {
            steps.push(Step::TestGeneration(budget.generation));
        }
        let listed = listed.unwrap_or(queue.listed_version);
        self.raise_settled(&budget.ledger, budget.ledger.settled.max(listed), &mut steps);
        steps.push(Step::SetEnforced(coverage));
        steps.push(Step::SetProtocol(PROTOCOL));
        self.start_write(key, steps, PendingWrite { opens: true, ..PendingWrite::default() });
    }
}
