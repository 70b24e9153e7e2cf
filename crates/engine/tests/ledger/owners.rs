//! A budget that names a workload, and a controller in between that the watch has not shown.
//!
//! The rules behind it: `docs/ledger.md#claims`.

use quorate_engine::Snapshot;
use quorate_engine::basics::{GroupKind, ObjectKey, Version};
use quorate_engine::decision::{Allow, Decision};
use quorate_engine::facts::{Budget, Controller, Counts, Covers, Input, Operation, Owner, Pod, Rules};
use quorate_engine::ledger::{Call, CallId, Event, Reply, Step, WriteOutcome};

use super::alone::{Alone, open, pod};
use super::scenarios::{ALL, keeps};
use super::world::{NAMESPACE, budget_key};

fn kind(name: &str) -> GroupKind {
    GroupKind::new("apps", name)
}

fn owned_by(kind_of: &str, name: &str) -> Owner {
    Owner { uid: name.into(), kind: kind(kind_of), name: name.into(), controller: true }
}

/// The ReplicaSet `web-2` of the Deployment `web`.
fn replica_set() -> Controller {
    Controller {
        key: ObjectKey::new(NAMESPACE, "web-2"),
        uid: "web-2".into(),
        version: Version(1),
        kind: kind("ReplicaSet"),
        replicas: Some(1),
        counts: Counts::Pods,
        owner: Some(owned_by("Deployment", "web")),
        deleting: false,
        recreate: false,
        activity: Default::default(),
        templates: None,
    }
}

/// A replica that has listed ReplicaSets and Deployments, and knows none; and a pod of a ReplicaSet.
fn newly_rolled_out() -> (Alone, Pod) {
    let x = Pod { owners: [owned_by("ReplicaSet", "web-2")].into(), ..pod("x", "web", true) };
    let rules = Rules { covers: Covers::Target(kind("Deployment"), "web".into()), ..keeps(1, ALL) };
    let mut alone = Alone::new(open(rules), std::slice::from_ref(&x));
    for name in ["ReplicaSet", "Deployment"] {
        alone.step(Event::List(Snapshot::Controllers(kind(name), Vec::new())));
    }
    (alone, x)
}

fn read(alone: &mut Alone, name: &str) -> CallId {
    match alone.calls.pop_front() {
        Some((id, Call::GetController(_, key))) if *key.name == *name => id,
        other => panic!("a read of {name} is expected, not {other:?}"),
    }
}

fn is_denied(alone: &Alone) -> bool {
    matches!(alone.answers.as_slice(), [Decision::Deny(_)])
}

#[test]
fn an_owner_that_is_not_known_is_read_before_a_pod_passes_as_not_covered() {
    let (mut alone, x) = newly_rolled_out();
    alone.disrupt(Operation::Evict, &x);
    assert!(alone.answers.is_empty(), "{:?}", alone.answers);
    let get = read(&mut alone, "web-2");
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(replica_set())))));
    // What owns the Deployment may matter too; there is no such Deployment.
    let get = read(&mut alone, "web");
    alone.step(Event::Reply(get, Reply::Controller(None)));
    assert!(is_denied(&alone), "{:?}", alone.answers);
}

#[test]
fn an_owner_that_is_not_there_ends_the_way() {
    for gone in [None, Some(Controller { uid: "another".into(), ..replica_set() })] {
        let (mut alone, x) = newly_rolled_out();
        alone.disrupt(Operation::Evict, &x);
        let get = read(&mut alone, "web-2");
        alone.step(Event::Reply(get, Reply::Controller(gone.map(Box::new))));
        assert!(matches!(alone.answers.as_slice(), [Decision::Allow(Allow::NotCovered { .. })]));
        // It does not come back, so it is not read again.
        alone.disrupt(Operation::Evict, &x);
        assert_eq!((alone.answers.len(), alone.calls.len()), (2, 0));
    }
}

