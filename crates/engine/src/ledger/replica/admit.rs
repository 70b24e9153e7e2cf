//! From a request to its answer: locate the pod, decide, get a token into every budget that must agree, answer.
//!
//! The API server's own reads count, never the review: it only names a pod. Where the view of this replica does not prove
//! which pod is meant, or what it is like, the pod is read first.

use super::Replica;
use crate::basics::{ObjectKey, Uid};
use crate::decision::{Allow, AllowReason, Decision, Denial, DenialReason, NO_POD, NoEffect};
use crate::facts::{BudgetKey, Controller, Input, Operation, Owner, Pod};
use crate::ledger::messages::{Admission, Call, PodRead, Reply, RequestId};
use crate::ledger::outbox::Purpose;
use crate::ledger::queue::Backfill;
use crate::ledger::reads::{Absent, ReadTarget};
use crate::ledger::requests::{PendingRequest, Plan};
use crate::ledger::settings::ProtocolRule;
use crate::request::Request;

impl Replica {
    /// A request arrived.
    pub(super) fn receive(&mut self, id: RequestId, request: Request, deadline: crate::basics::Time) {
        if let Some(decision) = request.always_passes() {
            self.outbox.answer(id, decision);
            return;
        }
        let now = self.process.now;
        let stale = self.process.freshness.cannot_decide(now, self.settings.fresh_for);
        if stale != Some(DenialReason::NotSynced) && self.is_free_relabel(&request) {
            self.requests.add(id, request, deadline);
            self.pass_relabel(id);
            return;
        }
        // The server has refused a late one already.
        if let Some(reason) = (now >= deadline).then_some(DenialReason::Deadline).or(stale) {
            self.outbox.answer(id, Decision::Deny(vec![Denial { budget: None, reason }]));
            return;
        }
        self.requests.add(id, request, deadline);
        self.locate(id);
    }

    /// Whether a request is a relabel, and no budget of the namespace decides those. Then nothing may delay or deny it: a
    /// database may be waiting for its new primary.
    fn is_free_relabel(&self, request: &Request) -> bool {
        let decided = self.engine.may_deny(Operation::Relabel, &request.pod.namespace)
            && !self.is_without(ProtocolRule::RelabelsDecided);
        request.operation == Operation::Relabel && !decided
    }

    /// Lets a relabel pass that no budget decides. The budgets that the pod leaves get its token if they can.
    fn pass_relabel(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(id).map(|pending| pending.request().clone()) else { return };
        let decided = self.engine.decide(&request, self.process.now);
        let reviewed = request.object.map(|object| object.uid);
        let (uid, reasons) = match decided {
            Decision::Allow(Allow::Agreed { uid, reasons, .. }) => (Some(uid), reasons),
            // The pod may be unknown here; a budget that is opened later must know of the relabel.
            Decision::Allow(_) | Decision::Deny(_) => (reviewed, Vec::new()),
        };
        let observing = reasons.into_iter().collect();
        if let (Some(pending), Some(uid)) = (self.requests.get_mut(id), uid) {
            pending.set_plan(uid, Plan { observing, ..Plan::default() });
        }
        self.admit(id);
    }

    /// Finds the pod that a request means: decides where the pods that are known here prove enough, else reads the pod.
    fn locate(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(id) else { return };
        if !self.must_read(pending) {
            self.decide(id);
        } else if self.reads.is_absent(&meant(pending.request()), self.process.now) {
            self.answer(id, gone());
        } else {
            let target = ReadTarget::Pod(pending.request().pod.clone());
            self.read(target, id);
        }
    }

    /// Whether the pods that are known here are not enough to say which pod a request means, or what it is like: the pod is
    /// unknown, is about to make room for a successor, is older here than in the review, or has another UID than the caller
    /// requires. A view that lags must not turn any of these into a free pass.
    fn must_read(&self, pending: &PendingRequest) -> bool {
        if pending.was_read() {
            return false;
        }
        let request = pending.request();
        let known = match &request.object {
            // A UID has one name for good: with another one, the review is not of the API server.
            Some(object) => self.engine.pod_by_uid(&object.uid).filter(|pod| pod.key == request.pod),
            None => self.engine.pod(&request.pod).filter(|pod| !pod.terminating),
        };
        let Some(pod) = known else { return true };
        let is_older = request.object.as_ref().is_some_and(|object| pod.version < object.version);
        let is_another = request.precondition.as_ref().is_some_and(|uid| *uid != pod.uid);
        is_older || (is_another && !self.is_without(ProtocolRule::ReadOther))
    }

