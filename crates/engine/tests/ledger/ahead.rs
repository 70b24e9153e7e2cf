//! A settled version that the store has not reached is from another time, and must not block its budget.
//!
//! See `docs/ledger.md#the-store-may-go-back`.

use quorate_engine::basics::{Time, Version};
use quorate_engine::decision::{AllowReason, Decision, DenialReason};
use quorate_engine::facts::{Input, Operation, Pod};
use quorate_engine::ledger::{Call, CallId, Event, Reply};

use super::alone::{Alone, open, pod};
use super::scenarios::{ALL, keeps};

fn pods() -> [Pod; 2] {
    ["x", "y"].map(|name| pod(name, "web", true))
}

/// A leader that knows the pods up to version 1, under a budget that needs version 1,000.
fn leader() -> Alone {
    let mut budget = open(keeps(1, ALL));
    budget.ledger.settled = Version(1_000);
    let mut alone = Alone::new(budget, &pods());
    alone.step(Event::Leader(true));
    alone
}

impl Alone {
    fn tick(&mut self, at: i64) {
        self.now = Time(at);
        self.step(Event::Tick);
    }

    /// The next call, which must be the read of the version of the pods.
    fn version_read(&mut self) -> CallId {
        match self.calls.pop_front() {
            Some((id, Call::PodsVersion)) => id,
            other => panic!("a read of the version is expected, not {other:?}"),
        }
    }
}

#[test]
fn the_leader_lowers_it_to_what_the_store_has_reached() {
    let mut alone = leader();
    alone.tick(9_999);
    assert!(alone.calls.is_empty(), "the watch may be about to show it: {:?}", alone.calls);
    alone.tick(10_000);
    let read = alone.version_read();
    alone.step(Event::Reply(read, Reply::PodsVersion(Version(7))));
    alone.write();
    assert_eq!(alone.stored.ledger.settled, Version(7));
    // As any other: the pods must be as new as that.
    alone.disrupt(Operation::Evict, &pods()[0]);
    assert!(alone.calls.is_empty() && alone.answers.is_empty(), "{:?}", alone.calls);
    alone.step(Event::Fact(Box::new(Input::PodsAt(Version(7)))));
    alone.write();
    assert_eq!(alone.reasons(), [AllowReason::Charged]);
    alone.tick(60_000);
    assert!(alone.calls.is_empty(), "nothing is left to do: {:?}", alone.calls);
}

#[test]
fn a_version_that_the_store_has_reached_stays() {
    let mut alone = leader();
    alone.tick(10_000);
    let read = alone.version_read();
    alone.step(Event::Reply(read, Reply::PodsVersion(Version(1_000))));
    alone.tick(20_000);
    alone.tick(80_000);
    assert!(alone.calls.is_empty(), "the watch of pods is quiet, no more: {:?}", alone.calls);
    assert_eq!(alone.stored.ledger.settled, Version(1_000));
}

#[test]
fn a_replica_that_does_not_lead_waits() {
    let mut alone = leader();
    alone.step(Event::Leader(false));
    alone.tick(10_000);
    assert!(alone.calls.is_empty(), "{:?}", alone.calls);
    alone.disrupt(Operation::Evict, &pods()[0]);
    alone.tick(30_000);
    let [Decision::Deny(denials)] = alone.answers.as_slice() else { panic!("{:?}", alone.answers) };
    assert_eq!(denials[0].reason, DenialReason::Deadline);
}

#[test]
fn a_read_that_is_older_than_the_budget_lowers_nothing() {
    let mut alone = leader();
    alone.tick(10_000);
    let read = alone.version_read();
    // Another leader has lowered it, and settled a claim since.
    alone.stored.ledger.settled = Version(9);
    alone.stored.version = Version(20);
    alone.step(Event::Fact(Box::new(Input::Budget(alone.stored.clone()))));
    alone.step(Event::Reply(read, Reply::PodsVersion(Version(7))));
    let read = alone.version_read();
    assert!(alone.calls.is_empty(), "{:?}", alone.calls);
    alone.step(Event::Reply(read, Reply::PodsVersion(Version(9))));
    assert!(alone.calls.is_empty(), "{:?}", alone.calls);
}
