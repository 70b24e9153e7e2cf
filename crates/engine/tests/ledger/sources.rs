//! A group beyond the replicas of its LeaderWorkerSet, and a watch that has not shown the latest number of them.
//!
//! The rules behind it: `docs/ledger.md#fresh-lists`.

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Version};
use quorate_engine::decision::{AllowReason, Decision};
use quorate_engine::facts::{Controller, Counts, Input, Operation, Pod, Rules, Units};
use quorate_engine::ledger::{Call, CallId, Event, Reply};

use super::alone::{Alone, open, pod};
use super::scenarios::{ALL, keeps};
use super::world::{NAMESPACE, budget_key};

const INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";

fn set(replicas: u32, version: u64) -> Controller {
    Controller {
        key: ObjectKey::new(NAMESPACE, "llm"),
        uid: "llm".into(),
        version: Version(version),
        kind: GroupKind::new("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        replicas: Some(replicas),
        counts: Counts::Groups { size: Some(1), falls_whole: true },
        owner: None,
        deleting: false,
        recreate: false,
        activity: Default::default(),
        templates: None,
    }
}

fn leader(index: &str, ready: bool) -> Pod {
    let labels = [("app", "web"), ("leaderworkerset.sigs.k8s.io/name", "llm"), (INDEX, index)];
    Pod { labels: Labels::new(labels), ..pod(&format!("llm-{index}"), "web", ready) }
}

/// Two groups, of which one is down, under a budget that keeps one; the watch says that one is wanted.
fn scaled_up_unseen() -> (Alone, Pod) {
    let pods = [leader("0", false), leader("1", true)];
    let rules = Rules { units: Units::Label { key: INDEX.into(), min_ready: None }, ..keeps(1, ALL) };
    let mut alone = Alone::new(open(rules), &pods);
    alone.step(Event::Fact(Box::new(Input::Controller(set(1, 5)))));
    (alone, pods[1].clone())
}

fn read(alone: &mut Alone) -> CallId {
    match alone.calls.pop_front() {
        Some((id, Call::GetController(_, key))) if &*key.name == "llm" => id,
        other => panic!("a read of the set is expected, not {other:?}"),
    }
}

#[test]
fn a_surge_group_passes_only_if_a_fresh_read_of_its_source_confirms_it() {
    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let get = read(&mut alone);
    assert!(alone.answers.is_empty(), "{:?}", alone.answers);
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(set(2, 9))))));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    // What the watch shows late is older than that.
    alone.step(Event::Fact(Box::new(Input::Controller(set(1, 7)))));
    alone.disrupt(Operation::Evict, &surge);
    assert!(matches!(alone.answers.as_slice(), [_, Decision::Deny(_)]), "{:?}", alone.answers);

    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(set(1, 5))))));
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Surge]);
}

#[test]
fn a_read_of_the_set_is_repeated_after_a_race_was_lost() {
    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(set(1, 5))))));
    let Some((late, Call::Patch(_))) = alone.calls.pop_front() else { panic!("a write is expected") };
    alone.stored.ledger.number += 1;
    alone.stored.version.0 += 1;
    alone.step(Event::Fact(Box::new(Input::Budget(alone.stored.clone()))));
    alone.step(Event::Reply(late, Reply::Written(quorate_engine::ledger::WriteOutcome::Refused)));
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(set(2, 9))))));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
}

#[test]
fn a_set_that_is_gone_leaves_its_groups_to_be_observed() {
    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let get = read(&mut alone);
    alone.step(Event::Reply(get, Reply::Controller(None)));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
}

/// The set is deleted and created again with more groups. The new one is read before the watch shows the end of the old one.
#[test]
fn a_set_that_was_read_keeps_its_name_when_the_watch_shows_the_end_of_its_predecessor() {
    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let get = read(&mut alone);
    let again = Controller { uid: "llm again".into(), ..set(2, 9) };
    alone.step(Event::Reply(get, Reply::Controller(Some(Box::new(again.clone())))));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    let expected = |alone: &mut Alone| {
        let status = alone.replica.status(&budget_key("a"), alone.now);
        status.expect("a status").units.expected
    };
    let ending = Controller { deleting: true, ..set(1, 7) };
    let late = [Input::Controller(ending), Input::ControllerGone("llm".into()), Input::Controller(again)];
    for input in late {
        alone.step(Event::Fact(Box::new(input)));
        assert_eq!(expected(&mut alone), 2);
        alone.disrupt(Operation::Evict, &surge);
        let denied = alone.answers.iter().all(|answer| matches!(answer, Decision::Deny(_)));
        assert!(denied && alone.calls.is_empty(), "{:?} {:?}", alone.answers, alone.calls);
    }
}

/// The set is read, and deleted. The watch shows its end before the reply comes.
#[test]
fn a_late_reply_does_not_bring_back_a_set_that_is_gone() {
    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let late = read(&mut alone);
    alone.step(Event::Fact(Box::new(Input::ControllerGone("llm".into()))));
    alone.step(Event::Reply(late, Reply::Controller(Some(Box::new(set(1, 5))))));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    let status = alone.replica.status(&budget_key("a"), alone.now).expect("a status");
    assert_eq!(status.units.expected, 2, "both groups are observed");
}

/// As above, but no set was found, and the watch shows the next one of its name before the reply comes.
#[test]
fn a_late_reply_does_not_remove_a_set_that_was_created_since() {
    let (mut alone, surge) = scaled_up_unseen();
    alone.disrupt(Operation::Evict, &surge);
    let late = read(&mut alone);
    let next = Controller { uid: "llm again".into(), ..set(3, 9) };
    for input in [Input::ControllerGone("llm".into()), Input::Controller(next)] {
        alone.step(Event::Fact(Box::new(input)));
    }
    alone.step(Event::Reply(late, Reply::Controller(None)));
    let status = alone.replica.status(&budget_key("a"), alone.now).expect("a status");
    assert_eq!(status.units.expected, 3, "the next set wants three");
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
}