    /// Lets a request wait for a read.
    fn read(&mut self, target: ReadTarget, id: RequestId) {
        self.reads.want(target, id);
        self.send_reads();
    }

    fn send_reads(&mut self) {
        let arrived = self.requests.arrived();
        while let Some(target) = self.reads.next(arrived, |id| self.requests.contains(id)) {
            let call = match &target {
                ReadTarget::Pod(key) => Call::GetPod(key.clone()),
                ReadTarget::Owner(kind, key, _) => Call::GetController(kind.clone(), key.clone()),
            };
            self.outbox.call(call, Purpose::Read(target));
        }
    }

    /// A pod or an owner that requests wait for was read.
    pub(super) fn object_read(&mut self, target: &ReadTarget, reply: &Reply) {
        let Some(read) = self.reads.done(target) else { return };
        if let Reply::Pod(PodRead::There(pod)) = reply
            && !pod.terminating
            && !pod.phase.is_terminal()
        {
            self.learn(Pod::clone(pod));
        }
        if let (Reply::Controller(shown), ReadTarget::Owner(_, _, uid)) = (reply, target) {
            self.learn_owner(shown.as_deref(), uid);
        }
        for id in &read.requests {
            let Some(pending) = self.requests.get_mut(*id) else { continue };
            match reply {
                // A read that was sent before the request arrived says nothing about what happened in between.
                Reply::Pod(shown) if read.is_later_than(pending.arrived()) => {
                    pending.set_read();
                    self.pod_read(*id, shown);
                }
                Reply::Controller(_) => self.decide(*id),
                // No answer: the deadline of the request bounds how often this is tried.
                _ => self.locate(*id),
            }
        }
        self.send_reads();
    }

    /// Takes a pod in that was read consistently.
    pub(super) fn learn(&mut self, pod: Pod) {
        let changes = self.engine.learn(pod, self.process.now);
        self.outbox.changed(changes);
    }

    /// A controller above a pod was read. One that is not there does not come back: its UID is not given again.
    fn learn_owner(&mut self, shown: Option<&Controller>, uid: &Uid) {
        match shown.filter(|shown| shown.uid == *uid) {
            Some(owner) => self.apply(Input::Controller(owner.clone())),
            None => self.engine.owner_is_absent(uid.clone()),
        }
    }

    /// The pod that a request names was read after the request arrived.
    fn pod_read(&mut self, id: RequestId, shown: &PodRead) {
        let Some(pending) = self.requests.get(id) else { return };
        let request = pending.request();
        let no_effect = |why, uid: &Uid| Decision::Allow(Allow::NoEffect { why, uid: Some(uid.clone()) });
        let decision = match shown {
            PodRead::Gone => {
                self.reads.was_absent(meant(request), self.process.now);
                gone()
            }
            // The pod that was reviewed is gone: names are given again, UIDs are not.
            PodRead::There(pod) if request.object.as_ref().is_some_and(|object| object.uid != pod.uid) => {
                self.reads.was_absent(meant(request), self.process.now);
                gone()
            }
            PodRead::There(pod) => {
                if let Some(other) = request.precondition.as_ref().filter(|uid| **uid != pod.uid) {
                    no_effect(NoEffect::OtherUid, other)
                } else if pod.terminating {
                    no_effect(NoEffect::Terminating, &pod.uid)
                } else if pod.phase.is_terminal() {
                    no_effect(NoEffect::Terminal, &pod.uid)
                } else {
                    self.decide(id);
                    return;
                }
            }
        };
        self.answer(id, decision);
    }

