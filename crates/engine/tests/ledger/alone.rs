//! One replica by itself, with events by hand that the search does not distinguish: what an answer says, and which list or
//! which end of a pod a budget takes for what.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{Claim, PROTOCOL, Target, Token};
use quorate_engine::decision::{Allow, AllowReason, Decision};
use quorate_engine::facts::{Budget, BudgetKind, Input, Operation, Operations, Phase, Pod, Rules};
use quorate_engine::ledger::{
    Admission, Call, CallId, Event, Output, Replica, Reply, Settings, Step, WriteOutcome,
};
use quorate_engine::request::Request;
use quorate_engine::{Gates, Snapshot};

use super::scenarios::{ALL, keeps};
use super::world::{NAMESPACE, budget_key};
use crate::plain;

pub(super) fn pod(name: &str, app: &str, ready: bool) -> Pod {
    Pod {
        labels: Labels::new([("app", app)]),
        phase: Phase::Running,
        ready,
        ..plain::pod(ObjectKey::new(NAMESPACE, name), Text::from(name), Version(1))
    }
}

/// A budget that is open for what it covers.
pub(super) fn open(rules: Rules) -> Budget {
    let mut budget = Budget {
        key: budget_key("a"),
        uid: Text::from("a"),
        generation: 1,
        version: Version(1),
        spec: Ok(rules),
        ledger: Default::default(),
        gone: Box::default(),
        annotations: Default::default(),
        is_twin: false,
        memory: quorate_engine::facts::Memory::default(),
    };
    reopen(&mut budget);
    budget
}

fn reopen(budget: &mut Budget) {
    let rules = budget.spec.as_ref().unwrap();
    budget.ledger.enforced = Some(quorate_engine::Coverage::of(&budget.uid, rules));
    budget.ledger.enforced_generation = Some(budget.generation);
    budget.ledger.protocol = Some(PROTOCOL);
}

/// A request of an administrator; deletes and updates carry the pod as this one looks.
pub(super) fn request(operation: Operation, pod: &Pod) -> Request {
    Request {
        operation,
        pod: pod.key.clone(),
        object: (operation != Operation::Evict).then(|| pod.into()),
        precondition: None,
        caller: Caller::named("kubernetes-admin"),
        dry_run: false,
        target: Target::default(),
        placement: None,
    }
}

/// A replica and the one budget that the API server stores.
pub(super) struct Alone {
    pub(super) replica: Replica,
    pub(super) stored: Budget,
    pub(super) calls: VecDeque<(CallId, Call)>,
    pub(super) answers: Vec<Decision>,
    pub(super) now: Time,
    /// How long each request may take.
    timeout: Duration,
    asked: u64,
}

impl Alone {
    pub(super) fn new(budget: Budget, pods: &[Pod]) -> Self {
        Self::remembering(Vec::new(), budget, pods)
    }

    /// A replica that takes the place of one that has admitted something.
    pub(super) fn remembering(recent: Vec<(Time, Admission)>, budget: Budget, pods: &[Pod]) -> Self {
        let settings =
            Settings { settle_delay: Duration::ZERO, opens_unguarded: true, ..Settings::new("r0") };
        let mut replica = Replica::new(settings, Gates::default());
        replica.remember(recent);
        let mut alone = Self {
            replica,
            stored: budget,
            calls: VecDeque::new(),
            answers: Vec::new(),
            now: Time(0),
            timeout: Duration::from_secs(10),
            asked: 0,
        };
        alone.step(Event::List(Snapshot::Pods(pods.to_vec(), Version(1))));
        alone.step(Event::Synced);
        alone.step(Event::Serving(true));
        alone.show();
        alone
    }

    pub(super) fn step(&mut self, event: Event) {
        for output in self.replica.step(event, self.now) {
            match output {
                Output::Call(id, call) => self.calls.push_back((id, call)),
                Output::Answer(_, decision) => self.answers.push(decision),
                Output::Acknowledge(_) | Output::Note(_) => {}
            }
        }
    }

    /// The watch shows the budget as it is stored.
    fn show(&mut self) {
        self.step(Event::Fact(Box::new(Input::Budget(self.stored.clone()))));
    }

    pub(super) fn disrupt(&mut self, operation: Operation, pod: &Pod) {
        self.request(request(operation, pod));
    }

