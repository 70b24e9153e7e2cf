//! A request on its way: find the pod, ask every budget, claim in each, answer.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use crate::basics::{ObjectKey, Time, Uid};
use crate::callers::Exempt;
use crate::claims::{Token, TokenId};
use crate::decision::{Allow, AllowReason, Decision, Denial, DenialReason, NO_POD, NoEffect};
use crate::facts::{BudgetKey, Controller, Input, Owner, Pod};
use crate::ledger::commit::Backfill;
use crate::ledger::leader::Opening;
use crate::ledger::messages::{Call, Output, PodRead, Reply, RequestId};
use crate::ledger::reads::{Absent, ReadTarget};
use crate::ledger::replica::{Purpose, RecentAdmission, Replica};
use crate::ledger::settings::ProtocolRule;
use crate::request::Request;

/// A request that has not been answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingRequest {
    pub(super) request: Request,
    pub(super) deadline: Time,
    /// When it arrived, by the replica's own count.
    pub(super) sequence: u64,
    /// The pod that is meant, once that is known.
    pub(super) uid: Option<Uid>,
    /// The pod was read after the request arrived: what is known here is no older than the request.
    was_read: bool,
    pub(super) token: TokenId,
    /// The budgets that were asked, those included that only watch, and what each covered then.
    consulted: BTreeMap<BudgetKey, Option<u64>>,
    /// Those of them that only watch, and why they do.
    observing: BTreeMap<BudgetKey, AllowReason>,
    /// The budgets that have to agree, in the order in which they are claimed.
    must_agree: Vec<BudgetKey>,
    /// Those that have its token.
    pub(super) committed: BTreeMap<BudgetKey, Agreement>,
}

/// A budget has the token of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// Which one: a budget that was made anew has it not.
    pub(super) budget: Uid,
    /// On what ground it agreed.
    pub(super) reason: AllowReason,
}

/// The ground is told with the answer and nothing else rests on it, so that a search need not tell states apart by it.
impl Hash for Agreement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.budget.hash(state);
    }
}

impl PendingRequest {
    pub(super) fn token(&self, now: Time) -> Token {
        Token {
            operation: self.request.operation,
            by: self.request.caller.user.clone(),
            at: now,
            target: self.request.target.clone(),
        }
    }
}

impl Replica {
    pub(super) fn receive(&mut self, id: RequestId, request: Request, deadline: Time) {
        if let Some(decision) = self.always_passes(&request) {
            self.outputs.push(Output::Answer(id, decision));
            return;
        }
        if let Some(reason) = self.cannot_decide() {
            let denial = Denial { budget: None, reason };
            self.outputs.push(Output::Answer(id, Decision::Deny(vec![denial])));
            return;
        }
        self.sequence += 1;
        let token = self.new_token();
        let pending = PendingRequest {
            request,
            deadline,
            sequence: self.sequence,
            uid: None,
            was_read: false,
            token,
            consulted: BTreeMap::new(),
            observing: BTreeMap::new(),
            must_agree: Vec::new(),
            committed: BTreeMap::new(),
        };
        self.requests.insert(id, pending);
        self.locate(id);
    }

    fn new_token(&mut self) -> TokenId {
        self.next_token += 1;
        format!("{}-{}", self.settings.name, self.next_token).into()
    }

    /// What is answered even by a replica that sees nothing.
    fn always_passes(&self, request: &Request) -> Option<Decision> {
        if let Some(entry) = Exempt::find(&request.caller, request.operation) {
            return Some(Decision::exempt(entry));
        }
        let terminating = request.object.as_ref().is_some_and(|object| object.terminating);
        terminating.then_some(Decision::Allow(Allow::NoEffect { why: NoEffect::Terminating, uid: None }))
    }

    /// Why this replica cannot decide anything now.
    fn cannot_decide(&self) -> Option<DenialReason> {
        if !self.synced || !self.serving {
            return Some(DenialReason::NotSynced);
        }
        let silence = self.now.since(self.last_pod_event);
        (silence > self.settings.fresh_for).then_some(DenialReason::NotFresh { seconds: silence.as_secs() })
    }

