//! What a review is believed: which pod is meant, and nothing else. What it says of the pod is read from the API server.
//!
//! The rules behind it: `docs/ledger.md#claims`.

use std::time::Duration;

use quorate_engine::basics::{Labels, Time, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{ContainerChange, Target};
use quorate_engine::decision::{Allow, Decision, NoEffect};
use quorate_engine::facts::{Input, Operation, Pod};
use quorate_engine::ledger::{Call, CallId, Event, PodRead, Reply};
use quorate_engine::request::Request;
use quorate_engine::{Engine, Gates};

use super::alone::{Alone, open, pod, request};
use super::scenarios::{ALL, keeps};
use crate::plain;

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
    // Until the watch shows that the predecessor is gone, it counts as a pod that is down. So does the successor until then.
    assert_eq!(counts(&mut alone), (allowed, current - 1, 4));
}

/// The view lags, and shows a predecessor for the first time after its successor was read. They must not both count.
#[test]
fn a_watch_that_lags_behind_a_read_does_not_bring_a_predecessor_back() {
    let pods = [pod("y", "web", true), pod("z", "web", true)];
    let mut alone = Alone::new(open(keeps(3, ALL)), &pods);
    let older = Pod { version: Version(5), ..pod("x", "web", true) };
    let successor = Pod { uid: "x'".into(), version: Version(9), ..older.clone() };
    alone.request(request(Operation::Evict, &successor));
    let get = read(&mut alone);
    alone.step(Event::Reply(get, there(&successor)));
    let (_, healthy, _) = counts(&mut alone);
    assert_eq!(healthy, 2, "the watch has not shown the successor");
    for version in [5, 6] {
        alone.step(Event::Fact(Box::new(Input::Pod(Pod { version: Version(version), ..older.clone() }))));
        assert_eq!(counts(&mut alone).1, 2, "at {version}");
    }
    // A relabel of the predecessor before it went.
    let relabelled = Pod { version: Version(7), labels: Labels::new([ALL, ("track", "b")]), ..older };
    alone.step(Event::Fact(Box::new(Input::Pod(relabelled))));
    assert_eq!(counts(&mut alone).1, 2);
    for input in [Input::PodGone("x".into(), Version(8)), Input::Pod(successor)] {
        alone.step(Event::Fact(Box::new(input)));
    }
    assert_eq!(counts(&mut alone).1, 3);
}

/// The view lags: X is gone, and Y and Z were replaced. Both successors are read because of requests. With X they would be
/// three, but there were never more than two at one time.
#[test]
fn pods_that_were_read_alone_do_not_count_with_those_of_an_older_view() {
    let pods = [pod("x", "web", true), pod("y", "web", false), pod("z", "web", false)];
    let mut alone = Alone::new(open(keeps(2, ALL)), &pods);
    let successors = pods[1..].iter().zip(["y'", "z'"]);
    let successors: Vec<Pod> = successors
        .map(|(pod, uid)| Pod { uid: uid.into(), version: Version(9), ready: true, ..pod.clone() })
        .collect();
    for successor in &successors {
        let precondition = Some(successor.uid.clone());
        alone.request(Request { precondition, ..request(Operation::Evict, successor) });
        let get = read(&mut alone);
        alone.step(Event::Reply(get, there(successor)));
    }
    assert_eq!(alone.answers.len(), 2);
    assert!(alone.answers.iter().all(|answer| matches!(answer, Decision::Deny(_))), "{:?}", alone.answers);
    assert_eq!(counts(&mut alone).1, 1, "X alone");
}

