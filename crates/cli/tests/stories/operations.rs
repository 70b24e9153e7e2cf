//! Operations beside evictions: the delete of a collection, and resizes.

use std::time::Duration;

use quorate_testbed::{Cluster, Kubernetes, Patch, WireResponse};
use serde_json::{Value, json};

use crate::events::await_events;
use crate::fixture::{TestNamespace, denial};
use crate::quorate::{Quorate, install};

quorate_testbed::stories!(Whole:
    a_collection_is_deleted_down_to_the_budget,
    a_resize_that_restarts_a_container_is_denied,
    a_resize_that_the_node_cannot_carry_out_expires,
);

/// Longer than the story needs before it reports the resize as infeasible, also on a busy machine.
const EXPIRY: Duration = Duration::from_secs(8);

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
    create_resizable_pods(&ns).await;
    let cpu = json!({"requests": {"cpu": "200m"}});
    // While one pod is restarted, only a resize without a restart of the other pod is allowed.
    resize(&ns, "db-0", &more_memory()).await.expect(200);
    ns.await_allowed("db", 0).await;
    resize(&ns, "db-1", &cpu).await.expect(200);
    let sentence = denial(&resize(&ns, "db-1", &more_memory()).await);
    assert!(sentence.starts_with(&format!("{}/db keeps 1 of 2 pods: ", ns.name)), "{sentence}");
    denial(&ns.evict("db-1").await);
}

/// The kubelet restarts nothing then, and says so in the status of the pod.
async fn a_resize_that_the_node_cannot_carry_out_expires(cluster: Cluster) {
    if cluster.is_before(Kubernetes::V1_35) {
        return; // Resizing is an alpha feature there, and off.
    }
    install(&cluster).await;
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = EXPIRY).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "infeasible").await;
    create_resizable_pods(&ns).await;
    resize(&ns, "db-0", &more_memory()).await.expect(200);
    denial(&resize(&ns, "db-1", &more_memory()).await);
    let conditions = json!([
        {"type": "Ready", "status": "True"},
        {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
    ]);
    let path = ns.pod_path("db-0/status");
    ns.wire.patch(&path, Patch::Merge, &json!({"status": {"conditions": conditions}})).await.expect(200);
    let note = await_events(&ns, "db", "NotDisrupted").await[0]["note"].clone();
    assert!(note.as_str().is_some_and(|note| note.contains("db-0")), "{note}");
    ns.await_status("db", "nothing is claimed", |status| {
        status["claims"] == json!({}) && status["disruptionsAllowed"] == 1
    })
    .await;
    resize(&ns, "db-1", &more_memory()).await.expect(200);
}

/// Two pods that restart when their memory changes, under a budget that allows one disruption.
async fn create_resizable_pods(ns: &TestNamespace) {
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
}

fn more_memory() -> Value {
    json!({"requests": {"memory": "128Mi"}, "limits": {"memory": "128Mi"}})
}

async fn resize(ns: &TestNamespace, pod: &str, resources: &Value) -> WireResponse {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
    let path = ns.pod_path(&format!("{pod}/resize"));
    ns.wire.patch(&path, Patch::Strategic, &patch).await
}
