//! Tests of eviction and native budgets, one per behaviour.

use kube::api::PostParams;
use quorate_devcluster::apiserver::{Fault, RequestFilter};
use serde_json::{Value, json};

use crate::fixture::{admin, budget, budgets, evict, pod, pods, post, refusal, running, server};

fn numbers(allowed: i64, current: i64, desired: i64) -> Value {
    json!({"disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": desired, "expectedPods": 3})
}

fn cause(status: &Value) -> &str {
    status["details"]["causes"][0]["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn pods_that_no_budget_counts_are_evicted_at_once() {
    let server = server().await;
    let client = admin(&server);
    budget(&client, json!({}), numbers(0, 3, 3)).await;
    pods(&client).create(&PostParams::default(), &pod("pending")).await.unwrap();
    assert_eq!(evict(&client, "pending", json!(null), "").await.0, 201);
    assert_eq!(refusal(pods(&client).get("pending").await).code, 404);
    for phase in ["Succeeded", "Failed"] {
        let name = phase.to_lowercase();
        running(&client, &name, true).await;
        let patch = kube::api::Patch::Merge(json!({"status": {"phase": phase}}));
        pods(&client).patch_status(&name, &Default::default(), &patch).await.unwrap();
        assert_eq!(evict(&client, &name, json!({}), "").await.0, 201);
        assert_eq!(refusal(pods(&client).get(&name).await).code, 404);
    }
    let (code, status) = evict(&client, "missing", json!({}), "").await;
    assert_eq!((code, status["message"].as_str().unwrap()), (404, "pods \"missing\" not found"));
}

#[tokio::test]
async fn an_exhausted_budget_denies_with_its_numbers() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    budget(&client, json!({}), numbers(0, 2, 2)).await;
    let (code, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!(code, 429);
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(status["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert_eq!(cause(&status), "The disruption budget foo needs 2 healthy pods and has 2 currently");
    assert!(status["details"].get("retryAfterSeconds").is_none());
    let conditions = json!([{"type": "DisruptionAllowed", "status": "False", "reason": "bar-reason", "message": "hoge", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let patch = kube::api::Patch::Merge(
        json!({"status": {"currentHealthy": 4, "desiredHealthy": 3, "conditions": conditions}}),
    );
    budgets(&client).patch_status("foo", &Default::default(), &patch).await.unwrap();
    let (_, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!(
        cause(&status),
        "The disruption budget foo does not allow evicting pods currently (bar-reason): hoge"
    );
    let patch = kube::api::Patch::Json::<Value>(
        serde_json::from_value(
            json!([{"op": "replace", "path": "/status/conditions/0/reason", "value": "SyncFailed"}]),
        )
        .unwrap(),
    );
    budgets(&client).patch_status("foo", &Default::default(), &patch).await.unwrap();
    let (_, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!(
        cause(&status),
        "The disruption budget foo does not allow evicting pods currently because it failed sync: hoge"
    );
}

#[tokio::test]
async fn an_allowed_eviction_is_charged_and_sets_a_pod_condition() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    budget(&client, json!({}), numbers(1, 3, 2)).await;
    let (code, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!((code, status["status"].as_str().unwrap()), (201, "Success"));
    let after = budgets(&client).get("foo").await.unwrap().status.unwrap();
    assert_eq!(after.disruptions_allowed, 0);
    assert!(after.disrupted_pods.unwrap().contains_key("a"));
    assert_eq!(after.conditions.unwrap()[0].reason, "InsufficientPods");
    let gone = pods(&client).get("a").await.unwrap();
    assert!(gone.metadata.deletion_timestamp.is_some());
    let target =
        gone.status.unwrap().conditions.unwrap().into_iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!((target.status.as_str(), target.reason.as_deref()), ("True", Some("EvictionByEvictionAPI")));
    // The pod is already terminating: no second charge, no denial.
    assert_eq!(evict(&client, "a", json!({}), "").await.0, 201);
}

#[tokio::test]
async fn unready_pods_are_evicted_according_to_the_policy() {
    for (spec, status, code) in [
        (json!({}), numbers(0, 2, 2), 201),
        (json!({}), numbers(0, 1, 2), 429),
        (json!({}), numbers(0, 0, 0), 429),
        (json!({"unhealthyPodEvictionPolicy": "IfHealthyBudget"}), numbers(0, 2, 2), 201),
        (json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), numbers(0, 0, 2), 201),
        (json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), numbers(0, 0, 0), 201),
    ] {
        let server = server().await;
        let client = admin(&server);
        running(&client, "a", false).await;
        budget(&client, spec.clone(), status.clone()).await;
        assert_eq!(evict(&client, "a", json!({}), "").await.0, code, "{spec} {status}");
        let after = budgets(&client).get("foo").await.unwrap().status.unwrap();
        assert!(after.disrupted_pods.is_none(), "an unready pod is not charged");
    }
}

#[tokio::test]
async fn an_empty_selector_two_budgets_and_an_unobserved_budget_deny() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    budget(&client, json!({"selector": {}}), numbers(0, 3, 3)).await;
    let (_, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!(
        cause(&status),
        "The disruption budget foo needs 3 healthy pods and has 3 currently",
        "{{}} selects all"
    );
    let patch = kube::api::Patch::Merge(json!({"spec": {"minAvailable": 1}}));
    budgets(&client).patch("foo", &Default::default(), &patch).await.unwrap();
    let (code, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!((code, status["details"]["retryAfterSeconds"].as_i64()), (429, Some(10)));
    assert_eq!(cause(&status), "The disruption budget foo is still being processed by the server.");
    let second = json!({"metadata": {"name": "bar"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}});
    post(&client, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", second).await;
    let (code, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!(code, 500);
    assert!(
        status["message"].as_str().unwrap().starts_with("This pod has more than one PodDisruptionBudget")
    );
    assert!(status.get("reason").is_none());
}

#[tokio::test]
async fn preconditions_names_and_versions_are_checked() {
    let server = server().await;
    let client = admin(&server);
    let made = running(&client, "a", true).await;
    let (code, status) = evict(&client, "a", json!({"preconditions": {"uid": "other"}}), "").await;
    assert_eq!(code, 409);
    assert!(status["message"].as_str().unwrap().contains("might have been deleted and then recreated"));
    let (code, status) = evict(&client, "a", json!({"preconditions": {"resourceVersion": "1"}}), "").await;
    assert_eq!(code, 409);
    assert!(status["message"].as_str().unwrap().contains("might have been modified"));
    let path = "/api/v1/namespaces/default/pods/a/eviction";
    let (code, status) = post(&client, path, json!({"metadata": {"name": "b"}})).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (400, "name in URL does not match name in Eviction object")
    );
    let (code, _) = post(
        &client,
        path,
        json!({"apiVersion": "policy/v2", "kind": "Eviction", "metadata": {"name": "a"}}),
    )
    .await;
    assert_eq!(code, 400);
    let (code, _) = post(&client, path, json!({"metadata": {"name": "a"}, "deleteOptions": {"ignoreStoreReadErrorWithClusterBreakingPotential": true}})).await;
    assert_eq!(code, 422);
    let (code, _) = crate::fixture::get(&client, path, "").await;
    assert_eq!(code, 405);
    assert!(pods(&client).get("a").await.unwrap().metadata.deletion_timestamp.is_none());
    let right = json!({"preconditions": {"uid": made.metadata.uid, "resourceVersion": made.metadata.resource_version}});
    assert_eq!(evict(&client, "a", right, "").await.0, 201);
}

#[tokio::test]
async fn v1beta1_bodies_and_dry_runs_are_supported() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    budget(&client, json!({}), numbers(1, 3, 2)).await;
    let before = server.revision();
    assert_eq!(evict(&client, "a", json!({}), "?dryRun=All").await.0, 201);
    assert_eq!(evict(&client, "a", json!({"dryRun": ["All"]}), "").await.0, 201);
    assert_eq!(evict(&client, "a", json!({"dryRun": ["All"]}), "?dryRun=All").await.0, 201);
    assert_eq!(server.revision(), before);
    let body = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "a"}});
    assert_eq!(post(&client, "/api/v1/namespaces/default/pods/a/eviction", body).await.0, 201);
}

#[tokio::test]
async fn a_conflict_on_the_budget_is_retried() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    budget(&client, json!({}), numbers(1, 3, 2)).await;
    let guard = server
        .faults()
        .requests(
            RequestFilter::any().resource("poddisruptionbudgets").user("system:apiserver"),
            Fault::Conflict,
        )
        .times(3);
    assert_eq!(evict(&client, "a", json!({}), "").await.0, 201);
    assert_eq!(guard.hits(), 3);
    drop(guard);
    running(&client, "b", true).await;
    let patch = kube::api::Patch::Merge(json!({"status": {"disruptionsAllowed": 1}}));
    budgets(&client).patch_status("foo", &Default::default(), &patch).await.unwrap();
    let _guard = server.faults().requests(RequestFilter::any().user("system:apiserver"), Fault::Conflict);
    assert_eq!(evict(&client, "b", json!({}), "").await.0, 409, "and given up in the end");
}

#[tokio::test]
async fn concurrent_evictions_never_overspend() {
    let server = server().await;
    let client = admin(&server);
    for n in 0..10 {
        running(&client, &format!("p{n}"), true).await;
    }
    budget(&client, json!({}), numbers(3, 10, 7)).await;
    let all = (0..10).map(|n| {
        let client = client.clone();
        async move { evict(&client, &format!("p{n}"), json!({}), "").await.0 }
    });
    let codes = futures::future::join_all(all).await;
    assert_eq!(codes.iter().filter(|c| **c == 201).count(), 3, "{codes:?}");
    assert_eq!(codes.iter().filter(|c| **c == 429).count(), 7, "{codes:?}");
}