/// A list was sent after the request arrived, because the budget needs newer pods. It comes back before the pod is read, so
/// it is older: X, which it shows, may be gone by then.
#[test]
fn a_list_that_is_older_than_a_pod_that_was_read_is_repeated() {
    let pods = [pod("x", "web", true), pod("y", "web", false), pod("z", "web", true)];
    let successor = Pod { uid: "y'".into(), version: Version(9), ready: true, ..pods[1].clone() };
    let mut listed = pods.to_vec();
    listed[2] = Pod { version: Version(8), ready: false, ..pods[2].clone() };
    let mut budget = open(keeps(1, ALL));
    budget.ledger.settled = Version(5);
    let mut alone = Alone::new(budget, &pods);
    alone.disrupt(Operation::Evict, &pods[0]);
    alone.request(Request { precondition: Some("y'".into()), ..request(Operation::Evict, &successor) });
    let get = read(&mut alone);
    alone.now = Time(1_000);
    alone.step(Event::Tick);
    let list = alone.list();
    alone.step(Event::Reply(list, Reply::Pods(listed, Version(8))));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    alone.step(Event::Reply(get, there(&successor)));
    let list = alone.list();
    alone.step(Event::Reply(list, Reply::Pods(vec![successor], Version(10))));
    assert!(matches!(alone.answers.as_slice(), [_, Decision::Deny(_)]), "{:?}", alone.answers);
}

/// A list of the pods of a budget shows what is healthy at one time. So what it shows counts, but not what is read later.
#[test]
fn a_list_counts_for_its_budget() {
    let (web, now) = (open(keeps(2, ALL)), Time(0));
    let mut engine = Engine::new(Gates::default());
    let pods = [pod("x", "web", true), pod("y", "web", false), pod("z", "web", false)];
    let inputs = std::iter::once(Input::Budget(web.clone())).chain(pods.clone().map(Input::Pod));
    inputs.for_each(|input| drop(engine.apply(input, now)));
    let healthy = |engine: &mut Engine| engine.status(&web.key, now).expect("a status").units.current;
    let [x, y, z] = pods.map(|pod| Pod { version: Version(9), ready: true, ..pod });
    engine.learn(y.clone(), now);
    assert_eq!(healthy(&mut engine), 1, "Y was read alone");
    engine.apply_pod_list(&web.key, vec![x.clone(), y], Version(10), now);
    assert_eq!(healthy(&mut engine), 2, "Y is in the list, and Z is gone");
    engine.learn(Pod { version: Version(12), ..x }, now);
    assert_eq!(healthy(&mut engine), 1, "X has changed since");
    drop(engine.apply(Input::PodsAt(Version(11)), now));
    assert_eq!(healthy(&mut engine), 1, "Y, and the watch still shows Z, which is not ready");
    drop(engine.apply(Input::Pod(Pod { version: Version(13), ..z }), now));
    assert_eq!(healthy(&mut engine), 3);
}