    pub(super) fn request(&mut self, request: Request) {
        self.asked += 1;
        self.step(Event::Request {
            id: self.asked,
            request: Box::new(request),
            deadline: self.now.after(self.timeout),
        });
    }

    /// The next call, which must be a list.
    pub(super) fn list(&mut self) -> CallId {
        match self.calls.pop_front() {
            Some((id, Call::ListPods(_))) => id,
            other => panic!("a list is expected, not {other:?}"),
        }
    }

    /// Carries the next call out, which must be a write.
    pub(super) fn write(&mut self) {
        let Some((id, Call::Patch(patch))) = self.calls.pop_front() else { panic!("a write is expected") };
        assert!(patch.apply(&mut self.stored));
        self.stored.version.0 += 1;
        self.step(Event::Reply(id, Reply::Written(WriteOutcome::Done(Box::new(self.stored.clone())))));
    }

    pub(super) fn reasons(&self) -> Vec<AllowReason> {
        match self.answers.as_slice() {
            [Decision::Allow(Allow::Agreed { reasons, .. })] => reasons.iter().map(|(_, g)| *g).collect(),
            other => panic!("the budgets should agree, once: {other:?}"),
        }
    }
}

#[test]
fn an_answer_has_the_reason_of_each_budget() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", false)];
    let mut charged = Alone::new(open(keeps(1, ALL)), &pods);
    charged.disrupt(Operation::Evict, &pods[0]);
    charged.write();
    assert_eq!(charged.reasons(), [AllowReason::Charged]);

    let mut free = Alone::new(open(keeps(3, ALL)), &pods);
    free.disrupt(Operation::Delete, &pods[2]);
    let list = free.list();
    free.step(Event::Reply(list, Reply::Pods(pods.to_vec(), Version(2))));
    free.write();
    assert_eq!(free.reasons(), [AllowReason::Unhealthy]);
}

/// Whether the pod has recovered does not matter: two others are ready.
#[test]
fn a_budget_that_is_met_without_the_pod_needs_no_list() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", false)];
    for operation in [Operation::Evict, Operation::Delete] {
        let mut alone = Alone::new(open(keeps(2, ALL)), &pods);
        alone.disrupt(operation, &pods[2]);
        alone.write();
        assert_eq!(alone.reasons(), [AllowReason::Unhealthy]);
    }
}

#[test]
fn a_pod_that_a_budget_lets_pass_is_still_covered() {
    let pods = [pod("x", "web", true)];
    let rules = Rules { operations: Operations::of(&[Operation::Evict]), ..keeps(1, ALL) };
    let mut alone = Alone::new(open(rules), &pods);
    alone.disrupt(Operation::Delete, &pods[0]);
    assert_eq!(alone.reasons(), [AllowReason::PassesBy]);
}

#[test]
fn an_update_of_a_pod_that_has_ended_is_settled() {
    let mut x = pod("x", "web", true);
    let mut budget = open(keeps(1, ALL));
    let token = Token {
        operation: Operation::Update,
        by: Text::from("alice"),
        at: Time(0),
        target: Target::default(),
    };
    let claim = Claim { pod: x.key.name.clone(), tokens: [("t".into(), token)].into() };
    budget.ledger.claims.insert(x.uid.clone(), claim);
    x.ready = false;
    let mut alone = Alone::new(budget, &[x.clone()]);
    alone.step(Event::Leader(true));
    assert!(alone.calls.is_empty(), "it may still come to its end: {:?}", alone.calls);
    x.phase = Phase::Failed;
    x.version = Version(7);
    alone.step(Event::Fact(Box::new(Input::Pod(x))));
    alone.write();
    assert!(alone.stored.ledger.claims.is_empty());
    assert_eq!(alone.stored.ledger.settled, Version(7), "who has not seen it end may not decide");
}

/// The list was sent for other pods than the budget covers when it comes back.
#[test]
fn a_list_for_an_old_coverage_is_ignored() {
    let web = pod("x", "web", false);
    let db = [pod("y", "db", true), pod("z", "db", true)];
    let pods = [web.clone(), db[0].clone(), db[1].clone()];
    let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
    alone.disrupt(Operation::Delete, &web);
    let list = alone.list();
    alone.stored.spec = Ok(keeps(2, ("app", "db")));
    alone.stored.generation = 2;
    alone.stored.version = Version(5);
    reopen(&mut alone.stored);
    alone.show();
    alone.answers.clear();
    alone.calls.clear();
    alone.step(Event::Reply(list, Reply::Pods(vec![web], Version(9))));
    alone.disrupt(Operation::Delete, &db[0]);
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "y is there: {:?}", alone.answers);
}

