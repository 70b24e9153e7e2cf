//! Nodes whose time of day is set, forward and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use quorate_agent::WallClock;
use quorate_testbed::{Cluster, eventually};
use serde_json::Value;

use super::lives::{LEASES, one};
use super::{Agent, condition, refused, says, says_yes};
use crate::space::Space;

quorate_testbed::stories!(Whole:
    a_clock_that_is_set_makes_no_yes_and_no_no,
    a_yes_from_the_future_is_not_believed,
);

const HOUR: i64 = 3600;

/// The clock of a node, that many seconds ahead of ours.
#[derive(Clone, Default)]
struct SettableClock(Arc<AtomicI64>);

impl SettableClock {
    fn set(&self, ahead: i64) {
        self.0.store(ahead, Ordering::Relaxed);
    }

    fn wall_clock(&self) -> WallClock {
        let ahead = self.0.clone();
        WallClock::from_fn(move || {
            let by = ahead.load(Ordering::Relaxed);
            let apart = Duration::from_secs(by.unsigned_abs());
            if by < 0 { SystemTime::now() - apart } else { SystemTime::now() + apart }
        })
    }
}

async fn agent(space: &Space, clock: &SettableClock) -> Agent {
    let day = clock.wall_clock();
    Agent::start_with(&space.cluster, "node-1", move |options| options.time_of_day = day).await
}

/// How far ahead of ours a time is that an agent wrote, in seconds.
fn ahead(time: &Value) -> i64 {
    let time: Timestamp = time.as_str().and_then(|time| time.parse().ok()).expect("a time");
    time.as_second() - Timestamp::now().as_second()
}

/// Waits until the Lease is held by an agent that began by a clock which is this far ahead, give or take half an hour.
async fn begun_by(space: &Space, clock: i64) {
    eventually(&format!("the agent began by a clock {clock} s ahead"), || async {
        let lease = space.cluster.wire().get(&format!("{LEASES}/quorate-agent-node-1")).await;
        let began = lease.body["spec"]["acquireTime"].clone();
        let is = began.is_string() && (ahead(&began) - clock).abs() < HOUR / 2;
        if is { Ok(()) } else { Err(lease.body) }
    })
    .await;
}

async fn a_clock_that_is_set_makes_no_yes_and_no_no(cluster: Cluster) {
    let (space, web) = one(cluster, "clocks").await;
    let clock = SettableClock::default();
    let _agent = agent(&space, &clock).await;
    let may_go = |status: &Value| status["disruptionsAllowed"] == 1;
    space.budget_is("db", "it is believed", may_go).await;

    // What was written lies ahead of all that will happen; and then behind all that has.
    for by in [-HOUR, HOUR] {
        clock.set(by);
        begun_by(&space, by).await;
        space.budget_is("db", "it is believed still", may_go).await;
        // Each answer counts as it did.
        web.say(503, "busy");
        says(&space, "a", "False", "ProbeFailed", "HTTP 503").await;
        refused(&space, "a", "its disruption probe says no (main: HTTP 503 Service Unavailable: busy").await;
        web.say(200, "");
        says_yes(&space, "a").await;
        space.budget_is("db", "it is believed again", may_go).await;
    }

    // Set while the pod changes its mind: the no of now counts, whatever the times say.
    clock.set(-HOUR);
    web.say(503, "late");
    says(&space, "a", "False", "ProbeFailed", "HTTP 503 Service Unavailable: late").await;
    space.budget_is("db", "it may not go", |status| status["currentHealthy"] == 0).await;
    refused(&space, "a", "its disruption probe says no (main: HTTP 503 Service Unavailable: late").await;
}

async fn a_yes_from_the_future_is_not_believed(cluster: Cluster) {
    let (space, web) = one(cluster, "future").await;
    let clock = SettableClock::default();
    clock.set(HOUR);
    let first = agent(&space, &clock).await;
    space.budget_is("db", "it is believed", |status| status["disruptionsAllowed"] == 1).await;
    assert!(ahead(&condition(&space, "a").await["lastProbeTime"]) > HOUR / 2);
    drop(first);

    // The next one has the right time: by the times alone the old yes is younger than it, and stands for ever.
    clock.set(0);
    web.say(503, "");
    let _second = agent(&space, &clock).await;
    begun_by(&space, 0).await;
    // With the Lease it would be believed: so it is gone by then.
    let shown = condition(&space, "a").await;
    assert_eq!(shown["status"], "False", "{shown}");
    space.budget_is("db", "it may not go", |status| status["currentHealthy"] == 0).await;
    web.say(200, "");
    says_yes(&space, "a").await;
    space.budget_is("db", "it is believed again", |status| status["disruptionsAllowed"] == 1).await;
}
