//! A request on its way: find the pod, ask every budget, claim in each, answer.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use crate::basics::{ObjectKey, Time, Uid};
use crate::callers::Exempt;
use crate::claims::{Token, TokenId};
use crate::facts::{BudgetKey, Controller, Input, Owner, Pod};
use crate::ledger::desk::Join;
use crate::ledger::messages::{AskId, Call, Output, PodRead, Reply};
use crate::ledger::reads::{Absent, Subject};
use crate::ledger::replica::{Admission, Purpose, Replica};
use crate::ledger::settings::Rule;
use crate::ledger::tend::Opening;
use crate::request::Request;
use crate::verdict::{Allow, Block, Ground, Moot, NOBODY, Reason, Verdict};

/// A request that has not been answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ask {
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
    asked: BTreeMap<BudgetKey, Option<u64>>,
    /// Those of them that only watch, and why they do.
    watching: BTreeMap<BudgetKey, Ground>,
    /// The budgets that have to agree, in the order in which they are claimed.
    route: Vec<BudgetKey>,
    /// Those that have its token.
    pub(super) committed: BTreeMap<BudgetKey, Consent>,
}

/// A budget has the token of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Consent {
    /// Which one: a budget that was made anew has it not.
    pub(super) budget: Uid,
    /// On what ground it agreed.
    pub(super) ground: Ground,
}

/// The ground is told with the answer and nothing else rests on it, so that a search need not tell states apart by it.
impl Hash for Consent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.budget.hash(state);
    }
}

impl Ask {
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
    pub(super) fn ask(&mut self, id: AskId, request: Request, deadline: Time) {
        if let Some(verdict) = self.never_held_up(&request) {
            self.outputs.push(Output::Answer(id, verdict));
            return;
        }
        if let Some(reason) = self.blind() {
            let block = Block { budget: None, reason };
            self.outputs.push(Output::Answer(id, Verdict::Deny(vec![block])));
            return;
        }
        self.sequence += 1;
        let token = self.new_token();
        let ask = Ask {
            request,
            deadline,
            sequence: self.sequence,
            uid: None,
            was_read: false,
            token,
            asked: BTreeMap::new(),
            watching: BTreeMap::new(),
            route: Vec::new(),
            committed: BTreeMap::new(),
        };
        self.asks.insert(id, ask);
        self.find(id);
    }

    fn new_token(&mut self) -> TokenId {
        self.next_token += 1;
        format!("{}-{}", self.settings.name, self.next_token).into()
    }

    /// What is answered even by a replica that sees nothing.
    fn never_held_up(&self, request: &Request) -> Option<Verdict> {
        if let Some(entry) = Exempt::find(&request.caller, request.operation) {
            return Some(Verdict::exempt(entry));
        }
        let terminating = request.object.as_ref().is_some_and(|object| object.terminating);
        terminating.then_some(Verdict::Allow(Allow::Moot { why: Moot::Terminating, uid: None }))
    }

    /// Why this replica cannot decide anything now.
    fn blind(&self) -> Option<Reason> {
        if !self.synced || !self.serving {
            return Some(Reason::NotSynced);
        }
        let silence = self.now.since(self.heard);
        (silence > self.settings.fresh_for).then_some(Reason::NotFresh { seconds: silence.as_secs() })
    }

    /// Finds the pod that a request means: decides where the pods that are known here prove enough, else reads the pod.
    fn find(&mut self, id: AskId) {
        let Some(ask) = self.asks.get(&id) else { return };
        if !self.must_read(ask) {
            self.proceed(id);
        } else if self.reads.is_absent(&meant(&ask.request), self.now) {
            self.finish(id, gone());
        } else {
            self.read(Subject::Pod(ask.request.pod.clone()), id);
        }
    }

    /// Whether the pods that are known here are not enough to say which pod a request means, or what it is like: the pod is
    /// unknown, is about to make room for a successor, is older here than in the review, or is not the one that the caller
    /// insists on. A view that lags must not turn any of these into a free pass.
    fn must_read(&self, ask: &Ask) -> bool {
        if ask.was_read {
            return false;
        }
        let request = &ask.request;
        let known = match &request.object {
            Some(object) => self.engine.pod_by_uid(&object.uid),
            None => self.engine.pod(&request.pod).filter(|pod| !pod.terminating),
        };
        let Some(pod) = known else { return true };
        let is_older = request.object.as_ref().is_some_and(|object| pod.version < object.version);
        let is_another = request.precondition.as_ref().is_some_and(|uid| *uid != pod.uid);
        is_older || (is_another && !self.without(Rule::ReadOther))
    }

    /// Has a request wait for a read.
    fn read(&mut self, subject: Subject, id: AskId) {
        self.reads.want(subject, id);
        self.send_reads();
    }

    pub(super) fn send_reads(&mut self) {
        while let Some(subject) = self.reads.next(self.sequence, |id| self.asks.contains_key(&id)) {
            let call = match &subject {
                Subject::Pod(key) => Call::GetPod(key.clone()),
                Subject::Owner(kind, key, _) => Call::GetController(kind.clone(), key.clone()),
            };
            self.call(call, Purpose::Find(subject));
        }
    }