/// The ReplicaSet is read, and deleted. The watch shows its end before the reply comes.
#[test]
fn a_late_reply_does_not_bring_back_an_owner_that_is_gone() {
    let gone_of = |kind_of: &str| Event::List(Snapshot::Controllers(kind(kind_of), Vec::new()));
    let gone = || Event::Fact(Box::new(Input::ControllerGone("web-2".into())));
    for end in [gone(), gone_of("ReplicaSet")] {
        let (mut alone, x) = newly_rolled_out();
        alone.disrupt(Operation::Evict, &x);
        let late = read(&mut alone, "web-2");
        alone.step(Event::Fact(Box::new(Input::Controller(replica_set()))));
        alone.step(end);
        alone.step(Event::Reply(late, Reply::Controller(Some(Box::new(replica_set())))));
        assert!(alone.answers.is_empty(), "{:?}", alone.answers);
        let get = read(&mut alone, "web-2");
        alone.step(Event::Reply(get, Reply::Controller(None)));
        assert!(matches!(alone.answers.as_slice(), [Decision::Allow(Allow::NotCovered { .. })]));
    }
}

#[test]
fn a_read_of_an_owner_without_an_answer_is_sent_again() {
    let (mut alone, x) = newly_rolled_out();
    alone.disrupt(Operation::Evict, &x);
    let get = read(&mut alone, "web-2");
    alone.step(Event::Reply(get, Reply::Lost));
    read(&mut alone, "web-2");
    assert!(alone.answers.is_empty(), "{:?}", alone.answers);
}

#[test]
fn a_kind_that_is_not_watched_ends_the_way() {
    let (mut alone, _) = newly_rolled_out();
    let owner = Owner { kind: GroupKind::new("batch", "Job"), ..owned_by("Job", "night") };
    let y = Pod { owners: [owner].into(), version: Version(2), ..pod("y", "web", true) };
    alone.step(Event::Fact(Box::new(Input::Pod(y.clone()))));
    alone.disrupt(Operation::Evict, &y);
    assert!(matches!(alone.answers.as_slice(), [Decision::Allow(Allow::NotCovered { .. })]));
}

/// A replica that has listed ReplicaSets and Deployments, and the budget of the Deployment, which comes later.
fn before_the_budget(first: Rules) -> (Alone, Pod, Budget) {
    let x = Pod { owners: [owned_by("ReplicaSet", "web-2")].into(), ..pod("x", "web", true) };
    let mut alone = Alone::new(open(first), std::slice::from_ref(&x));
    for name in ["ReplicaSet", "Deployment"] {
        alone.step(Event::List(Snapshot::Controllers(kind(name), Vec::new())));
    }
    let rules = Rules { covers: Covers::Target(kind("Deployment"), "web".into()), ..keeps(1, ALL) };
    let late = Budget { key: budget_key("b"), uid: "b".into(), version: Version(2), ..open(rules) };
    (alone, x, late)
}

#[test]
fn a_new_budget_gets_the_tokens_of_pods_that_it_may_cover() {
    let (mut alone, x, late) = before_the_budget(keeps(1, ("app", "other")));
    alone.disrupt(Operation::Evict, &x);
    assert!(matches!(alone.answers.as_slice(), [Decision::Allow(Allow::NotCovered { .. })]));
    let closed = Budget { ledger: Default::default(), ..late };
    alone.step(Event::Fact(Box::new(Input::Budget(closed))));
    let Some((_, Call::Patch(patch))) = alone.calls.pop_front() else { panic!("a write is expected") };
    let puts = patch.steps.iter().any(|step| matches!(step, Step::PutClaim(uid, _) if **uid == *"x"));
    assert!(puts, "{patch:?}");
}

#[test]
fn a_budget_that_may_cover_the_pod_is_noticed_before_the_answer() {
    let (mut alone, x, late) = before_the_budget(keeps(0, ALL));
    alone.disrupt(Operation::Evict, &x);
    let (write, patch) = match alone.calls.pop_front() {
        Some((id, Call::Patch(patch))) => (id, patch),
        other => panic!("a write is expected, not {other:?}"),
    };
    alone.step(Event::Fact(Box::new(Input::Budget(late))));
    assert!(patch.apply(&mut alone.stored));
    alone.stored.version = Version(3);
    let done = WriteOutcome::Done(Box::new(alone.stored.clone()));
    alone.step(Event::Reply(write, Reply::Written(done)));
    assert!(alone.answers.is_empty(), "{:?}", alone.answers);
    read(&mut alone, "web-2");
}