/// A budget was deleted and made again while its pods were being listed, and they are being listed for the new one.
#[test]
fn a_list_for_a_budget_that_is_gone_is_not_taken_for_its_successors() {
    let x = pod("x", "web", false);
    let y = pod("y", "web", true);
    let mut alone = Alone::new(open(keeps(2, ALL)), &[x.clone(), y.clone()]);
    alone.disrupt(Operation::Delete, &x);
    let old = alone.list();
    alone.step(Event::Fact(Box::new(Input::BudgetGone(alone.stored.key.clone()))));
    alone.answers.clear();
    alone.stored.uid = Text::from("another");
    alone.stored.version = Version(5);
    reopen(&mut alone.stored);
    alone.show();
    // The new one gets the token of what was admitted without it.
    alone.write();
    alone.disrupt(Operation::Delete, &x);
    let new = alone.list();
    alone.step(Event::Reply(old, Reply::Pods(vec![x.clone(), y.clone()], Version(2))));
    assert!(alone.calls.is_empty(), "the pods as they were before: {:?}", alone.calls);
    alone.step(Event::Reply(new, Reply::Pods(vec![x, y], Version(2))));
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Unhealthy]);
}

/// How the watch of budgets shows that the only one is gone: what comes before the late reply, and what comes after it.
fn ways_to_be_gone() -> [(&'static str, Vec<Event>, Vec<Event>); 3] {
    let kind = BudgetKind::DisruptionBudget;
    let gone = || Event::Fact(Box::new(Input::BudgetGone(budget_key("a"))));
    let at = |version| Event::BudgetsAt(kind, Version(version));
    let none = || Event::List(Snapshot::Budgets(kind, Vec::new()));
    [
        ("deleted", vec![at(3), gone()], vec![]),
        ("deleted, and a bookmark", vec![gone(), at(3)], vec![]),
        ("not in a list whose version follows", vec![none()], vec![at(3)]),
    ]
}

/// The write of a request is done, and the budget is deleted. The watch shows that before the reply comes.
#[test]
fn a_late_reply_does_not_bring_back_a_budget_that_is_gone() {
    for (way, before, after) in ways_to_be_gone() {
        for reads in [false, true] {
            let pods = [pod("x", "web", true), pod("y", "web", true)];
            let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
            alone.disrupt(Operation::Evict, &pods[0]);
            let Some((mut late, Call::Patch(patch))) = alone.calls.pop_front() else {
                panic!("a write is expected")
            };
            assert!(patch.apply(&mut alone.stored));
            alone.stored.version = Version(2);
            let stored = Box::new(alone.stored.clone());
            let reply = if reads {
                alone.step(Event::Reply(late, Reply::Lost));
                match alone.calls.pop_front() {
                    Some((id, Call::GetBudget(_))) => late = id,
                    other => panic!("a read is expected, not {other:?}"),
                }
                Reply::Budget(Some(stored))
            } else {
                Reply::Written(WriteOutcome::Done(stored))
            };
            before.iter().for_each(|event| alone.step(event.clone()));
            alone.step(Event::Reply(late, reply));
            after.iter().for_each(|event| alone.step(event.clone()));
            let known = alone.replica.engine().budget(&budget_key("a"));
            assert_eq!(known, None, "{way}, read: {reads}");
            assert!(matches!(alone.answers.as_slice(), [Decision::Allow(_)]), "{:?}", alone.answers);
            alone.disrupt(Operation::Evict, &pods[1]);
            let answer = alone.answers.last();
            assert!(matches!(answer, Some(Decision::Allow(Allow::NotCovered { .. }))), "{answer:?}");
        }
    }
}

/// As above, and the budget was created again. The watch has not shown that yet.
#[test]
fn a_budget_that_is_newer_than_the_watch_is_taken_from_a_reply() {
    for (way, before, after) in ways_to_be_gone() {
        if !after.is_empty() {
            // Without the version of the list it is not known which of the two is newer. The watch will show it.
            continue;
        }
        let pods = [pod("x", "web", true), pod("y", "web", true)];
        let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
        alone.disrupt(Operation::Evict, &pods[0]);
        let Some((write, Call::Patch(_))) = alone.calls.pop_front() else { panic!("a write is expected") };
        alone.step(Event::Reply(write, Reply::Lost));
        let Some((read, Call::GetBudget(_))) = alone.calls.pop_front() else { panic!("a read is expected") };
        before.into_iter().for_each(|event| alone.step(event));
        alone.stored.uid = Text::from("another");
        alone.stored.version = Version(4);
        reopen(&mut alone.stored);
        alone.step(Event::Reply(read, Reply::Budget(Some(Box::new(alone.stored.clone())))));
        let known = alone.replica.engine().budget(&budget_key("a")).map(|known| known.version);
        assert_eq!(known, Some(Version(4)), "{way}");
        alone.write();
        assert_eq!(alone.reasons(), [AllowReason::Charged]);
    }
}

/// Another replica admits something of the same budget; whether the watch shows that before the late write is refused.
fn comes_too_late(shown: bool) -> Alone {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
    alone.disrupt(Operation::Evict, &pods[0]);
    let Some((late, Call::Patch(_))) = alone.calls.pop_front() else { panic!("a write is expected") };
    let token = Token {
        operation: Operation::Evict,
        by: Text::from("alice"),
        at: Time(0),
        target: Target::default(),
    };
    let claim = Claim { pod: pods[1].key.name.clone(), tokens: [("t".into(), token)].into() };
    alone.stored.ledger.claims.insert(pods[1].uid.clone(), claim);
    alone.stored.ledger.number += 1;
    alone.stored.version.0 += 1;
    if shown {
        alone.show();
    }
    alone.step(Event::Reply(late, Reply::Written(WriteOutcome::Refused)));
    alone
}

#[test]
fn a_refused_write_reads_nothing_if_the_watch_has_shown_the_winner() {
    let mut alone = comes_too_late(true);
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Charged]);
    assert_eq!(alone.stored.ledger.claims.len(), 2, "both stand");
}

