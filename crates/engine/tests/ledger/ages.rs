//! What a replica knows of each kind has an age of its own.
//!
//! The rules behind it: `docs/ledger.md#ages`.

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Time, Version};
use quorate_engine::decision::{AllowReason, Decision, DenialReason};
use quorate_engine::facts::{Controller, Counts, Input, Operation, Owner, Phase, Pod, Rules, Units};
use quorate_engine::ledger::{Call, Event, Reply};

use super::alone::{Alone, open, pod};
use super::scenarios::{ALL, keeps};
use super::world::NAMESPACE;

const INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";

fn kind(group: &str, kind: &str) -> GroupKind {
    GroupKind::new(group, kind)
}

fn lws() -> GroupKind {
    kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
}

fn controller(kind: GroupKind, replicas: u32, version: u64) -> Controller {
    let groups = kind == lws();
    Controller {
        key: ObjectKey::new(NAMESPACE, "web"),
        uid: "web".into(),
        version: Version(version),
        kind,
        replicas: Some(replicas),
        counts: if groups { Counts::Groups { size: Some(1), falls_whole: true } } else { Counts::Pods },
        owner: None,
        deleting: false,
        recreate: false,
        activity: Default::default(),
        templates: None,
    }
}

fn group(index: &str) -> Pod {
    let labels = [("app", "web"), ("leaderworkerset.sigs.k8s.io/name", "web"), (INDEX, index)];
    Pod { labels: Labels::new(labels), ..pod(&format!("web-{index}"), "web", true) }
}

/// Three groups of a set of which the watch says that it wants two.
fn scaled_up_unseen() -> (Alone, Pod) {
    let pods = ["0", "1", "2"].map(group);
    let rules = Rules { units: Units::Label { key: INDEX.into(), min_ready: None }, ..keeps(2, ALL) };
    let mut alone = Alone::new(open(rules), &pods);
    alone.step(Event::Fact(Box::new(Input::Controller(controller(lws(), 2, 5)))));
    alone.step(Event::Heard(lws(), Time(0)));
    (alone, pods[2].clone())
}

/// Time passes, and the pod watch goes on.
fn pass(alone: &mut Alone, seconds: i64) {
    alone.now = Time(alone.now.0 + seconds * 1000);
    alone.step(Event::Fact(Box::new(Input::PodsAt(Version(1)))));
}

fn stale(decision: &Decision) -> Option<(String, u64)> {
    match decision {
        Decision::Deny(denials) => denials.iter().find_map(|denial| match &denial.reason {
            DenialReason::Stale { kind, seconds } => Some((kind.to_string(), *seconds)),
            _ => None,
        }),
        Decision::Allow(_) => None,
    }
}

const LWS: &str = "LeaderWorkerSet.leaderworkerset.x-k8s.io";

#[test]
fn a_stale_kind_denies_until_it_is_heard_of() {
    let (mut alone, surge) = scaled_up_unseen();
    pass(&mut alone, 91);
    alone.disrupt(Operation::Evict, &surge);
    assert_eq!(alone.answers.pop().as_ref().and_then(stale), Some((LWS.to_owned(), 91)));
    assert!(alone.calls.is_empty(), "nothing is read or written: {:?}", alone.calls);
    // A list that was requested before the limit was over.
    alone.step(Event::Heard(lws(), Time(500)));
    alone.disrupt(Operation::Evict, &surge);
    assert_eq!(alone.answers.pop().as_ref().and_then(stale), Some((LWS.to_owned(), 90)));
    // The future is not known.
    alone.step(Event::Heard(lws(), Time(1_000_000_000)));
    alone.disrupt(Operation::Evict, &surge);
    assert!(matches!(alone.calls.pop_front(), Some((_, Call::GetController(..)))));
    pass(&mut alone, 91);
    alone.answers.clear();
    alone.disrupt(Operation::Evict, &surge);
    assert_eq!(alone.answers.iter().find_map(stale), Some((LWS.to_owned(), 91)));
}

