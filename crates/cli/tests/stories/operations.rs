//! Operations beside evictions: the delete of a collection, and a resize.

use quorate_testbed::{Cluster, Patch, WireResponse};
use serde_json::json;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole:
    a_collection_is_deleted_down_to_the_budget,
    a_resize_that_restarts_a_container_is_denied,
);

async fn a_collection_is_deleted_down_to_the_budget(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "collection").await;
    for number in 0..4 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "operations": ["Evict", "Delete"],
    });
    ns.create_budget_allowing("web", spec, 2).await;
    let path = ns.path("v1", "pods?labelSelector=app%3Dweb");
    let sentence = denial(&ns.wire.delete(&path, &json!({})).await);
    // The second number depends on how many of the deleted pods the server has already seen go.
    assert!(sentence.starts_with(&format!("{}/web keeps 2 of ", ns.name)), "{sentence}");
    let left = ns.wire.get(&path).await.expect(200)["items"].as_array().map_or(0, Vec::len);
    assert_eq!(left, 2);
}

async fn a_resize_that_restarts_a_container_is_denied(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "resized").await;
    // The API server checks the capacity of the node.
    let room = json!({"cpu": "4", "memory": "4Gi", "pods": "10"});
    let status = json!({"status": {"capacity": room, "allocatable": room}});
    ns.wire.patch("/api/v1/nodes/by-hand/status", Patch::Merge, &status).await.expect(200);
    for number in 0..2 {
        let container = json!({
            "name": "main", "image": "main:1",
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
            "resizePolicy": [
                {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": "RestartContainer"},
            ],
        });
        let more = json!({"containers": [container]});
        ns.create_pod_with(&format!("db-{number}"), json!({"app": "db"}), more).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "db"}}, "minAvailable": 1, "operations": ["Evict", "Resize"],
    });
    ns.create_budget_allowing("db", spec, 1).await;
    ns.await_update_webhook().await;
    let cpu = json!({"requests": {"cpu": "200m"}});
    let memory = json!({"requests": {"memory": "128Mi"}, "limits": {"memory": "128Mi"}});
    // While one pod is restarted, only a resize without a restart of the other pod is allowed.
    resize(&ns, "db-0", &memory).await.expect(200);
    ns.await_allowed("db", 0).await;
    resize(&ns, "db-1", &cpu).await.expect(200);
    let sentence = denial(&resize(&ns, "db-1", &memory).await);
    assert!(sentence.starts_with(&format!("{}/db keeps 1 of 2 pods: ", ns.name)), "{sentence}");
    denial(&ns.evict("db-1").await);
}

async fn resize(ns: &TestNamespace, pod: &str, resources: &serde_json::Value) -> WireResponse {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
    let path = ns.pod_path(&format!("{pod}/resize"));
    ns.wire.patch(&path, Patch::Strategic, &patch).await
}
