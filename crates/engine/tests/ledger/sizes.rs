//! The size of a ledger: a status that is too large could not be stored at all.
//!
//! The rules behind it: `docs/ledger.md#commits`.

use quorate_engine::basics::{Text, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::MAX_CLAIM_BYTES;
use quorate_engine::decision::{Decision, Denial, DenialReason};
use quorate_engine::facts::{Input, Operation, Pod};
use quorate_engine::ledger::Event;
use quorate_engine::request::Request;

use super::alone::{Alone, open, pod, request};
use super::scenarios::{ALL, keeps};

/// A user name as long as some identity providers make them.
const NAME: usize = 10_000;
const PODS: usize = 150;

fn pods() -> Vec<Pod> {
    (0..PODS).map(|n| pod(&format!("p{n}"), "web", true)).collect()
}

fn evict(pod: &Pod) -> Request {
    Request { caller: Caller::named("n".repeat(NAME)), ..request(Operation::Evict, pod) }
}

#[test]
fn claims_are_bounded_by_their_size() {
    let pods = pods();
    let mut alone = Alone::new(open(keeps(0, ALL)), &pods);
    for pod in &pods {
        alone.request(evict(pod));
        if !alone.calls.is_empty() {
            alone.write();
        }
    }
    let bytes = alone.stored.ledger.claim_bytes();
    assert!((MAX_CLAIM_BYTES..MAX_CLAIM_BYTES + 2 * NAME).contains(&bytes), "{bytes}");
    // Another token for a pod that is held needs room too.
    alone.request(evict(&pods[0]));
    let denied = Decision::Deny(vec![Denial {
        budget: Some(alone.stored.key.clone()),
        reason: DenialReason::TooManyClaims,
    }]);
    assert_eq!(alone.answers.last(), Some(&denied));
}

/// Admissions from before the budget existed are written as far as they fit, and the budget waits for the rest.
#[test]
fn the_tokens_of_earlier_admissions_are_written_as_far_as_they_fit() {
    let mut pods = pods();
    let mut alone = Alone::new(open(keeps(0, ("app", "db"))), &pods);
    pods.iter().for_each(|pod| alone.request(evict(pod)));
    assert_eq!((alone.answers.len(), alone.calls.len()), (PODS, 0), "no budget covers them");
    // One of them is about to go by now: it needs no token.
    pods[0].terminating = true;
    pods[0].version = Version(2);
    alone.step(Event::Fact(Box::new(Input::Pod(pods[0].clone()))));
    alone.stored.spec = Ok(keeps(0, ALL));
    alone.stored.generation += 1;
    alone.stored.version.0 += 1;
    alone.step(Event::Fact(Box::new(Input::Budget(alone.stored.clone()))));
    alone.write();
    let bytes = alone.stored.ledger.claim_bytes();
    assert!((1_000_000..1_200_000).contains(&bytes), "{bytes}");
    let first = alone.stored.ledger.claims.len();
    assert!(first < PODS - 1 && alone.calls.is_empty(), "the rest waits: {first}");
    // They go, and their claims are settled.
    let gone: Vec<Text> = alone.stored.ledger.claims.keys().cloned().collect();
    for uid in gone {
        alone.step(Event::Fact(Box::new(Input::PodGone(uid, Version(9)))));
    }
    alone.stored.ledger.claims.clear();
    alone.stored.version.0 += 1;
    alone.step(Event::Fact(Box::new(Input::Budget(alone.stored.clone()))));
    alone.write();
    assert_eq!(first + alone.stored.ledger.claims.len(), PODS - 1);
    assert!(alone.calls.is_empty());
}