/// A list for one budget may show pods of another one: with a `targetRef`, the whole namespace is listed.
#[test]
fn a_list_for_another_budget_shows_that_a_predecessor_is_gone() {
    let (web, now) = (open(keeps(3, ALL)), Time(0));
    let mut other = open(keeps(1, ("app", "db")));
    other.key.object.name = "other".into();
    other.uid = "other".into();
    let mut engine = Engine::new(Gates::default());
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    let budgets = [web.clone(), other.clone()].map(Input::Budget);
    budgets.into_iter().chain(pods.clone().map(Input::Pod)).for_each(|input| drop(engine.apply(input, now)));
    let [x, y, z] = pods;
    let successor = Pod { uid: "x'".into(), version: Version(9), ..x };
    engine.apply_pod_list(&other.key, vec![successor, y, z], Version(10), now);
    let healthy = |engine: &mut Engine| engine.status(&web.key, now).expect("a status").units.current;
    assert_eq!(healthy(&mut engine), 2, "the list is not of this budget");
    for input in [Input::PodGone("x".into(), Version(8)), Input::PodsAt(Version(9))] {
        drop(engine.apply(input, now));
    }
    assert_eq!(healthy(&mut engine), 3);
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

const LABEL: &str = "unavailable-pod.kruise.io/rollout";

/// A change of a container that runs image 1 with the ID 1 and has no resources.
fn change(name: &str, replaces: u64, image: Option<u64>, resources: Option<u64>) -> Box<[ContainerChange]> {
    [ContainerChange { name: name.into(), replaces: Some(replaces), image, resources }].into()
}

/// Lets time pass until every token that can expire has expired. The pods stay as they are.
fn expire(alone: &mut Alone, pods: &[Pod]) {
    for _ in 0..20 {
        while let Some((id, call)) = alone.calls.pop_front() {
            match call {
                Call::GetPod(key) => {
                    let read = pods.iter().find(|pod| pod.key == key).expect("a pod");
                    alone.step(Event::Reply(id, there(read)));
                }
                Call::Patch(_) => {
                    alone.calls.push_front((id, call));
                    alone.write();
                }
                other => panic!("{other:?} is not expected"),
            }
        }
        alone.now = alone.now.after(Duration::from_secs(30));
        alone.step(Event::Fact(Box::new(Input::PodsAt(Version(1)))));
        alone.step(Event::Tick);
    }
}

/// A review may describe a change that the pod already shows, or cannot have: then nothing ever happens to the pod.
#[test]
fn the_claim_of_an_invented_update_expires() {
    let x = Pod {
        labels: Labels::new([ALL, (LABEL, "true")]),
        deadline: Some(60),
        containers: [plain::container(Version(1))].into(),
        ..pod("x", "web", true)
    };
    let pods = [x.clone(), pod("y", "web", true)];
    let mut left = Vec::new();
    for (why, target) in [
        ("the image that runs", Target { containers: change("main", 1, Some(1), None), ..Target::default() }),
        ("an invented ID", Target { containers: change("main", 999, Some(1), None), ..Target::default() }),
        (
            "resources that it has",
            Target { containers: change("main", 1, None, Some(0)), ..Target::default() },
        ),
        (
            "a deadline that it has",
            Target { containers: change("main", 1, None, None), deadline: Some(60), ..Target::default() },
        ),
        ("no container", Target { containers: change("main", 1, None, None), ..Target::default() }),
        (
            "an invented container",
            Target { containers: change("ghost", 9, Some(9), None), ..Target::default() },
        ),
        ("a label that it has", Target { label: Some(LABEL.into()), ..Target::default() }),
        ("nothing", Target::default()),
    ] {
        for version in [0, 1, u64::MAX] {
            let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
            alone.step(Event::Leader(true));
            let reviewed = Pod { version: Version(version), ..x.clone() };
            let target = Target { base: Some(Version(version)), ..target.clone() };
            alone.request(Request { target, ..request(Operation::Update, &reviewed) });
            expire(&mut alone, &pods);
            assert!(alone.stored.ledger.number > 0, "{why} at {version}: it was claimed");
            if !alone.stored.ledger.claims.is_empty() {
                left.push(format!("{why} at {version}"));
            }
        }
    }
    assert!(left.is_empty(), "claims that do not expire: {left:#?}");
}

/// A claim names its pod. Under a name that no pod has, a read could never show that the pod was left alone.
#[test]
fn a_uid_under_another_name_is_no_pod() {
    let pods = [pod("x", "web", true), pod("y", "web", true)];
    let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
    alone.step(Event::Leader(true));
    alone.disrupt(Operation::Delete, &Pod { key: pod("ghost", "web", true).key, ..pods[0].clone() });
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Pod(PodRead::Gone)));
    assert!(is_moot(&alone, NoEffect::Gone), "{:?}", alone.answers);
    assert!(alone.calls.is_empty() && alone.stored.ledger.claims.is_empty());
}

#[test]
fn a_token_has_only_the_beginning_of_a_long_user_name() {
    let pods = [pod("x", "web", true), pod("y", "web", true)];
    let mut alone = Alone::new(open(keeps(1, ALL)), &pods);
    let caller = Caller::named("é".repeat(1_000_000));
    alone.request(Request { caller, ..request(Operation::Delete, &pods[0]) });
    alone.write();
    let names: Vec<usize> =
        alone.stored.ledger.claims["x"].tokens.values().map(|token| token.by.len()).collect();
    assert_eq!(names, [256]);
}
