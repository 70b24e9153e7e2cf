//! The shutdown of a server causes no error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::TestNamespace;
use crate::replicas::Replicas;

quorate_testbed::stories!(Whole: servers_shut_down_twenty_times_without_an_error);

const TIMES: usize = 20;

/// The number of servers that end together, while as many others keep serving.
const TOGETHER: usize = 2;

async fn servers_shut_down_twenty_times_without_an_error(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2 * TOGETHER, &["--shutdown-delay-seconds=5"]).await;
    let ns = Arc::new(TestNamespace::with_manual_pods(&cluster, "busy").await);
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}),
        0,
    )
    .await;
    ns.await_enforced_label(true).await;
    let stopped = Arc::new(AtomicBool::new(false));
    let evictions = Arc::new(AtomicUsize::new(0));
    let evictors: Vec<_> = (0..4)
        .map(|number| {
            let (ns, stopped, evictions) = (ns.clone(), stopped.clone(), evictions.clone());
            tokio::spawn(async move {
                let mut wrong = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    let answer = ns.evict(&format!("web-{}", number % 2)).await;
                    evictions.fetch_add(1, Ordering::Relaxed);
                    if answer.code != 429 {
                        wrong.push(answer.body);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                wrong
            })
        })
        .collect();
    for round in 0..TIMES / TOGETHER {
        let first = round % 2 * TOGETHER;
        let slots = first..first + TOGETHER;
        slots.clone().for_each(|slot| replicas.signal(slot, "TERM"));
        for slot in slots {
            let replicas_cell = parking_lot::Mutex::new(&mut replicas);
            let status = eventually("the server has ended", || async {
                replicas_cell.lock().has_ended(slot).ok_or("running")
            })
            .await;
            assert!(status.success(), "{status}");
            replicas.fill(slot).await;
        }
        replicas.until_ready(2 * TOGETHER).await;
    }
    stopped.store(true, Ordering::Relaxed);
    for evictor in evictors {
        let wrong = evictor.await.expect("an evictor");
        assert!(wrong.is_empty(), "not a denial: {wrong:#?}");
    }
    println!("{} evictions while {TIMES} servers ended", evictions.load(Ordering::Relaxed));
}