    /// Finds the pod that a request means: decides where the pods that are known here prove enough, else reads the pod.
    fn locate(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(&id) else { return };
        if !self.must_read(pending) {
            self.decide(id);
        } else if self.reads.is_absent(&meant(&pending.request), self.now) {
            self.finish(id, gone());
        } else {
            self.read(ReadTarget::Pod(pending.request.pod.clone()), id);
        }
    }

    /// Whether the pods that are known here are not enough to say which pod a request means, or what it is like: the pod is
    /// unknown, is about to make room for a successor, is older here than in the review, or is not the one that the caller
    /// insists on. A view that lags must not turn any of these into a free pass.
    fn must_read(&self, pending: &PendingRequest) -> bool {
        if pending.was_read {
            return false;
        }
        let request = &pending.request;
        let known = match &request.object {
            Some(object) => self.engine.pod_by_uid(&object.uid),
            None => self.engine.pod(&request.pod).filter(|pod| !pod.terminating),
        };
        let Some(pod) = known else { return true };
        let is_older = request.object.as_ref().is_some_and(|object| pod.version < object.version);
        let is_another = request.precondition.as_ref().is_some_and(|uid| *uid != pod.uid);
        is_older || (is_another && !self.without(ProtocolRule::ReadOther))
    }

    /// Has a request wait for a read.
    fn read(&mut self, target: ReadTarget, id: RequestId) {
        self.reads.want(target, id);
        self.send_reads();
    }

    pub(super) fn send_reads(&mut self) {
        while let Some(target) = self.reads.next(self.sequence, |id| self.requests.contains_key(&id)) {
            let call = match &target {
                ReadTarget::Pod(key) => Call::GetPod(key.clone()),
                ReadTarget::Owner(kind, key, _) => Call::GetController(kind.clone(), key.clone()),
            };
            self.call(call, Purpose::Read(target));
        }
    }

    /// What requests waited for was read.
    pub(super) fn object_read(&mut self, target: &ReadTarget, reply: &Reply) {
        let Some(read) = self.reads.done(target) else { return };
        if let Reply::Pod(PodRead::There(pod)) = reply
            && !pod.terminating
            && !pod.phase.is_terminal()
        {
            let changes = self.engine.learn(Pod::clone(pod), self.now);
            self.note_changes(changes);
        }
        if let (Reply::Controller(shown), ReadTarget::Owner(_, _, uid)) = (reply, target) {
            self.learn_owner(shown.as_deref(), uid);
        }
        for id in &read.requests {
            let Some(pending) = self.requests.get_mut(id) else { continue };
            match reply {
                // It says nothing of what happened between it and a request that came later.
                Reply::Pod(shown) if read.is_later_than(pending.sequence) => {
                    pending.was_read = true;
                    self.resolve(*id, shown);
                }
                Reply::Controller(_) => self.decide(*id),
                // No answer: the deadline of the request bounds how often this is tried.
                _ => self.locate(*id),
            }
        }
        self.send_reads();
    }

    /// A controller above a pod was read. One that is not there does not come back: its UID is not given again.
    fn learn_owner(&mut self, shown: Option<&Controller>, uid: &Uid) {
        match shown.filter(|shown| shown.uid == *uid) {
            Some(owner) => {
                let changes = self.engine.apply(Input::Controller(owner.clone()), self.now);
                self.note_changes(changes);
            }
            None => self.engine.owner_is_absent(uid.clone()),
        }
    }

