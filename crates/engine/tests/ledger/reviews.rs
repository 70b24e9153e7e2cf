//! What a review is believed: which pod is meant, and nothing else. What it says of the pod is read from the API server.
//!
//! The rules behind it: `docs/ledger.md#claims`.

use std::time::Duration;

use quorate_engine::basics::Version;
use quorate_engine::decision::{Allow, Decision, NoEffect};
use quorate_engine::facts::{Operation, Pod};
use quorate_engine::ledger::{Call, CallId, Event, PodRead, Reply};
use quorate_engine::request::Request;

use super::alone::{Alone, open, pod, request};
use super::scenarios::{ALL, keeps};

/// A review that was made up: the pod has whatever version and state its author likes.
fn forged(pod: &Pod, dry_run: bool) -> Request {
    let object = Pod { version: Version(u64::MAX), ready: true, ..pod.clone() };
    Request { dry_run, ..request(Operation::Delete, &object) }
}

fn counts(alone: &mut Alone) -> (u32, u32, u32) {
    let key = alone.stored.key.clone();
    let now = alone.now;
    let units = alone.replica.status(&key, now).expect("a status").units;
    (units.allowed, units.current, units.expected)
}

#[test]
fn invented_pods_change_no_count() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    let mut alone = Alone::new(open(keeps(3, ALL)), &pods);
    let before = counts(&mut alone);
    for ghost in ["ghost1", "ghost2", "ghost3"] {
        alone.request(forged(&pod(ghost, "web", true), true));
    }
    assert_eq!(counts(&mut alone), before);
    alone.answers.clear();
    for pod in &pods {
        alone.disrupt(Operation::Delete, pod);
    }
    assert_eq!(alone.answers.len(), 3);
    assert!(alone.answers.iter().all(|answer| matches!(answer, Decision::Deny(_))), "{:?}", alone.answers);
}

#[test]
fn an_invented_state_of_a_pod_changes_no_count() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", false)];
    let mut alone = Alone::new(open(keeps(2, ALL)), &pods);
    let before = counts(&mut alone);
    alone.request(forged(&pods[2], true));
    assert_eq!(counts(&mut alone), before);
}

/// The next call, which must be a read of a pod.
fn read(alone: &mut Alone) -> CallId {
    match alone.calls.pop_front() {
        Some((id, Call::GetPod(_))) => id,
        other => panic!("a read of a pod is expected, not {other:?}"),
    }
}

fn is_moot(alone: &Alone, expected: NoEffect) -> bool {
    matches!(alone.answers.as_slice(), [Decision::Allow(Allow::NoEffect { why, .. })] if *why == expected)
}

fn there(pod: &Pod) -> Reply {
    Reply::Pod(PodRead::There(Box::new(pod.clone())))
}

/// A pod that came under the budget a moment ago: the watch has not shown that yet.
#[test]
fn a_pod_that_is_newer_in_the_review_is_read() {
    let old = pod("x", "db", true);
    let new = Pod { version: Version(5), ..pod("x", "web", true) };
    let mut alone = Alone::new(open(keeps(1, ALL)), &[old]);
    alone.disrupt(Operation::Delete, &new);
    assert!(alone.answers.is_empty(), "{:?}", alone.answers);
    let get = read(&mut alone);
    alone.step(Event::Reply(get, there(&new)));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
}

#[test]
fn a_pod_that_is_as_old_in_the_review_is_not_read() {
    let x = pod("x", "web", true);
    let mut alone = Alone::new(open(keeps(1, ALL)), std::slice::from_ref(&x));
    alone.disrupt(Operation::Delete, &x);
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    assert!(alone.calls.is_empty());
}

#[test]
fn a_reviewed_pod_is_gone_if_its_name_has_another_pod_or_none() {
    let y = pod("y", "web", true);
    let reviewed = pod("x", "web", true);
    let successor = Pod { uid: "x'".into(), version: Version(9), ..reviewed.clone() };
    for reply in [there(&successor), Reply::Pod(PodRead::Gone)] {
        let mut alone = Alone::new(open(keeps(1, ALL)), std::slice::from_ref(&y));
        alone.disrupt(Operation::Delete, &reviewed);
        let get = read(&mut alone);
        alone.step(Event::Reply(get, reply));
        assert!(is_moot(&alone, NoEffect::Gone), "{:?}", alone.answers);
    }
}