    /// What requests waited for was read.
    pub(super) fn found(&mut self, subject: &Subject, reply: &Reply) {
        let Some(read) = self.reads.done(subject) else { return };
        if let Reply::Pod(PodRead::There(pod)) = reply
            && !pod.terminating
            && !pod.phase.is_terminal()
        {
            let changes = self.engine.learn(Pod::clone(pod), self.now);
            self.note_changes(changes);
        }
        if let (Reply::Controller(shown), Subject::Owner(_, _, uid)) = (reply, subject) {
            self.learn_owner(shown.as_deref(), uid);
        }
        for id in &read.asks {
            let Some(ask) = self.asks.get_mut(id) else { continue };
            match reply {
                // It says nothing of what happened between it and a request that came later.
                Reply::Pod(shown) if read.is_later_than(ask.sequence) => {
                    ask.was_read = true;
                    self.resolve(*id, shown);
                }
                Reply::Controller(_) => self.proceed(*id),
                // No answer: the deadline of the request bounds how often this is tried.
                _ => self.find(*id),
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
    fn resolve(&mut self, id: AskId, shown: &PodRead) {
        let Some(ask) = self.asks.get(&id) else { return };
        let request = &ask.request;
        let verdict = match shown {
            PodRead::Gone => {
                self.reads.was_absent(meant(request), self.now);
                gone()
            }
            PodRead::There(pod) => {
                let is_meant = |uid: &Uid| *uid == pod.uid;
                let moot = |why, uid: &Uid| Verdict::Allow(Allow::Moot { why, uid: Some(uid.clone()) });
                if request.object.as_ref().is_some_and(|object| !is_meant(&object.uid)) {
                    // The one that was reviewed is gone: names are given again, UIDs are not.
                    self.reads.was_absent(meant(request), self.now);
                    gone()
                } else if let Some(other) = request.precondition.as_ref().filter(|uid| !is_meant(uid)) {
                    moot(Moot::OtherUid, other)
                } else if pod.terminating {
                    moot(Moot::Terminating, &pod.uid)
                } else if pod.phase.is_terminal() {
                    moot(Moot::Terminal, &pod.uid)
                } else {
                    self.proceed(id);
                    return;
                }
            }
        };
        self.finish(id, verdict);
    }

    /// Decides, and sends the ask to the first budget that has to agree. Also when the budgets have changed since.
    pub(super) fn proceed(&mut self, id: AskId) {
        let Some(ask) = self.asks.get(&id) else { return };
        if let Some((key, owner)) = self.unknown_owner(&ask.request) {
            self.read(Subject::Owner(owner.kind, key, owner.uid), id);
            return;
        }
        match self.engine.decide(&ask.request, self.now) {
            Verdict::Allow(Allow::Agreed { uid, grounds }) => self.route(id, uid, &grounds),
            Verdict::Allow(Allow::NotCovered { uid }) => {
                if let Some(ask) = self.asks.get_mut(&id) {
                    ask.uid = Some(uid);
                }
                self.admit(id);
            }
            verdict => match self.inherited(id) {
                Some((uid, grounds)) => self.route(id, uid, &grounds),
                None => self.finish(id, verdict),
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
    fn inherited(&self, id: AskId) -> Option<(Uid, Vec<(BudgetKey, Ground)>)> {
        let ask = self.asks.get(&id).filter(|_| self.without(Rule::DecideAfresh))?;
        let uid = ask.request.object.as_ref()?.uid.clone();
        let covering = self.engine.covering(&uid);
        let held = |key: &BudgetKey| self.engine.budget(key).is_some_and(|budget| budget.ledger.holds(&uid));
        let grounds = covering.into_iter().map(|key| (key, Ground::Surplus)).collect::<Vec<_>>();
        grounds.iter().all(|(key, _)| held(key)).then_some((uid, grounds))
    }

    fn route(&mut self, id: AskId, uid: Uid, grounds: &[(BudgetKey, Ground)]) {
        let only_watches = |ground: Ground| matches!(ground, Ground::PassesBy | Ground::Observed);
        let pending_passes = self.without(Rule::PendingClaimed);
        let second_passes = self.without(Rule::SecondAskWrites);
        let held = grounds
            .iter()
            .all(|(key, _)| self.engine.budget(key).is_some_and(|budget| budget.ledger.holds(&uid)));
        let asked = grounds.iter().map(|(key, _)| (key.clone(), self.covered_by(key))).collect();
        let Some(ask) = self.asks.get_mut(&id) else { return };
        ask.uid = Some(uid);
        ask.asked = asked;
        ask.watching = grounds.iter().filter(|(_, ground)| only_watches(*ground)).cloned().collect();
        ask.route = grounds
            .iter()
            .filter(|(_, ground)| !only_watches(*ground))
            .filter(|(_, ground)| !(pending_passes && *ground == Ground::Pending))
            .map(|(key, _)| key.clone())
            .collect();
        if second_passes && held {
            ask.route.clear();
        }
        self.go_on(id);
    }

    /// Sends an ask to the next budget, or answers it when it has been to all of them.
    pub(super) fn go_on(&mut self, id: AskId) {
        let Some(ask) = self.asks.get(&id) else { return };
        let next = ask.route.iter().find(|key| !self.has_token(ask, key)).cloned();
        if let Some(next) = next {
            self.due.insert(next.clone());
            let desk = self.desks.entry(next).or_default();
            desk.queue.push_back(id);
            desk.crowd.enter(self.now);
            return;
        }
        // Last thing before the answer: a budget that covers the pod since a moment ago has not been asked.
        let covering = ask.uid.as_ref().map(|uid| self.engine.covering(uid)).unwrap_or_default();
        let news = covering.iter().any(|key| ask.asked.get(key) != Some(&self.covered_by(key)));
        if news && !self.without(Rule::RecheckCovering) {
            self.proceed(id);
        } else {
            self.admit(id);
        }
    }

    /// What a budget covers, as this replica sees it now.
    fn covered_by(&self, key: &BudgetKey) -> Option<u64> {
        self.desks.get(key).and_then(|desk| desk.coverage)
    }

    /// Whether the budget that is there now, not one that had its name before, has the token of an ask.
    fn has_token(&self, ask: &Ask, key: &BudgetKey) -> bool {
        let there = self.engine.budget(key).map(|budget| &budget.uid);
        let by_name = self.without(Rule::BudgetByUid);
        ask.committed.get(key).is_some_and(|had| by_name || there.is_none_or(|there| *there == had.budget))
    }

    fn admit(&mut self, id: AskId) {
        let Some(ask) = self.asks.get(&id) else { return };
        let Some(uid) = ask.uid.clone() else { return };
        let agreed = ask.committed.iter().filter(|(key, _)| ask.route.contains(key));
        let grounds: BTreeMap<BudgetKey, Ground> = agreed
            .map(|(key, consent)| (key.clone(), consent.ground))
            .chain(ask.watching.iter().map(|(key, ground)| (key.clone(), *ground)))
            .collect();
        if !ask.request.dry_run {
            let what = ask.token(self.now);
            let admission = Admission {
                uid: uid.clone(),
                pod: ask.request.pod.clone(),
                token: ask.token.clone(),
                what: what.clone(),
                at: self.now,
            };
            // Budgets that only watch are told too, but nobody waits for that.
            let watching: Vec<BudgetKey> = ask.watching.keys().cloned().collect();
            let join = Join { uid: uid.clone(), pod: admission.pod.name.clone(), what, binding: false };
            for key in watching {
                self.due.insert(key.clone());
                self.desks.entry(key).or_default().joins.insert(admission.token.clone(), join.clone());
            }
            self.memory.push_back(admission);
        }
        let verdict = if grounds.is_empty() {
            Verdict::Allow(Allow::NotCovered { uid })
        } else {
            Verdict::Allow(Allow::Agreed { uid, grounds: grounds.into_iter().collect() })
        };
        self.asks.remove(&id);
        self.outputs.push(Output::Answer(id, verdict));
    }

    /// Answers an ask that was not admitted, and takes back what it had claimed.
    pub(super) fn finish(&mut self, id: AskId, mut verdict: Verdict) {
        let Some(ask) = self.asks.remove(&id) else { return };
        self.name_the_definition(&mut verdict);
        if let Some(uid) = ask.uid {
            for key in ask.committed.into_keys() {
                self.due.insert(key.clone());
                self.desks.entry(key).or_default().withdrawals.insert(ask.token.clone(), uid.clone());
            }
        }
        self.outputs.push(Output::Answer(id, verdict));
    }

    /// A budget that is closed because nothing that is written to it stays is not one that was just made.
    fn name_the_definition(&self, verdict: &mut Verdict) {
        let Verdict::Deny(blocks) = verdict else { return };
        for block in blocks.iter_mut().filter(|block| block.reason == Reason::NotOpen) {
            let desk = block.budget.as_ref().and_then(|key| self.desks.get(key));
            if desk.is_some_and(|desk| matches!(desk.opening, Some(Opening::Pruned(_)))) {
                block.reason = Reason::OutdatedDefinition;
            }
        }
    }

    pub(super) fn give_up_late_asks(&mut self) {
        let late: Vec<AskId> =
            self.asks.iter().filter(|(_, ask)| self.now >= ask.deadline).map(|(id, _)| *id).collect();
        for id in late {
            let waiting = self
                .asks
                .get(&id)
                .and_then(|ask| ask.route.iter().find(|key| !self.has_token(ask, key)).cloned());
            self.finish(id, Verdict::Deny(vec![Block { budget: waiting, reason: Reason::Deadline }]));
        }
    }
}

/// The pod that a request means, as far as the request itself says: by the UID that it insists on, else by name.
fn meant(request: &Request) -> Absent {
    let reviewed = request.object.as_ref().map(|object| &object.uid);
    (request.pod.clone(), reviewed.or(request.precondition.as_ref()).cloned())
}

/// There is no such pod. An eviction of it must not strike one that takes the name later.
fn gone() -> Verdict {
    Verdict::Allow(Allow::Moot { why: Moot::Gone, uid: Some(NOBODY.into()) })
}
