//! An upgrade and the way back, with claims outstanding. Both releases run the same program here: what is shown is that
//! nothing is lost, and nobody let through, while servers, definitions and webhooks are exchanged as Helm and a
//! Deployment do it. That a program of another protocol decides nothing is told elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quorate_testbed::Cluster;
use serde_json::json;

use super::{Installed, release};
use crate::quorate::apply;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: an_upgrade_and_the_way_back_let_nobody_through);

async fn an_upgrade_and_the_way_back_let_nobody_through(cluster: Cluster) {
    let mut installed = Installed::install(&cluster).await;
    for _ in 0..2 {
        installed.start_server().await;
    }
    let town = Arc::new(Town::found(&cluster, "upgraded").await);
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}), 1).await;
    town.labelled(true).await;
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("web-0", later, "").await.code, 409);
    refusal(&town.evict("web-1").await);

    let over = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = tokio::spawn({
        let (town, over, asked) = (town.clone(), over.clone(), asked.clone());
        async move {
            let mut wrong = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let answer = town.evict("web-1").await;
                asked.fetch_add(1, Ordering::Relaxed);
                if answer.code != 429 {
                    wrong.push(answer.body);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            wrong
        }
    });
    let before = release(&cluster);
    let after: Vec<String> = before.iter().map(|object| object.replace("0.1.0", "0.2.0")).collect();
    let after: Vec<&str> = after.iter().map(String::as_str).collect();
    for objects in [&after, &before] {
        apply(&cluster, objects).await;
        for _ in 0..2 {
            // One is added before one goes.
            installed.start_server().await;
            installed.end_server().await;
        }
    }
    over.store(true, Ordering::Relaxed);
    let wrong = asking.await.expect("an evictor");
    assert!(wrong.is_empty(), "not a refusal as it should be: {wrong:#?}");
    println!("{} evictions asked for", asked.load(Ordering::Relaxed));
    // What was admitted under the first release is still there to be used.
    let claims = town.status("web").await["claims"].clone();
    assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claims}");
    town.evict("web-0").await.expect(201);
}
