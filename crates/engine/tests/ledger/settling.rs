//! What has come to its end is taken out together: with a write that goes out anyway, or in one of its own after a while.
//!
//! The rules behind it: `docs/ledger.md#settling-and-expiry`.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Uid, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{Claim, Ledger, PROTOCOL, Target, Token};
use quorate_engine::facts::{Budget, BudgetKind, Input, Operation, Phase, Pod};
use quorate_engine::ledger::{Call, Event, LedgerPatch, Output, Replica, Reply, Settings, Step};
use quorate_engine::request::Request;
use quorate_engine::{Gates, Snapshot};

use super::alone::{self, Alone};
use super::scenarios::{ALL, keeps};
use super::world::budget_key;
use crate::plain;

fn pod(name: &str) -> Pod {
    Pod {
        labels: Labels::new([ALL]),
        phase: Phase::Running,
        ready: true,
        ..plain::pod(ObjectKey { name: name.into(), ..budget_key("a").object }, Uid::from(name), Version(4))
    }
}

fn claim(pod: &str) -> (Uid, Claim) {
    let token = Token {
        operation: Operation::Evict,
        by: Text::from("alice"),
        at: Time(0),
        target: Target::default(),
    };
    let tokens = BTreeMap::from([(Text::from("r1-1"), token)]);
    (Uid::from(pod), Claim { pod: Text::from(pod), tokens })
}

/// A leader that knows the pods x, y and z under a budget, which has claims on x and y.
fn leader() -> Replica {
    let spec = keeps(0, ALL);
    let budget = Budget {
        uid: Text::from("a"),
        generation: 1,
        version: Version(5),
        ledger: Ledger {
            number: 7,
            claims: [claim("x"), claim("y")].into(),
            protocol: Some(PROTOCOL),
            enforced: Some(quorate_engine::Coverage::of("a", &spec)),
            enforced_generation: Some(1),
            ..Ledger::default()
        },
        spec: Ok(spec),
        gone: Box::default(),
        annotations: Default::default(),
        is_twin: false,
        memory: quorate_engine::facts::Memory::default(),
        key: budget_key("a"),
    };
    let pods = ["x", "y", "z"].map(pod);
    let mut replica =
        Replica::new(Settings { opens_unguarded: true, ..Settings::new("r0") }, Gates::default());
    for event in [
        Event::List(Snapshot::Pods(pods.to_vec(), Version(4))),
        Event::List(Snapshot::Budgets(BudgetKind::DisruptionBudget, vec![budget])),
        Event::Synced,
        Event::Serving(true),
        Event::Leader(true),
    ] {
        assert_eq!(writes(&mut replica, event, 0), []);
    }
    replica
}

/// What a replica writes when something happens.
fn writes(replica: &mut Replica, event: Event, at: i64) -> Vec<LedgerPatch> {
    let outputs = replica.step(event, Time(at)).into_iter();
    outputs
        .filter_map(|output| match output {
            Output::Call(_, Call::Patch(patch)) => Some(patch),
            _ => None,
        })
        .collect()
}

fn removed(patch: &LedgerPatch) -> Vec<&str> {
    let steps = patch.steps.iter();
    steps.filter_map(|step| if let Step::RemoveClaim(uid) = step { Some(&**uid) } else { None }).collect()
}

fn gone(pod: &str, version: u64) -> Event {
    Event::Fact(Box::new(Input::PodGone(Uid::from(pod), Version(version))))
}

#[test]
fn claims_that_ended_are_gathered_for_a_while() {
    let mut replica = leader();
    assert_eq!(writes(&mut replica, gone("x", 10), 1_000), []);
    assert_eq!(writes(&mut replica, gone("y", 11), 1_300), []);
    assert_eq!(writes(&mut replica, Event::Tick, 1_399), []);
    let written = writes(&mut replica, Event::Tick, 1_400);
    assert_eq!(written.iter().map(removed).collect::<Vec<_>>(), [["x", "y"]]);
    let steps = &written[0].steps;
    assert!(steps.contains(&Step::SetSettled(Version(11))), "{steps:?}");
    assert!(
        !steps.iter().any(|step| matches!(step, Step::SetNumber(_))),
        "no pod became healthy again: {steps:?}"
    );
}

#[test]
fn a_commit_also_settles_claims_of_ended_pods() {
    let mut replica = leader();
    assert_eq!(writes(&mut replica, gone("x", 10), 1_000), []);
    let request = Request {
        operation: Operation::Evict,
        pod: ObjectKey { namespace: budget_key("a").object.namespace, name: Text::from("z") },
        object: None,
        precondition: None,
        caller: Caller::named("alice"),
        dry_run: false,
        target: Target::default(),
        placement: None,
    };
    let ask = Event::Request { id: 1, request: Box::new(request), deadline: Time(9_000) };
    let written = writes(&mut replica, ask, 1_010);
    assert_eq!(written.iter().map(removed).collect::<Vec<_>>(), [["x"]], "y is still there");
    let steps = &written[0].steps;
    assert!(steps.iter().any(|step| matches!(step, Step::PutClaim(uid, _) if &**uid == "z")), "{steps:?}");
    for step in [
        Step::TestNumber(7),
        Step::SetNumber(8),
        Step::TestSettled(Version(0)),
        Step::SetSettled(Version(10)),
    ] {
        assert!(steps.contains(&step), "{step:?} is missing in {steps:?}");
    }
}

/// One list, one write and one number for all of them: each write would make the commits of other replicas fail.
#[test]
fn a_thousand_claims_expire_together() {
    let pods: Vec<Pod> = (0..1_000).map(|number| alone::pod(&format!("p{number}"), "web", true)).collect();
    let mut budget = alone::open(keeps(0, ALL));
    budget.ledger.claims = pods.iter().map(|pod| claim(&pod.uid)).collect();
    let number = budget.ledger.number;
    let mut alone = Alone::new(budget, &pods);
    alone.step(Event::Leader(true));
    let mut calls = Vec::new();
    for _ in 0..20 {
        alone.now = alone.now.after(Duration::from_secs(30));
        alone.step(Event::Fact(Box::new(Input::PodsAt(Version(1)))));
        alone.step(Event::Tick);
        while let Some((id, call)) = alone.calls.pop_front() {
            match &call {
                Call::ListPods(_) => {
                    calls.push("list");
                    alone.step(Event::Reply(id, Reply::Pods(pods.clone(), Version(2))));
                }
                Call::Patch(_) => {
                    calls.push("write");
                    alone.calls.push_front((id, call));
                    alone.write();
                }
                other => panic!("{other:?} is not expected"),
            }
        }
    }
    assert_eq!(calls, ["list", "write"]);
    assert!(alone.stored.ledger.claims.is_empty());
    assert_eq!(alone.stored.ledger.number, number + 1);
}
