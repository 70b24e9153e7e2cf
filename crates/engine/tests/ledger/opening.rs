//! A budget opens once its namespace is guarded; that it is open is reported once, and not before it is written.
//!
//! The rules behind it: `docs/ledger.md#opening`.

use std::time::Duration;

use quorate_engine::basics::{Text, Time, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::decision::{Decision, DenialReason};
use quorate_engine::facts::{Budget, Input, Namespace, Operation, Rules};
use quorate_engine::ledger::{
    Acknowledged, Call, CallId, Event, Note, Output, Replica, ReplicaLease, Reply, Settings, WriteOutcome,
};
use quorate_engine::request::Request;
use quorate_engine::{Gates, Snapshot};

use super::scenarios::{ALL, keeps};
use super::world::budget_key;

/// Tells a replica something, and returns the call it makes and how many notes it writes.
fn step(replica: &mut Replica, event: Event) -> (Option<(CallId, Call)>, usize) {
    let (mut call, mut notes) = (None, 0);
    for output in replica.step(event, Time(0)) {
        match output {
            Output::Call(id, asked) => call = Some((id, asked)),
            Output::Note(Note::Opened(_)) => notes += 1,
            _ => {}
        }
    }
    (call, notes)
}

fn stored() -> Budget {
    Budget {
        key: budget_key("a"),
        uid: Text::from("a"),
        generation: 1,
        version: Version(1),
        spec: Ok(keeps(1, ALL)),
        ledger: Default::default(),
        gone: Box::default(),
        annotations: Default::default(),
        is_twin: false,
        memory: quorate_engine::facts::Memory::default(),
    }
}

/// What makes a replica serve, and hold the lease.
fn serving() -> [Event; 4] {
    let pods = Event::List(Snapshot::Pods(Vec::new(), Version(1)));
    [pods, Event::Synced, Event::Serving(true), Event::Leader(true)]
}

#[test]
fn a_budget_that_nothing_sticks_to_is_not_opened_again_and_again() {
    let stored = stored();
    let pod = super::labels::pod(1, false);
    let mut replica =
        Replica::new(Settings { opens_unguarded: true, ..Settings::new("r0") }, Gates::default());
    let mut writes = 0;
    let mut answers = Vec::new();
    let mut step = |event: Event, at: i64, writes: &mut u32| {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for output in replica.step(event, Time(at)) {
                let (id, reply) = match output {
                    Output::Call(id, Call::ListReplicas) => (id, Reply::Replicas(Vec::new())),
                    Output::Call(id, Call::ListPods(_)) => (id, Reply::Pods(vec![pod.clone()], Version(1))),
                    // It is taken, and nothing of it is kept.
                    Output::Call(id, Call::Patch(_)) => {
                        *writes += 1;
                        (id, Reply::Written(WriteOutcome::Done(Box::new(stored.clone()))))
                    }
                    Output::Answer(_, decision) => {
                        answers.push(decision);
                        continue;
                    }
                    _ => continue,
                };
                events.push(Event::Reply(id, reply));
            }
        }
    };
    let pods = Event::List(Snapshot::Pods(vec![pod.clone()], Version(1)));
    let known = Event::Fact(Box::new(Input::Budget(stored.clone())));
    for event in [pods, Event::Synced, Event::Serving(true), Event::Leader(true), known] {
        step(event, 0, &mut writes);
    }
    assert_eq!(writes, 1);
    (1..20).for_each(|second| step(Event::Tick, second * 1000, &mut writes));
    assert_eq!(writes, 1, "it would be the same again");
    let request = Request {
        operation: Operation::Evict,
        pod: pod.key.clone(),
        object: None,
        precondition: None,
        caller: Caller::named("ann"),
        dry_run: false,
        target: Target::default(),
        placement: None,
    };
    let ask = Event::Request { id: 1, request: Box::new(request), deadline: Time(30_000) };
    step(ask, 20_000, &mut writes);
    step(Event::Fact(Box::new(Input::PodsAt(Version(0)))), 31_000, &mut writes);
    step(Event::Tick, 31_000, &mut writes);
    assert_eq!(writes, 2, "the right definition may have been installed since");
    let reasons: Vec<&DenialReason> = answers.iter().flat_map(reasons).collect();
    assert_eq!(reasons, [&DenialReason::OutdatedDefinition]);
}

fn reasons(decision: &Decision) -> Vec<&DenialReason> {
    match decision {
        Decision::Allow(_) => Vec::new(),
        Decision::Deny(denials) => denials.iter().map(|denial| &denial.reason).collect(),
    }
}

