//! The cluster autoscaler: an eviction in the old body, asked again every ten seconds for two minutes.

use std::time::Duration;

use quorate_testbed::{Answer, Cluster};
use serde_json::json;
use tokio::time::Instant;

use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: an_autoscaler_is_refused_and_then_gets_its_pod);

const RETRY: Duration = Duration::from_secs(10);
const GIVES_UP: Duration = Duration::from_secs(120);

async fn an_autoscaler_is_refused_and_then_gets_its_pod(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "scaled").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}), 1).await;
    town.evict("web-0").await.expect(201);
    let start = Instant::now();
    let mut refusals = 0;
    loop {
        assert!(start.elapsed() < GIVES_UP, "the autoscaler gave up after {refusals} refusals");
        let answer = evict_as_autoscalers_do(&town, "web-1").await;
        if answer.code == 201 {
            break;
        }
        refusal(&answer);
        refusals += 1;
        // After a while there is another pod to serve.
        if refusals == 2 {
            town.pod("web-2", json!({"app": "web"})).await;
        }
        tokio::time::sleep(RETRY).await;
    }
    assert_eq!(refusals, 2, "it is let through as soon as it may be");
    assert!(!town.exists("web-1").await);
}

async fn evict_as_autoscalers_do(town: &Town, pod: &str) -> Answer {
    let eviction = json!({
        "apiVersion": "policy/v1beta1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": town.namespace},
        "deleteOptions": {"gracePeriodSeconds": 0},
    });
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", town.namespace);
    town.wire.post(&path, &eviction).await
}