/// A read of one object says nothing about the others.
#[test]
fn a_read_does_not_make_a_kind_fresh() {
    let (mut alone, surge) = scaled_up_unseen();
    pass(&mut alone, 80);
    alone.disrupt(Operation::Evict, &surge);
    let Some((get, Call::GetController(..))) = alone.calls.pop_front() else { panic!("a read is expected") };
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(controller(lws(), 2, 5))))));
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Surge]);
    pass(&mut alone, 11);
    alone.answers.clear();
    alone.disrupt(Operation::Evict, &group("1"));
    assert_eq!(alone.answers.iter().find_map(stale), Some((LWS.to_owned(), 91)));
}

/// A request that waits while a kind becomes stale is decided again before it is written.
#[test]
fn a_request_that_waits_is_checked_again() {
    let (mut alone, surge) = scaled_up_unseen();
    pass(&mut alone, 89);
    alone.disrupt(Operation::Evict, &surge);
    let Some((get, Call::GetController(..))) = alone.calls.pop_front() else { panic!("a read is expected") };
    pass(&mut alone, 2);
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(controller(lws(), 2, 5))))));
    assert_eq!(alone.answers.iter().find_map(stale), Some((LWS.to_owned(), 91)));
}

/// What is known of a kind that seems to be gone is stale at once, until it is heard of or not watched any more.
#[test]
fn a_kind_in_doubt_is_stale() {
    let set =
        Owner { uid: "web".into(), kind: kind("apps", "StatefulSet"), name: "web".into(), controller: true };
    let pods = ["x", "y"].map(|name| Pod { owners: [set.clone()].into(), ..pod(name, "web", true) });
    let rules = Rules {
        min_available: None,
        max_unavailable: Some(quorate_engine::basics::Quantity::Count(1)),
        ..keeps(0, ALL)
    };
    let mut alone = Alone::new(open(rules), &pods);
    alone.step(Event::Fact(Box::new(Input::Controller(controller(kind("apps", "StatefulSet"), 2, 5)))));
    alone.step(Event::Heard(kind("apps", "StatefulSet"), Time(0)));
    alone.step(Event::Doubted(kind("apps", "StatefulSet")));
    alone.disrupt(Operation::Evict, &pods[0]);
    assert_eq!(alone.answers.pop().as_ref().and_then(stale), Some(("StatefulSet.apps".to_owned(), 0)));
    alone.step(Event::Heard(kind("apps", "StatefulSet"), Time(0)));
    alone.disrupt(Operation::Evict, &pods[0]);
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Charged]);
    alone.step(Event::Doubted(kind("apps", "StatefulSet")));
    alone.step(Event::Forgotten(kind("apps", "StatefulSet")));
    alone.answers.clear();
    alone.disrupt(Operation::Evict, &pods[1]);
    assert_eq!(alone.answers.iter().find_map(stale), None);
}

/// A pod that is Pending here may run by now. The number of pods that must stay is as old as the stale kind, so it does not
/// show that the budget is met without this one.
#[test]
fn a_stale_kind_does_not_replace_the_list_of_a_free_pass() {
    let stateful_set = kind("apps", "StatefulSet");
    let owner = Owner { uid: "web".into(), kind: stateful_set.clone(), name: "web".into(), controller: true };
    let of_set = |name| Pod { owners: [owner.clone()].into(), ..pod(name, "web", true) };
    let pending = Pod { phase: Phase::Pending, ready: false, ..of_set("w") };
    let pods = [of_set("x"), of_set("y"), of_set("z"), pending.clone()];
    let rules = Rules {
        min_available: None,
        max_unavailable: Some(quorate_engine::basics::Quantity::Count(1)),
        ..keeps(0, ALL)
    };
    let mut alone = Alone::new(open(rules), &pods);
    // By now the set wants four pods.
    alone.step(Event::Fact(Box::new(Input::Controller(controller(stateful_set.clone(), 2, 5)))));
    alone.step(Event::Heard(stateful_set, Time(0)));
    pass(&mut alone, 91);
    alone.disrupt(Operation::Evict, &pending);
    let Some((list, Call::ListPods(_))) = alone.calls.pop_front() else {
        panic!("a list is expected: {:?} {:?}", alone.calls, alone.answers)
    };
    let listed = vec![of_set("x"), of_set("y"), of_set("z"), Pod { version: Version(2), ..of_set("w") }];
    alone.step(Event::Reply(list, Reply::Pods(listed, Version(2))));
    assert_eq!(alone.answers.iter().find_map(stale), Some(("StatefulSet.apps".to_owned(), 91)));
}
