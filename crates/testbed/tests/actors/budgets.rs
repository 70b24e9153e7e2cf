//! Tests of the status of native PodDisruptionBudgets.

use kube::ResourceExt;
use kube::api::{EvictParams, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{Fixture, template};

mod alone {
    use super::*;
    quorate_testbed::stories!(ApiServer: a_budget_counts_the_scale_of_controllers, a_budget_over_bare_pods_allows_nothing, an_eviction_is_counted_at_once);
}
/// The same stories with the real controllers: the actors must behave like them.
mod beside {
    #[test]
    fn a_budget_counts_the_scale_of_controllers() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_budget_counts_the_scale_of_controllers,
        );
    }

    #[test]
    fn a_budget_over_bare_pods_allows_nothing() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_budget_over_bare_pods_allows_nothing,
        );
    }

    #[test]
    fn an_eviction_is_counted_at_once() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::an_eviction_is_counted_at_once,
        );
    }
}

fn budget(spec: Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budget"}, "spec": spec})
}

/// Waits until the status has these numbers: allowed, current, desired, expected.
async fn shows(fixture: &Fixture, wanted: (i64, i64, i64, i64)) {
    let api = fixture.api(&budget(json!({})));
    eventually(&format!("the budget shows {wanted:?}"), || async {
        let found = api.get("budget").await.unwrap();
        let status = &found.data["status"];
        let number = |field: &str| status[field].as_i64().unwrap_or(-1);
        let shown = (
            number("disruptionsAllowed"),
            number("currentHealthy"),
            number("desiredHealthy"),
            number("expectedPods"),
        );
        let condition =
            status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "DisruptionAllowed");
        let agrees = condition.is_some_and(|c| (c["status"] == "True") == (shown.0 > 0));
        if shown == wanted && agrees && status["observedGeneration"] == json!(found.metadata.generation) {
            Ok(())
        } else {
            Err(status.clone())
        }
    })
    .await;
}

async fn a_budget_counts_the_scale_of_controllers(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "counts").await;
    fixture
        .create(budget(json!({"minAvailable": "50%", "selector": {"matchLabels": {"tier": "back"}}})))
        .await;
    shows(&fixture, (0, 0, 0, 0)).await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
        "template": template(json!({"app": "web", "tier": "back"}), "web:1")}});
    fixture.create(deployment).await;
    shows(&fixture, (1, 3, 2, 3)).await;
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
        "replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": template(json!({"app": "db", "tier": "back"}), "db:1")}});
    fixture.create(set).await;
    shows(&fixture, (2, 5, 3, 5)).await;
    fixture.kubelets.set_ready(&fixture.namespace, "db-0", false).unwrap();
    shows(&fixture, (1, 4, 3, 5)).await;
    let api = fixture.api(&budget(json!({})));
    let patch = json!({"spec": {"minAvailable": null, "maxUnavailable": 2}});
    api.patch("budget", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    shows(&fixture, (1, 4, 3, 5)).await;
    // The pods of a LeaderWorkerSet belong to StatefulSets: the budget counts pods, not groups.
    let lws = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(json!({"tier": "back"}), "llm:1")}}});
    fixture.create(lws).await;
    shows(&fixture, (1, 8, 7, 9)).await;
}

async fn a_budget_over_bare_pods_allows_nothing(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "bare").await;
    for name in ["a", "b"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bare"}},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
        fixture.create(pod).await;
    }
    fixture.ready("app=bare", 2).await;
    fixture.create(budget(json!({"maxUnavailable": 1, "selector": {}}))).await;
    shows(&fixture, (0, 2, 0, 0)).await;
    let events = json!({"apiVersion": "v1", "kind": "Event"});
    eventually("an event states the reason", || async {
        let events = fixture.api(&events).list(&Default::default()).await.unwrap();
        let reasons: Vec<_> = events.iter().map(|event| event.data["reason"].clone()).collect();
        if reasons.contains(&json!("UnmanagedPods")) { Ok(()) } else { Err(reasons) }
    })
    .await;
    let api = fixture.api(&budget(json!({})));
    let patch = json!({"spec": {"maxUnavailable": null, "minAvailable": 1}});
    api.patch("budget", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    shows(&fixture, (1, 2, 1, 2)).await;
}

async fn an_eviction_is_counted_at_once(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "evicted").await;
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template(json!({"app": "web"}), "web:1")}});
    fixture.create(set).await;
    let pods = fixture.ready("app=web", 3).await;
    fixture.create(budget(json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}))).await;
    shows(&fixture, (1, 3, 2, 3)).await;
    fixture.pods().evict(&pods[0].name_any(), &EvictParams::default()).await.unwrap();
    // The budget allows the disruption again once the replacement is ready, not before.
    fixture.ready("app=web", 3).await;
    shows(&fixture, (1, 3, 2, 3)).await;
    let status = fixture.api(&budget(json!({}))).get("budget").await.unwrap().data["status"].clone();
    assert!(status["disruptedPods"].as_object().is_none_or(serde_json::Map::is_empty), "{status}");
}
