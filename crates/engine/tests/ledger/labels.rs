//! A label that calls a pod unavailable: admitted, written, seen, and taken off again.
//!
//! The rules behind it: `docs/ledger.md#settling-and-expiry`.

use std::collections::BTreeMap;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Version};
use quorate_engine::claims::{Claim, Ledger, PROTOCOL, Target, Token};
use quorate_engine::facts::{Budget, BudgetKind, HealthRule, Input, Operation, Phase, Pod, Rules};
use quorate_engine::ledger::{Call, Event, Output, Replica, Reply, Settings, WriteOutcome};
use quorate_engine::{Gates, Snapshot};

use super::scenarios::{ALL, keeps};
use super::world::budget_key;
use crate::plain;

const LABEL: &str = "unavailable-pod.kruise.io/rollout";

pub(super) fn pod(version: u64, labelled: bool) -> Pod {
    let extra = labelled.then_some((LABEL, "true"));
    Pod {
        labels: Labels::new([ALL].into_iter().chain(extra)),
        phase: Phase::Running,
        ready: true,
        consistent: !labelled,
        ..plain::pod(ObjectKey::new("ns", "x"), "x".into(), Version(version))
    }
}

/// A budget with one admitted label.
fn budget() -> Budget {
    let mut key = budget_key("a");
    key.kind = BudgetKind::PodUnavailableBudget;
    let rules = Rules { health: HealthRule::Strict, ..keeps(1, ALL) };
    let target = Target { label: Some(LABEL.into()), ..Target::default() };
    let token = Token { operation: Operation::Update, by: "ann".into(), at: Time(0), target };
    let claim = Claim { pod: "x".into(), tokens: BTreeMap::from([("t".into(), token)]) };
    Budget {
        key,
        uid: Text::from("a"),
        generation: 1,
        version: Version(2),
        ledger: Ledger {
            number: 1,
            claims: BTreeMap::from([("x".into(), claim)]),
            protocol: Some(PROTOCOL),
            enforced: Some(quorate_engine::Coverage::of("a", &rules)),
            enforced_generation: Some(1),
            ..Ledger::default()
        },
        spec: Ok(rules),
        gone: Box::default(),
        annotations: Default::default(),
        is_twin: false,
        memory: quorate_engine::facts::Memory::default(),
    }
}

/// Tells the replica something and carries out what it wants to write; whether it wrote.
fn step(replica: &mut Replica, stored: &mut Budget, event: Event) -> bool {
    let mut wrote = false;
    let mut events = vec![event];
    while let Some(event) = events.pop() {
        for output in replica.step(event, Time(0)) {
            let Output::Call(id, Call::Patch(patch)) = output else { continue };
            assert!(patch.apply(stored), "{patch:?}");
            stored.version = Version(stored.version.0 + 1);
            events.push(Event::Reply(id, Reply::Written(WriteOutcome::Done(Box::new(stored.clone())))));
            wrote = true;
        }
    }
    wrote
}

#[test]
fn a_pod_is_held_until_the_label_was_seen_and_has_gone_again() {
    let mut stored = budget();
    let mut replica =
        Replica::new(Settings { opens_unguarded: true, ..Settings::new("r0") }, Gates::default());
    let seen = |version, labelled| Event::Fact(Box::new(Input::Pod(pod(version, labelled))));
    for event in [
        Event::List(Snapshot::Pods(vec![pod(1, false)], Version(1))),
        Event::Synced,
        Event::Serving(true),
        Event::Leader(true),
    ] {
        step(&mut replica, &mut stored, event);
    }
    let known = Event::Fact(Box::new(Input::Budget(stored.clone())));
    assert!(!step(&mut replica, &mut stored, known), "the pod looks as before, but will not");
    assert!(!step(&mut replica, &mut stored, seen(3, false)), "another change of the pod proves nothing");
    assert!(stored.ledger.holds("x"));
    assert!(step(&mut replica, &mut stored, seen(4, true)), "that it was seen is remembered");
    assert!(stored.ledger.holds("x"), "it is unavailable now");
    assert!(!step(&mut replica, &mut stored, seen(5, true)));
    assert!(step(&mut replica, &mut stored, seen(6, false)));
    assert!(!stored.ledger.holds("x"), "it is back in service");
}