/// The view lags and still has the predecessor of a pod that is read. A name has one pod at a time: they must not both count.
#[test]
fn a_read_of_a_successor_shows_that_its_predecessor_is_gone() {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    let mut alone = Alone::new(open(keeps(3, ALL)), &pods);
    let (allowed, current, _) = counts(&mut alone);
    let successor = Pod { uid: "x'".into(), version: Version(9), ..pods[0].clone() };
    let precondition = Some(successor.uid.clone());
    alone.request(Request { precondition, ..request(Operation::Evict, &successor) });
    let get = read(&mut alone);
    alone.step(Event::Reply(get, there(&successor)));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    // Until the watch shows that the predecessor is gone, it counts as a pod that is down.
    assert_eq!(counts(&mut alone), (allowed, current, 4));
}

/// The view lags: it shows the predecessor of the pod that the caller insists on.
#[test]
fn a_uid_precondition_on_an_unknown_pod_is_checked_by_a_read() {
    let (x, y) = (pod("x", "web", true), pod("y", "web", false));
    let successor = Pod { uid: "x'".into(), version: Version(9), ..x.clone() };
    let evict = |uid: &str| Request { precondition: Some(uid.into()), ..request(Operation::Evict, &x) };
    let mut alone = Alone::new(open(keeps(1, ALL)), &[x.clone(), y.clone()]);
    alone.request(evict("x'"));
    let get = read(&mut alone);
    alone.step(Event::Reply(get, there(&successor)));
    assert!(!alone.answers.iter().any(Decision::is_allowed), "{:?}", alone.answers);

    let mut alone = Alone::new(open(keeps(1, ALL)), &[x.clone(), y]);
    alone.request(evict("gone long ago"));
    let get = read(&mut alone);
    alone.step(Event::Reply(get, there(&x)));
    assert!(is_moot(&alone, NoEffect::OtherUid), "{:?}", alone.answers);
}

#[test]
fn a_read_that_was_sent_before_a_request_proves_no_absence_to_it() {
    let x = pod("x", "web", true);
    let successor = Pod { uid: "x'".into(), version: Version(9), ..x.clone() };
    let mut alone = Alone::new(open(keeps(1, ALL)), &[]);
    alone.disrupt(Operation::Delete, &x);
    let first = read(&mut alone);
    alone.disrupt(Operation::Delete, &successor);
    assert!(alone.calls.is_empty(), "one read at a time: {:?}", alone.calls);
    alone.step(Event::Reply(first, Reply::Pod(PodRead::Gone)));
    assert!(is_moot(&alone, NoEffect::Gone), "the second pod may have come since: {:?}", alone.answers);
    let second = read(&mut alone);
    alone.step(Event::Reply(second, there(&successor)));
    assert!(matches!(alone.answers.as_slice(), [_, Decision::Deny(_)]), "{:?}", alone.answers);
}

#[test]
fn a_pod_that_was_not_there_is_not_read_again_for_a_second() {
    let ghost = pod("ghost", "web", true);
    let mut alone = Alone::new(open(keeps(1, ALL)), &[]);
    alone.disrupt(Operation::Delete, &ghost);
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Pod(PodRead::Gone)));
    alone.disrupt(Operation::Delete, &ghost);
    assert_eq!((alone.answers.len(), alone.calls.len()), (2, 0));
    // A name says nothing of a pod with another UID, which may have come since.
    alone.disrupt(Operation::Delete, &Pod { uid: "another".into(), ..ghost.clone() });
    read(&mut alone);
    alone.now = alone.now.after(Duration::from_secs(1));
    alone.disrupt(Operation::Delete, &ghost);
    assert_eq!(alone.answers.len(), 2);
}

#[test]
fn a_read_without_an_answer_is_sent_again() {
    let x = pod("x", "web", true);
    let mut alone = Alone::new(open(keeps(1, ALL)), &[]);
    alone.disrupt(Operation::Delete, &x);
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Lost));
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Pod(PodRead::Gone)));
    assert!(is_moot(&alone, NoEffect::Gone), "{:?}", alone.answers);
}