#[test]
fn a_refused_write_reads_the_budget_if_the_watch_has_not_shown_the_winner() {
    let mut alone = comes_too_late(false);
    let Some((read, Call::GetBudget(_))) = alone.calls.pop_front() else { panic!("a read is expected") };
    alone.step(Event::Reply(read, Reply::Budget(Some(Box::new(alone.stored.clone())))));
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Charged]);
    assert_eq!(alone.stored.ledger.claims.len(), 2, "both stand");
}

/// How many pods are claimed.
fn claimed(alone: &Alone) -> usize {
    alone.stored.ledger.claims.len()
}

#[test]
fn where_several_came_together_the_next_wait_for_a_lull() {
    let pods: Vec<Pod> =
        ["u", "v", "w", "x", "y", "z"].into_iter().map(|name| pod(name, "web", true)).collect();
    let mut alone = Alone::new(open(keeps(0, ALL)), &pods);
    alone.disrupt(Operation::Evict, &pods[0]);
    assert_eq!(alone.calls.len(), 1, "a request does not wait for others that may never come");
    alone.disrupt(Operation::Evict, &pods[1]);
    alone.disrupt(Operation::Evict, &pods[2]);
    alone.write();
    alone.write();
    assert_eq!(claimed(&alone), 3, "two came while the first was written");

    alone.now = Time(50);
    alone.disrupt(Operation::Evict, &pods[3]);
    assert!(alone.calls.is_empty(), "more are likely to come: {:?}", alone.calls);
    let first = alone.replica.wakes_at().expect("it says how long it waits");
    alone.now = Time(first.0 - 1);
    alone.disrupt(Operation::Evict, &pods[4]);
    alone.now = first;
    alone.step(Event::Tick);
    assert!(alone.calls.is_empty(), "a request has only just arrived: {:?}", alone.calls);
    alone.now = alone.replica.wakes_at().filter(|wake| *wake > first).expect("it waits on");
    alone.step(Event::Tick);
    alone.write();
    assert_eq!((claimed(&alone), alone.answers.len()), (5, 5), "one write for both");
    assert_eq!(alone.replica.wakes_at(), None, "no request waits any more");

    alone.now = Time(5_000);
    alone.disrupt(Operation::Evict, &pods[5]);
    alone.write();
    assert_eq!(claimed(&alone), 6, "the storm is over");
}

