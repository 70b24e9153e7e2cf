//! The size of a ledger: a status that is too large could not be stored at all.
//!
//! The rules behind it: `docs/ledger.md#commits`.

use quorate_engine::basics::{Text, Version};
use quorate_engine::claims::{ContainerChange, MAX_CLAIM_BYTES, Target};
use quorate_engine::decision::{Decision, Denial, DenialReason};
use quorate_engine::facts::{Container, Input, Operation, Pod};
use quorate_engine::ledger::Event;
use quorate_engine::request::Request;

use super::alone::{Alone, open, pod, request};
use super::scenarios::{ALL, keeps};
use crate::plain;

const PODS: usize = 150;
/// Each pod has many containers with names as long as Kubernetes accepts, so that a token is large.
const CONTAINERS: usize = 30;
/// More than the size of a token.
const TOKEN: usize = 11_000;

fn pods() -> Vec<Pod> {
    let containers = (0..CONTAINERS)
        .map(|n| Container { name: format!("{n:063}").into(), ..plain::container(Version(1)) });
    let containers: Box<[Container]> = containers.collect();
    let of = |n| Pod { containers: containers.clone(), ..pod(&format!("p{n}"), "web", true) };
    (0..PODS).map(of).collect()
}

/// An update of all containers.
fn update(pod: &Pod) -> Request {
    let change = |container: &Container| ContainerChange {
        name: container.name.clone(),
        replaces: Some(container.id),
        image: Some(2),
        resources: None,
    };
    let target = Target { containers: pod.containers.iter().map(change).collect(), ..Target::default() };
    Request { target, ..request(Operation::Update, pod) }
}

#[test]
fn claims_are_bounded_by_their_size() {
    let pods = pods();
    let mut alone = Alone::new(open(keeps(0, ALL)), &pods);
    for pod in &pods {
        alone.request(update(pod));
        if !alone.calls.is_empty() {
            alone.write();
        }
    }
    let bytes = alone.stored.ledger.claim_bytes();
    assert!((MAX_CLAIM_BYTES..MAX_CLAIM_BYTES + 2 * TOKEN).contains(&bytes), "{bytes}");
    // Another token for a pod that is held needs room too.
    alone.request(update(&pods[0]));
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
    pods.iter().for_each(|pod| alone.request(update(pod)));
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