    /// The pod that a request names was read after the request arrived.
    fn resolve(&mut self, id: RequestId, shown: &PodRead) {
        let Some(pending) = self.requests.get(&id) else { return };
        let request = &pending.request;
        let decision = match shown {
            PodRead::Gone => {
                self.reads.was_absent(meant(request), self.now);
                gone()
            }
            PodRead::There(pod) => {
                let is_meant = |uid: &Uid| *uid == pod.uid;
                let no_effect =
                    |why, uid: &Uid| Decision::Allow(Allow::NoEffect { why, uid: Some(uid.clone()) });
                if request.object.as_ref().is_some_and(|object| !is_meant(&object.uid)) {
                    // The one that was reviewed is gone: names are given again, UIDs are not.
                    self.reads.was_absent(meant(request), self.now);
                    gone()
                } else if let Some(other) = request.precondition.as_ref().filter(|uid| !is_meant(uid)) {
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
        self.finish(id, decision);
    }

    /// Decides, and sends the ask to the first budget that has to agree. Also when the budgets have changed since.
    pub(super) fn decide(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(&id) else { return };
        if let Some((key, owner)) = self.unknown_owner(&pending.request) {
            self.read(ReadTarget::Owner(owner.kind, key, owner.uid), id);
            return;
        }
        match self.engine.decide(&pending.request, self.now) {
            Decision::Allow(Allow::Agreed { uid, reasons }) => self.plan(id, uid, &reasons),
            Decision::Allow(Allow::NotCovered { uid }) => {
                if let Some(pending) = self.requests.get_mut(&id) {
                    pending.uid = Some(uid);
                }
                self.admit(id);
            }
            decision => match self.inherited(id) {
                Some((uid, reasons)) => self.plan(id, uid, &reasons),
                None => self.finish(id, decision),
            },
        }
    }

    /// The controller that must be known before anybody can say which budgets cover the pod.
    fn unknown_owner(&self, request: &Request) -> Option<(ObjectKey, Owner)> {
        let pod = match &request.object {
            Some(object) => self.engine.pod_by_uid(&object.uid),
            None => self.engine.pod(&request.pod),
        };
        self.engine.unknown_owner(&pod?.uid)
    }

    /// For the test that shows why a held pod is decided afresh: it inherits the pass it was given before.
    fn inherited(&self, id: RequestId) -> Option<(Uid, Vec<(BudgetKey, AllowReason)>)> {
        let pending = self.requests.get(&id).filter(|_| self.without(ProtocolRule::DecideAfresh))?;
        let uid = pending.request.object.as_ref()?.uid.clone();
        let covering = self.engine.covering(&uid);
        let held = |key: &BudgetKey| self.engine.budget(key).is_some_and(|budget| budget.ledger.holds(&uid));
        let reasons = covering.into_iter().map(|key| (key, AllowReason::Surplus)).collect::<Vec<_>>();
        reasons.iter().all(|(key, _)| held(key)).then_some((uid, reasons))
    }

    fn plan(&mut self, id: RequestId, uid: Uid, reasons: &[(BudgetKey, AllowReason)]) {
        let only_watches =
            |reason: AllowReason| matches!(reason, AllowReason::PassesBy | AllowReason::Observed);
        let pending_passes = self.without(ProtocolRule::PendingClaimed);
        let second_passes = self.without(ProtocolRule::SecondAskWrites);
        let held = reasons
            .iter()
            .all(|(key, _)| self.engine.budget(key).is_some_and(|budget| budget.ledger.holds(&uid)));
        let consulted = reasons.iter().map(|(key, _)| (key.clone(), self.covered_by(key))).collect();
        let Some(pending) = self.requests.get_mut(&id) else { return };
        pending.uid = Some(uid);
        pending.consulted = consulted;
        pending.observing = reasons.iter().filter(|(_, reason)| only_watches(*reason)).cloned().collect();
        pending.must_agree = reasons
            .iter()
            .filter(|(_, reason)| !only_watches(*reason))
            .filter(|(_, reason)| !(pending_passes && *reason == AllowReason::Pending))
            .map(|(key, _)| key.clone())
            .collect();
        if second_passes && held {
            pending.must_agree.clear();
        }
        self.advance(id);
    }

    /// Sends an ask to the next budget, or answers it when it has been to all of them.
    pub(super) fn advance(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(&id) else { return };
        let next = pending.must_agree.iter().find(|key| !self.has_token(pending, key)).cloned();
        if let Some(next) = next {
            self.due.insert(next.clone());
            let queue = self.queues.entry(next).or_default();
            queue.waiting.push_back(id);
            queue.window.add(self.now);
            return;
        }
        // Last thing before the answer: a budget that covers the pod since a moment ago has not been asked.
        let covering = pending.uid.as_ref().map(|uid| self.engine.covering(uid)).unwrap_or_default();
        let news = covering.iter().any(|key| pending.consulted.get(key) != Some(&self.covered_by(key)));
        if news && !self.without(ProtocolRule::RecheckCovering) {
            self.decide(id);
        } else {
            self.admit(id);
        }
    }

    /// What a budget covers, as this replica sees it now.
    fn covered_by(&self, key: &BudgetKey) -> Option<u64> {
        self.queues.get(key).and_then(|queue| queue.coverage)
    }

    /// Whether the budget that is there now, not one that had its name before, has the token of an ask.
    fn has_token(&self, pending: &PendingRequest, key: &BudgetKey) -> bool {
        let there = self.engine.budget(key).map(|budget| &budget.uid);
        let by_name = self.without(ProtocolRule::BudgetByUid);
        pending
            .committed
            .get(key)
            .is_some_and(|had| by_name || there.is_none_or(|there| *there == had.budget))
    }

    fn admit(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get(&id) else { return };
        let Some(uid) = pending.uid.clone() else { return };
        let agreed = pending.committed.iter().filter(|(key, _)| pending.must_agree.contains(key));
        let reasons: BTreeMap<BudgetKey, AllowReason> = agreed
            .map(|(key, agreement)| (key.clone(), agreement.reason))
            .chain(pending.observing.iter().map(|(key, reason)| (key.clone(), *reason)))
            .collect();
        if !pending.request.dry_run {
            let what = pending.token(self.now);
            let admission = RecentAdmission {
                uid: uid.clone(),
                pod: pending.request.pod.clone(),
                token: pending.token.clone(),
                what: what.clone(),
                at: self.now,
            };
            // Budgets that only watch are told too, but nobody waits for that.
            let observing: Vec<BudgetKey> = pending.observing.keys().cloned().collect();
            let backfill =
                Backfill { uid: uid.clone(), pod: admission.pod.name.clone(), what, binding: false };
            for key in observing {
                self.due.insert(key.clone());
                self.queues
                    .entry(key)
                    .or_default()
                    .backfills
                    .insert(admission.token.clone(), backfill.clone());
            }
            self.recent.push_back(admission);
        }
        let decision = if reasons.is_empty() {
            Decision::Allow(Allow::NotCovered { uid })
        } else {
            Decision::Allow(Allow::Agreed { uid, reasons: reasons.into_iter().collect() })
        };
        self.requests.remove(&id);
        self.outputs.push(Output::Answer(id, decision));
    }

    /// Answers an ask that was not admitted, and takes back what it had claimed.
    pub(super) fn finish(&mut self, id: RequestId, mut decision: Decision) {
        let Some(pending) = self.requests.remove(&id) else { return };
        self.name_outdated_definition(&mut decision);
        if let Some(uid) = pending.uid {
            for key in pending.committed.into_keys() {
                self.due.insert(key.clone());
                self.queues.entry(key).or_default().withdrawals.insert(pending.token.clone(), uid.clone());
            }
        }
        self.outputs.push(Output::Answer(id, decision));
    }

    /// A budget that is closed because nothing that is written to it stays is not one that was just made.
    fn name_outdated_definition(&self, decision: &mut Decision) {
        let Decision::Deny(denials) = decision else { return };
        for denial in denials.iter_mut().filter(|denial| denial.reason == DenialReason::NotOpen) {
            let queue = denial.budget.as_ref().and_then(|key| self.queues.get(key));
            if queue.is_some_and(|queue| matches!(queue.opening, Some(Opening::Pruned(_)))) {
                denial.reason = DenialReason::OutdatedDefinition;
            }
        }
    }

    pub(super) fn reject_late_requests(&mut self) {
        let late: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(_, pending)| self.now >= pending.deadline)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let waiting = self.requests.get(&id).and_then(|pending| {
                pending.must_agree.iter().find(|key| !self.has_token(pending, key)).cloned()
            });
            self.finish(id, Decision::Deny(vec![Denial { budget: waiting, reason: DenialReason::Deadline }]));
        }
    }
}

/// The pod that a request means, as far as the request itself says: by the UID that it insists on, else by name.
fn meant(request: &Request) -> Absent {
    let reviewed = request.object.as_ref().map(|object| &object.uid);
    (request.pod.clone(), reviewed.or(request.precondition.as_ref()).cloned())
}

/// There is no such pod. An eviction of it must not strike one that takes the name later.
fn gone() -> Decision {
    Decision::Allow(Allow::NoEffect { why: NoEffect::Gone, uid: Some(NO_POD.into()) })
}
