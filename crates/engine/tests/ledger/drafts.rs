//! The ledger of a write in flight: decisions count it, and the budget stays as it was observed.
//!
//! The rules behind it: `docs/ledger.md#commits`.

use quorate_engine::basics::{Text, Time};
use quorate_engine::claims::{Claim, Target, Token};
use quorate_engine::decision::Decision;
use quorate_engine::facts::{Input, Operation};
use quorate_engine::ledger::{Call, Event, Reply, WriteOutcome};

use super::alone::{Alone, open, pod};
use super::scenarios::{ALL, keeps};

/// The claims of the budget as it was observed, and the disruptions that its status allows.
fn observed_and_allowed(alone: &mut Alone) -> (usize, u32) {
    let key = alone.stored.key.clone();
    let observed = alone.replica.engine().budget(&key).expect("a budget").ledger.claims.len();
    let allowed = alone.replica.status(&key, alone.now).expect("a status").units.allowed;
    (observed, allowed)
}

fn alone() -> Alone {
    let pods = [pod("x", "web", true), pod("y", "web", true), pod("z", "web", true)];
    Alone::new(open(keeps(2, ALL)), &pods)
}

#[test]
fn a_write_in_flight_counts_and_is_not_taken_for_observed() {
    let mut alone = alone();
    assert_eq!(observed_and_allowed(&mut alone), (0, 1));
    alone.disrupt(Operation::Evict, &pod("x", "web", true));
    assert_eq!(observed_and_allowed(&mut alone), (0, 0));
    alone.disrupt(Operation::Evict, &pod("y", "web", true));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    alone.write();
    assert_eq!(observed_and_allowed(&mut alone), (1, 0));
    // Another replica removes the claim. What is observed replaces the draft.
    alone.stored.ledger.claims.clear();
    alone.stored.version.0 += 1;
    alone.step(Event::Fact(Box::new(Input::Budget(alone.stored.clone()))));
    assert_eq!(observed_and_allowed(&mut alone), (0, 1));
}

#[test]
fn a_write_that_was_refused_counts_no_longer_once_the_budget_is_read() {
    let mut alone = alone();
    alone.disrupt(Operation::Evict, &pod("x", "web", true));
    let Some((write, Call::Patch(_))) = alone.calls.pop_front() else { panic!("a write is expected") };
    alone.step(Event::Reply(write, Reply::Written(WriteOutcome::Refused)));
    assert_eq!(observed_and_allowed(&mut alone), (0, 0), "it is not known yet what is stored");
    let Some((read, Call::GetBudget(_))) = alone.calls.pop_front() else { panic!("a read is expected") };
    // Another replica admitted y in the meantime: x is denied, and nothing is left of its draft.
    let token = Token {
        operation: Operation::Evict,
        by: Text::from("kubernetes-admin"),
        at: Time(0),
        target: Target::default(),
    };
    let mut stored = alone.stored.clone();
    stored.version.0 += 1;
    stored.ledger.number += 1;
    stored.ledger.claims.insert("y".into(), Claim { pod: "y".into(), tokens: [("t".into(), token)].into() });
    alone.step(Event::Reply(read, Reply::Budget(Some(Box::new(stored)))));
    assert!(matches!(alone.answers.as_slice(), [Decision::Deny(_)]), "{:?}", alone.answers);
    let key = alone.stored.key.clone();
    let status = alone.replica.status(&key, alone.now).expect("a status");
    let disrupted: Vec<&str> = status.disrupted.iter().map(|(pod, _)| &**pod).collect();
    assert_eq!((status.units.current, disrupted), (2, vec!["y"]));
}
