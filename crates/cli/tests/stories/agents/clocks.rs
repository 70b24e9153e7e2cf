//! Nodes whose wall clock is set forward and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use quorate_agent::WallClock;
use quorate_testbed::{Cluster, eventually};
use serde_json::Value;

use super::lifecycle::{LEASES, create_probed_pod};
use super::{Agent, await_denial, await_disruptable, await_disruptable_true, disruptable_condition};
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole:
    a_clock_change_alters_no_probe_result,
    a_success_with_a_future_time_is_not_used,
);

const HOUR: i64 = 3600;

/// The clock of a node, in seconds ahead of the clock of this process.
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

async fn agent(ns: &TestNamespace, clock: &SettableClock) -> Agent {
    let day = clock.wall_clock();
    Agent::start_with(&ns.cluster, "node-1", move |options| options.time_of_day = day).await
}

/// The seconds that a time, as written by an agent, is ahead of the clock of this process.
fn ahead(time: &Value) -> i64 {
    let time: Timestamp = time.as_str().and_then(|time| time.parse().ok()).expect("a time");
    time.as_second() - Timestamp::now().as_second()
}

/// Waits until the Lease shows an agent that started by a clock this far ahead, within half an hour.
async fn await_lease_by_clock(ns: &TestNamespace, clock: i64) {
    eventually(&format!("the agent began by a clock {clock} s ahead"), || async {
        let lease = ns.wire.get(&format!("{LEASES}/quorate-agent-node-1")).await;
        let began = lease.body["spec"]["acquireTime"].clone();
        let is = began.is_string() && (ahead(&began) - clock).abs() < HOUR / 2;
        if is { Ok(()) } else { Err(lease.body) }
    })
    .await;
}

async fn a_clock_change_alters_no_probe_result(cluster: Cluster) {
    let (ns, web) = create_probed_pod(cluster, "clocks").await;
    let clock = SettableClock::default();
    let _agent = agent(&ns, &clock).await;
    let allows_one = |status: &Value| status["disruptionsAllowed"] == 1;
    ns.await_status("db", "the result counts", allows_one).await;

    // First the written times are later than everything that follows, then earlier than everything before.
    for by in [-HOUR, HOUR] {
        clock.set(by);
        await_lease_by_clock(&ns, by).await;
        ns.await_status("db", "the result still counts", allows_one).await;
        // Each probe result counts as before.
        web.respond_with(503, "busy");
        await_disruptable(&ns, "a", "False", "ProbeFailed", "HTTP 503").await;
        await_denial(&ns, "a", "its disruption probe says no (main: HTTP 503 Service Unavailable: busy")
            .await;
        web.respond_with(200, "");
        await_disruptable_true(&ns, "a").await;
        ns.await_status("db", "the result counts again", allows_one).await;
    }

    // The clock is set while the result changes: the new failure counts, whatever the times are.
    clock.set(-HOUR);
    web.respond_with(503, "late");
    await_disruptable(&ns, "a", "False", "ProbeFailed", "HTTP 503 Service Unavailable: late").await;
    ns.await_status("db", "it may not go", |status| status["currentHealthy"] == 0).await;
    await_denial(&ns, "a", "its disruption probe says no (main: HTTP 503 Service Unavailable: late").await;
}

async fn a_success_with_a_future_time_is_not_used(cluster: Cluster) {
    let (ns, web) = create_probed_pod(cluster, "future").await;
    let clock = SettableClock::default();
    clock.set(HOUR);
    let first = agent(&ns, &clock).await;
    ns.await_status("db", "the result counts", |status| status["disruptionsAllowed"] == 1).await;
    assert!(ahead(&disruptable_condition(&ns, "a").await["lastProbeTime"]) > HOUR / 2);
    drop(first);

    // The next agent has the right time. By the times alone, the old success would be newer and count for ever.
    clock.set(0);
    web.respond_with(503, "");
    let _second = agent(&ns, &clock).await;
    await_lease_by_clock(&ns, 0).await;
    // With the Lease the old success would count, so it must be gone before the Lease is written.
    let shown = disruptable_condition(&ns, "a").await;
    assert_eq!(shown["status"], "False", "{shown}");
    ns.await_status("db", "it may not go", |status| status["currentHealthy"] == 0).await;
    web.respond_with(200, "");
    await_disruptable_true(&ns, "a").await;
    ns.await_status("db", "the result counts again", |status| status["disruptionsAllowed"] == 1).await;
}
