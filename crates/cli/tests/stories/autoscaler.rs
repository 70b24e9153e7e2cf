//! The cluster autoscaler: an Eviction of `policy/v1beta1`, repeated every ten seconds for two minutes.

use std::time::Duration;

use quorate_testbed::{Cluster, WireResponse};
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: an_autoscaler_is_denied_until_the_budget_allows);

const RETRY: Duration = Duration::from_secs(10);
const GIVES_UP: Duration = Duration::from_secs(120);

async fn an_autoscaler_is_denied_until_the_budget_allows(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "scaled").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}),
        1,
    )
    .await;
    ns.evict("web-0").await.expect(201);
    let start = Instant::now();
    let mut refusals = 0;
    loop {
        assert!(start.elapsed() < GIVES_UP, "the autoscaler gave up after {refusals} refusals");
        let answer = evict_as_autoscalers_do(&ns, "web-1").await;
        if answer.code == 201 {
            break;
        }
        denial(&answer);
        refusals += 1;
        // A replacement pod becomes ready after a while.
        if refusals == 2 {
            ns.create_pod("web-2", json!({"app": "web"})).await;
        }
        tokio::time::sleep(RETRY).await;
    }
    assert_eq!(refusals, 2, "it is let through as soon as it may be");
    assert!(!ns.pod_exists("web-1").await);
}

async fn evict_as_autoscalers_do(ns: &TestNamespace, pod: &str) -> WireResponse {
    let eviction = json!({
        "apiVersion": "policy/v1beta1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": ns.name},
        "deleteOptions": {"gracePeriodSeconds": 0},
    });
    let path = ns.pod_path(&format!("{pod}/eviction"));
    ns.wire.post(&path, &eviction).await
}