#[test]
fn requests_one_after_the_other_are_not_batched() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    let mut alone = Alone::new(open(keeps(0, ALL)), &pods);
    for pod in &pods {
        alone.now = alone.now.after(Duration::from_millis(20));
        alone.disrupt(Operation::Evict, pod);
        alone.write();
    }
    assert_eq!((claimed(&alone), alone.replica.wakes_at()), (3, None));
}

#[test]
fn the_leader_computes_the_status_that_its_write_leaves() {
    let pods = [pod("x", "web", true), pod("y", "web", true)];
    let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
    alone.disrupt(Operation::Evict, &pods[0]);
    let patch = |alone: &Alone| match alone.calls.front() {
        Some((_, Call::Patch(patch))) => patch.clone(),
        other => panic!("a write is expected, not {other:?}"),
    };
    assert_eq!(alone.replica.status_with(&patch(&alone), Time(0)), None, "others tell of it");
    alone.step(Event::Leader(true));
    let status = alone.replica.status_with(&patch(&alone), Time(0)).expect("a status");
    assert_eq!((status.units.allowed, status.disrupted.len()), (0, 1), "what is about to be admitted counts");
    alone.write();
    alone.step(Event::Fact(Box::new(Input::PodGone(pods[0].uid.clone(), Version(9)))));
    let status = alone.replica.status_with(&patch(&alone), Time(0)).expect("a status");
    assert_eq!((status.units.current, status.disrupted.len()), (1, 0), "what is settled is over");
    alone.write();
    assert_eq!(claimed(&alone), 0);
}

#[test]
fn acknowledgements_are_awaited_only_while_a_budget_is_closed() {
    let x = pod("x", "web", true);
    let mut budget = open(keeps(1, ALL));
    let enforced = budget.ledger.enforced.take();
    let mut alone = Alone::new(budget, &[x]);
    assert!(alone.replica.has_closed_budgets());
    alone.stored.ledger.enforced = enforced;
    alone.stored.version.0 += 1;
    alone.show();
    assert!(!alone.replica.has_closed_budgets());
    alone.stored.spec = Ok(keeps(1, ("app", "db")));
    alone.stored.version.0 += 1;
    alone.show();
    assert!(alone.replica.has_closed_budgets(), "it covers other pods than everybody knows");
    alone.step(Event::Fact(Box::new(Input::BudgetGone(alone.stored.key.clone()))));
    assert!(!alone.replica.has_closed_budgets());
}

/// The server has refused the request at its deadline, whatever the replica says later.
#[test]
fn a_reply_after_the_deadline_admits_nothing() {
    let pods = [pod("x", "web", true), pod("y", "web", true)];
    let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
    alone.disrupt(Operation::Evict, &pods[0]);
    alone.now = Time(10_000);
    alone.write();
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    alone.write();
    assert_eq!(claimed(&alone), 0, "its token is withdrawn at once");
}

#[test]
fn a_request_that_arrives_after_its_deadline_is_denied() {
    let pods = [pod("x", "web", true), pod("y", "db", true)];
    let mut alone = Alone::new(open(keeps(0, ALL)), &pods);
    alone.timeout = Duration::ZERO;
    alone.disrupt(Operation::Evict, &pods[0]);
    alone.disrupt(Operation::Evict, &pods[1]);
    assert!(alone.answers.iter().all(|answer| matches!(answer, Decision::Deny(_))), "{:?}", alone.answers);
    assert_eq!((alone.answers.len(), alone.calls.len()), (2, 0));
    assert!(alone.replica.admitted_recently().is_empty());
}

