//! The cluster autoscaler: an Eviction of `policy/v1beta1`, repeated every ten seconds for two minutes.

use std::time::Duration;

use quorate_testbed::{Cluster, WireResponse};
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole:
    an_autoscaler_is_denied_until_the_budget_allows,
    an_autoscaler_takes_one_group_at_a_time,
);

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

/// The autoscaler evicts the pods of a node one by one. It takes the rest of a group that is down, and waits before the
/// next group until the first one is rebuilt.
async fn an_autoscaler_takes_one_group_at_a_time(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "groups").await;
    let create = async |pod: &str, shard: &str| {
        ns.create_pod(pod, json!({"app": "shards", "shard": shard})).await;
    };
    for pod in ["a-0", "a-1", "b-0", "b-1"] {
        create(pod, &pod[..1]).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "shards"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "shard", "minReadyReplicas": 2},
    });
    ns.create_budget_allowing("shards", spec, 1).await;
    for pod in ["a-0", "a-1"] {
        evict_as_autoscalers_do(&ns, pod).await.expect(201);
    }
    let start = Instant::now();
    let mut refusals = 0;
    loop {
        assert!(start.elapsed() < GIVES_UP, "the autoscaler gave up after {refusals} refusals");
        let answer = evict_as_autoscalers_do(&ns, "b-0").await;
        if answer.code == 201 {
            break;
        }
        let sentence = denial(&answer);
        assert!(sentence.contains("keeps 1 of 2 groups: group b would be the second one down"), "{sentence}");
        refusals += 1;
        // Half a group does not serve: only the second pod lets the autoscaler continue.
        if refusals <= 2 {
            create(&format!("a-new-{refusals}"), "a").await;
        }
        tokio::time::sleep(RETRY).await;
    }
    assert_eq!(refusals, 2, "it is let through as soon as it may be");
    evict_as_autoscalers_do(&ns, "b-1").await.expect(201);
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
