//! What else than evictions a budget may speak of: a whole collection deleted at once, and a resize.

use quorate_testbed::{Answer, Cluster, Patch};
use serde_json::json;

use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole:
    a_collection_is_deleted_as_far_as_the_budget_goes,
    a_resize_waits_where_it_restarts_a_container,
);

async fn a_collection_is_deleted_as_far_as_the_budget_goes(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "collection").await;
    for number in 0..4 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "operations": ["Evict", "Delete"],
    });
    town.budget("web", spec, 2).await;
    let path = format!("/api/v1/namespaces/{}/pods?labelSelector=app%3Dweb", town.namespace);
    let sentence = refusal(&town.wire.delete(&path, &json!({})).await);
    // Of how many depends on how many of those that went are known to be gone.
    assert!(sentence.starts_with(&format!("{}/web keeps 2 of ", town.namespace)), "{sentence}");
    let left = town.wire.get(&path).await.expect(200)["items"].as_array().map_or(0, Vec::len);
    assert_eq!(left, 2);
}

async fn a_resize_waits_where_it_restarts_a_container(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "resized").await;
    // The API server looks whether there is room.
    let room = json!({"cpu": "4", "memory": "4Gi", "pods": "10"});
    let status = json!({"status": {"capacity": room, "allocatable": room}});
    town.wire.patch("/api/v1/nodes/by-hand/status", Patch::Merge, &status).await.expect(200);
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
        town.pod_with(&format!("db-{number}"), json!({"app": "db"}), more).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "db"}}, "minAvailable": 1, "operations": ["Evict", "Resize"],
    });
    town.budget("db", spec, 1).await;
    town.asked_about_updates().await;
    let cpu = json!({"requests": {"cpu": "200m"}});
    let memory = json!({"requests": {"memory": "128Mi"}, "limits": {"memory": "128Mi"}});
    // One is being restarted: the other may get more of what needs no restart, and nothing else.
    resize(&town, "db-0", &memory).await.expect(200);
    town.allows("db", 0).await;
    resize(&town, "db-1", &cpu).await.expect(200);
    let sentence = refusal(&resize(&town, "db-1", &memory).await);
    assert!(sentence.starts_with(&format!("{}/db keeps 1 of 2 pods: ", town.namespace)), "{sentence}");
    refusal(&town.evict("db-1").await);
}

async fn resize(town: &Town, pod: &str, resources: &serde_json::Value) -> Answer {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/resize", town.namespace);
    town.wire.patch(&path, Patch::Strategic, &patch).await
}