    /// Decides, and plans which budgets must get the token. Also when the budgets have changed since.
    pub(super) fn decide(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(id) else { return };
        if let Some((key, owner)) = self.unknown_owner(pending.request()) {
            self.read(ReadTarget::Owner(owner.kind, key, owner.uid), id);
            return;
        }
        match self.engine.decide(pending.request(), self.process.now) {
            Decision::Allow(Allow::Agreed { uid, reasons, .. }) => self.plan(id, uid, &reasons),
            Decision::Allow(Allow::NotCovered { uid }) => {
                self.set_pod(id, &uid);
                if let Some(pending) = self.requests.get_mut(id) {
                    pending.set_not_covered(uid);
                }
                self.admit(id);
            }
            decision => match self.inherited(id) {
                Some((uid, reasons)) => self.plan(id, uid, &reasons),
                None => self.answer(id, decision),
            },
        }
    }

    /// The controller that must be known before it is certain which budgets cover the pod.
    fn unknown_owner(&self, request: &Request) -> Option<(ObjectKey, Owner)> {
        let pod = match &request.object {
            Some(object) => self.engine.pod_by_uid(&object.uid),
            None => self.engine.pod(&request.pod),
        };
        self.engine.unknown_owner(&pod?.uid)
    }

    /// The mutation that shows why a held pod is decided afresh: it inherits the pass it was given before.
    fn inherited(&self, id: RequestId) -> Option<(Uid, Vec<(BudgetKey, AllowReason)>)> {
        let pending = self.requests.get(id).filter(|_| self.is_without(ProtocolRule::DecideAfresh))?;
        let uid = pending.request().object.as_ref()?.uid.clone();
        let covering = self.engine.covering(&uid);
        let reasons = covering.into_iter().map(|key| (key, AllowReason::Surplus)).collect::<Vec<_>>();
        self.all_hold(&uid, &reasons).then_some((uid, reasons))
    }

    fn all_hold(&self, uid: &Uid, reasons: &[(BudgetKey, AllowReason)]) -> bool {
        let holds = |key: &BudgetKey| self.engine.ledger(key).is_some_and(|ledger| ledger.holds(uid));
        reasons.iter().all(|(key, _)| holds(key))
    }

    fn plan(&mut self, id: RequestId, uid: Uid, reasons: &[(BudgetKey, AllowReason)]) {
        let pending_passes = self.is_without(ProtocolRule::PendingClaimed);
        let skips = |reason| pending_passes && reason == AllowReason::Pending;
        // Also those that a relabel does not concern: they were considered.
        let covering = self.engine.covering(&uid).into_iter();
        let consulted = covering.map(|key| (key.clone(), self.coverage(&key))).collect();
        let (observing, agreeing): (Vec<_>, Vec<_>) =
            reasons.iter().cloned().partition(|(_, reason)| reason.only_observes());
        let must_agree =
            agreeing.into_iter().filter(|(_, reason)| !skips(*reason)).map(|(key, _)| key).collect();
        let mut plan = Plan { consulted, observing: observing.into_iter().collect(), must_agree };
        if self.is_without(ProtocolRule::SecondRequestWrites) && self.all_hold(&uid, reasons) {
            plan.must_agree.clear();
        }
        self.set_pod(id, &uid);
        if let Some(pending) = self.requests.get_mut(id) {
            pending.set_plan(uid, plan);
        }
        self.advance(id);
    }

    /// The pod that a request is decided for: its token describes the pod that is known here, not that of the review.
    fn set_pod(&mut self, id: RequestId, uid: &Uid) {
        if let (Some(pending), Some(pod)) = (self.requests.get_mut(id), self.engine.pod_by_uid(uid)) {
            pending.set_pod(pod);
        }
    }

    /// Sends a request to the next budget that must agree, or admits it when all have its token.
    pub(super) fn advance(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(id) else { return };
        if let Some(next) = pending.next_budget(|key| self.has_token(pending, key)).cloned() {
            self.budgets.work.add(next.clone());
            self.budgets.states.entry(next).or_default().queue.push(id, self.process.now);
            return;
        }
        // Last thing before the answer: a budget that covers the pod since a moment ago was not consulted.
        let covering = pending.uid().map(|uid| self.engine.covering(uid)).unwrap_or_default();
        // One with a `targetRef` may cover it, if a controller above the pod is not known.
        let changed = covering.iter().any(|key| !pending.was_consulted(key, self.coverage(key)))
            || self.unknown_owner(pending.request()).is_some();
        if changed && !self.is_without(ProtocolRule::RecheckCovering) {
            self.decide(id);
        } else {
            self.admit(id);
        }
    }

