//! A server that is told to end is missed by nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::replicas::Replicas;
use crate::town::Town;

quorate_testbed::stories!(Whole: servers_end_twenty_times_and_nobody_sees_an_error);

const TIMES: usize = 20;

/// How many end together, while as many others serve on.
const TOGETHER: usize = 2;

async fn servers_end_twenty_times_and_nobody_sees_an_error(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2 * TOGETHER, &["--shutdown-delay-seconds=2"]).await;
    let town = Arc::new(Town::found(&cluster, "busy").await);
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 0).await;
    town.labelled(true).await;
    let over = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = (0..4)
        .map(|number| {
            let (town, over, asked) = (town.clone(), over.clone(), asked.clone());
            tokio::spawn(async move {
                let mut wrong = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let answer = town.evict(&format!("web-{}", number % 2)).await;
                    asked.fetch_add(1, Ordering::Relaxed);
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
        let places = first..first + TOGETHER;
        places.clone().for_each(|place| replicas.signal(place, "TERM"));
        for place in places {
            let replicas_cell = parking_lot::Mutex::new(&mut replicas);
            let status = eventually("the server has ended", || async {
                replicas_cell.lock().has_ended(place).ok_or("running")
            })
            .await;
            assert!(status.success(), "{status}");
            replicas.fill(place).await;
        }
        replicas.until_ready(2 * TOGETHER).await;
    }
    over.store(true, Ordering::Relaxed);
    for evictor in asking {
        let wrong = evictor.await.expect("an evictor");
        assert!(wrong.is_empty(), "not a refusal as it should be: {wrong:#?}");
    }
    println!("{} evictions asked for while {TIMES} servers ended", asked.load(Ordering::Relaxed));
}