/// etcd is restored from a snapshot that does not have the claims. The process starts over, and remembers what it admitted.
#[test]
fn what_was_admitted_before_the_store_went_back_is_claimed_again() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    let mut before = Alone::new(open(keeps(1, ALL)), &pods);
    before.disrupt(Operation::Evict, &pods[0]);
    before.write();
    let update = Request {
        target: Target { base: Some(Version(1)), ..Target::default() },
        ..request(Operation::Update, &pods[1])
    };
    before.request(update);
    before.write();
    assert_eq!((claimed(&before), before.answers.len()), (2, 2));

    let recent = before.replica.recent_admissions();
    assert_eq!(recent.len(), 2);
    let mut after = Alone::remembering(recent, open(keeps(1, ALL)), &pods);
    after.disrupt(Operation::Evict, &pods[2]);
    after.write();
    let held: Vec<&str> = after.stored.ledger.claims.keys().map(|uid| &**uid).collect();
    // The update was admitted for a version of its pod that does not exist any more: the webhook is called again.
    assert_eq!(held, ["x"]);
    after.write();
    assert_eq!((claimed(&after), after.answers.len()), (2, 1));
}

/// The budget stops deciding deletes while the write of a delete is under way, and decides them again while that delete waits
/// for another budget. It has not got the token of the delete, so it has not agreed to it.
#[test]
fn a_budget_that_let_a_request_pass_without_a_token_is_asked_again() {
    let x = pod("x", "web", true);
    let at = |generation: i64, version: u64, rules: Rules| {
        let mut budget = Budget { generation, version: Version(version), ..open(rules) };
        reopen(&mut budget);
        budget
    };
    let mut alone = Alone::new(at(1, 1, keeps(0, ALL)), std::slice::from_ref(&x));
    let other = Budget { key: budget_key("b"), uid: "b".into(), ..open(keeps(0, ALL)) };
    let other = {
        let mut other = other;
        reopen(&mut other);
        other
    };
    alone.step(Event::Fact(Box::new(Input::Budget(other.clone()))));
    alone.disrupt(Operation::Delete, &x);
    let Some((write, Call::Patch(_))) = alone.calls.pop_front() else { panic!("a write is expected") };
    alone.step(Event::Reply(write, Reply::Written(WriteOutcome::Refused)));
    let Some((get, Call::GetBudget(_))) = alone.calls.pop_front() else { panic!("a read is expected") };
    let evictions = Rules { operations: Operations::of(&[Operation::Evict]), ..keeps(0, ALL) };
    let without = at(2, 5, evictions);
    alone.step(Event::Reply(get, Reply::Budget(Some(Box::new(without)))));
    let (write, patch) = match alone.calls.pop_front() {
        Some((id, Call::Patch(patch))) if patch.budget == budget_key("b") => (id, patch),
        other => panic!("a write to b is expected, not {other:?}"),
    };
    alone.step(Event::Fact(Box::new(Input::Budget(at(3, 6, keeps(0, ALL))))));
    let mut written = other;
    assert!(patch.apply(&mut written));
    written.version = Version(7);
    alone.step(Event::Reply(write, Reply::Written(WriteOutcome::Done(Box::new(written)))));
    assert!(alone.answers.is_empty(), "{:?}", alone.answers);
    let next = alone.calls.pop_front();
    assert!(matches!(&next, Some((_, Call::Patch(patch))) if patch.budget == budget_key("a")), "{next:?}");
}

/// As above, and the budgets are listed before the pods: which of them cover the remembered pods is not known yet.
#[test]
fn what_was_admitted_before_is_claimed_in_whatever_order_the_lists_come() {
    let pods = [pod("x", "web", true), pod("y", "web", true)];
    let mut before = Alone::new(open(keeps(1, ALL)), &pods);
    before.disrupt(Operation::Evict, &pods[0]);
    before.write();
    let mut replica =
        Replica::new(Settings { opens_unguarded: true, ..Settings::new("r1") }, Gates::default());
    replica.remember(before.replica.recent_admissions());
    let budget = Event::Fact(Box::new(Input::Budget(open(keeps(1, ALL)))));
    let listed = Event::List(Snapshot::Pods(pods.to_vec(), Version(1)));
    let events = [budget, listed, Event::Synced, Event::Serving(true)];
    let outputs: Vec<Output> = events.into_iter().flat_map(|event| replica.step(event, Time(0))).collect();
    let claims = |output: &&Output| matches!(output, Output::Call(_, Call::Patch(patch)) if patch.steps.iter().any(|step| matches!(step, Step::PutClaim(uid, _) if **uid == *"x")));
    assert_eq!(outputs.iter().filter(claims).count(), 1, "{outputs:?}");
}