#[test]
fn a_budget_is_reported_open_once_the_write_is_done() {
    let mut stored = stored();
    // No time passes here.
    let settings = Settings { opens_unguarded: true, list_pause: Duration::ZERO, ..Settings::new("r0") };
    let mut replica = Replica::new(settings, Gates::default());
    for event in serving() {
        step(&mut replica, event);
    }
    let (mut next, mut notes) = step(&mut replica, Event::Fact(Box::new(Input::Budget(stored.clone()))));
    let (mut writes, mut reported_at) = (0, Vec::new());
    while let Some((id, call)) = next {
        let reply = match call {
            Call::ListReplicas => Reply::Replicas(vec![ReplicaLease {
                name: Text::from("r0"),
                acknowledged: Acknowledged { budgets: Version(1), ..Acknowledged::default() },
                serves: true,
                admitted: Vec::new(),
            }]),
            Call::ListPods(_) => Reply::Pods(Vec::new(), Version(1)),
            Call::GetBudget(_) => Reply::Budget(Some(Box::new(stored.clone()))),
            Call::GetPod(_) | Call::GetController(..) | Call::PodsVersion => {
                unreachable!("there are no pods")
            }
            // The first write is refused, the reply to the second is lost.
            Call::Patch(patch) => {
                writes += 1;
                if writes == 1 {
                    Reply::Written(WriteOutcome::Refused)
                } else {
                    assert!(patch.apply(&mut stored));
                    stored.version = Version(2);
                    Reply::Lost
                }
            }
        };
        let read = matches!(reply, Reply::Budget(_));
        let noted;
        (next, noted) = step(&mut replica, Event::Reply(id, reply));
        notes += noted;
        if noted > 0 {
            reported_at.push((writes, read));
        }
    }
    assert_eq!(
        (writes, notes, reported_at),
        (2, 1, vec![(2, true)]),
        "reported by the read after the second write"
    );
}

#[test]
fn a_budget_opens_when_its_namespace_is_guarded() {
    let free = Namespace { terminating: false, excluded: false, guarded: false };
    let guarded = Namespace { guarded: true, ..free };
    let excluded = Namespace { excluded: true, ..free };
    let enforces = keeps(1, ALL);
    let observes = Rules { observe: true, ..enforces.clone() };
    // Whether it opens where the namespace is not known, where it is free, and once it is as said.
    for (rules, then, opens) in [
        (&enforces, &guarded, [false, false, true]),
        (&enforces, &excluded, [false, false, true]),
        (&enforces, &free, [false, false, false]),
        (&observes, &free, [true, true, true]),
    ] {
        let mut stored = stored();
        stored.spec = Ok(rules.clone());
        let namespace = stored.key.object.namespace.clone();
        let mut replica = Replica::new(Settings::new("r0"), Gates::default());
        for event in serving() {
            step(&mut replica, event);
        }
        let is =
            |fact: &Namespace| Event::Fact(Box::new(Input::Namespace(namespace.clone(), Some(fact.clone()))));
        let mut listed = false;
        let seen = [Event::Fact(Box::new(Input::Budget(stored))), is(&free), is(then)].map(|event| {
            let called = [event, Event::Tick].map(|event| step(&mut replica, event).0);
            listed |= called.iter().flatten().any(|(_, call)| matches!(call, Call::ListReplicas));
            listed
        });
        assert_eq!(seen, opens, "{then:?}");
    }
}

/// The definition of the budget does not have claims. An update of X was admitted before the budget existed, so its token is
/// written when the budget appears, and does not stick.
#[test]
fn tokens_that_do_not_stick_are_not_written_all_the_time() {
    let mut replica =
        Replica::new(Settings { opens_unguarded: true, ..Settings::new("r0") }, Gates::default());
    let x = super::alone::pod("x", "web", true);
    let pods = Event::List(Snapshot::Pods(vec![x.clone()], Version(1)));
    for event in [pods, Event::Synced, Event::Serving(true)] {
        replica.step(event, Time(0));
    }
    let update = super::alone::request(Operation::Update, &x);
    let update = Event::Request { id: 1, request: Box::new(update), deadline: Time(9_000) };
    let answers = replica.step(update, Time(0));
    assert!(matches!(answers.as_slice(), [Output::Answer(1, Decision::Allow(_))]), "{answers:?}");
    let pruned = Budget { version: Version(2), ..stored() };
    let (mut writes, mut acknowledged) = (Vec::new(), Vec::new());
    for second in 0..200 {
        let now = Time(second * 1000);
        let mut events = vec![Event::Fact(Box::new(Input::PodsAt(Version(1)))), Event::Tick];
        if second == 1 {
            events.push(Event::Fact(Box::new(Input::Budget(pruned.clone()))));
        }
        while let Some(event) = events.pop() {
            for output in replica.step(event, now) {
                match output {
                    Output::Call(id, Call::Patch(_)) => {
                        writes.push(second);
                        assert!(writes.len() < 10, "they are written all the time: {writes:?}");
                        let done = WriteOutcome::Done(Box::new(pruned.clone()));
                        events.push(Event::Reply(id, Reply::Written(done)));
                    }
                    Output::Acknowledge(known) => acknowledged.push((second, known.budgets)),
                    _ => {}
                }
            }
        }
    }
    assert_eq!(writes, [1, 31, 61, 91], "a definition that has claims may have been installed");
    assert_eq!(
        acknowledged,
        [(121, Version(2))],
        "no other budget waits for longer than the admission is recent"
    );
}