    /// Whether the budget that is there now, not one that had its name before, has the token of a request for the pod that is
    /// meant now. An eviction knows a name: when it is decided again, the name may have passed to another pod.
    fn has_token(&self, pending: &PendingRequest, key: &BudgetKey) -> bool {
        let there = self.engine.budget(key).map(|budget| &budget.uid);
        let by_name = self.is_without(ProtocolRule::BudgetByUid);
        let any_pod = self.is_without(ProtocolRule::AgreementByPod);
        pending.agreement(key).is_some_and(|had| {
            (by_name || there.is_none_or(|there| *there == had.budget))
                && (any_pod || pending.uid() == Some(&had.pod))
        })
    }

    fn admit(&mut self, id: RequestId) {
        if self.requests.get(id).is_none_or(|pending| pending.uid().is_none()) {
            return;
        }
        let Some(pending) = self.requests.remove(id) else { return };
        let Some(uid) = pending.uid().cloned() else { return };
        if !pending.request().dry_run {
            let admission = Admission {
                uid: uid.clone(),
                pod: pending.request().pod.name.clone(),
                token: pending.token_id().clone(),
                what: pending.token(self.process.now),
            };
            for key in pending.observing() {
                self.budgets.work.add(key.clone());
                let state = self.budgets.states.entry(key.clone()).or_default();
                state.queue.backfill(admission.token.clone(), Backfill::best_effort(&admission));
            }
            self.recent.add(admission, self.process.now);
        }
        let reasons = pending.reasons();
        let left = reasons.iter().filter(|(_, reason)| *reason == AllowReason::Leaves);
        let departures = left.filter_map(|(key, _)| self.engine.departure(&uid, key)).collect();
        let allow = match reasons.is_empty() {
            true => Allow::NotCovered { uid },
            false => Allow::Agreed { uid, reasons, departures },
        };
        self.outbox.answer(id, Decision::Allow(allow));
    }

    /// Answers a request that is not admitted, and withdraws its tokens.
    pub(super) fn answer(&mut self, id: RequestId, mut decision: Decision) {
        let Some(pending) = self.requests.remove(id) else { return };
        self.name_outdated_definition(&mut decision);
        if let Some(uid) = pending.uid().cloned() {
            let token = pending.token_id().clone();
            for key in pending.into_agreed() {
                self.budgets.work.add(key.clone());
                self.budgets.states.entry(key).or_default().queue.withdraw(token.clone(), uid.clone());
            }
        }
        self.outbox.answer(id, decision);
    }

    /// A budget that is closed because its CustomResourceDefinition drops what is written was not just created.
    fn name_outdated_definition(&self, decision: &mut Decision) {
        let Decision::Deny(denials) = decision else { return };
        for denial in denials.iter_mut().filter(|denial| denial.reason == DenialReason::NotOpen) {
            let state = denial.budget.as_ref().and_then(|key| self.budgets.states.get(key));
            if state.is_some_and(|state| state.opening.is_pruned()) {
                denial.reason = DenialReason::OutdatedDefinition;
            }
        }
    }

    pub(super) fn deny_late_requests(&mut self) {
        for id in self.requests.late(self.process.now) {
            let Some(pending) = self.requests.get(id) else { continue };
            let budget = pending.next_budget(|key| self.has_token(pending, key)).cloned();
            let denial = Denial { budget, reason: DenialReason::Deadline };
            self.answer(id, Decision::Deny(vec![denial]));
        }
    }
}

/// The pod that a request means, as far as the request itself says: by the UID that it requires, else by name.
fn meant(request: &Request) -> Absent {
    let reviewed = request.object.as_ref().map(|object| &object.uid);
    (request.pod.clone(), reviewed.or(request.precondition.as_ref()).cloned())
}

/// There is no such pod. An eviction of it must not reach a new pod of the same name.
fn gone() -> Decision {
    Decision::Allow(Allow::NoEffect { why: NoEffect::Gone, uid: Some(NO_POD.into()) })
}
