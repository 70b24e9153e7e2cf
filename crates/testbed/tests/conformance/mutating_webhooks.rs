//! Tests of mutating webhooks.

use quorate_testbed::{Cluster, Reply, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, config_map, pod, text, uid_of};
use crate::validating_webhooks::{Installed, not_now, rule};

stories!(ApiServer:
    a_patch_of_a_webhook_changes_the_stored_object,
    owner_references_can_be_added,
    a_patch_of_an_eviction_pins_the_pod,
    a_pin_to_another_pod_conflicts,
    a_mutating_webhook_can_deny,
    a_patch_that_does_not_apply_fails_the_request,
    a_dry_run_is_mutated_too,
);

async fn a_patch_of_a_webhook_changes_the_stored_object(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let patch = Reply::Patch(json!([{"op": "add", "path": "/data", "value": {"added": "yes"}}]));
    let hook = Installed::new(&cluster, "Mutating", rules, json!({}), move |_| patch.clone()).await;
    let ns = hook.ns();
    let made = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({"k": "v"}))).await.expect(201);
    assert_eq!(made["data"], json!({"added": "yes"}));
    assert_eq!(ns.wire.get(&ns.core("configmaps/one")).await.expect(200)["data"], made["data"]);
    hook.remove().await;
}

async fn owner_references_can_be_added(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["pods"]);
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "a-uid"});
    let patch = Reply::Patch(json!([{"op": "add", "path": "/metadata/ownerReferences", "value": [owner]}]));
    let hook = Installed::new(&cluster, "Mutating", rules, json!({}), move |_| patch.clone()).await;
    let made = hook.ns().create("pods", &pod("one")).await;
    assert_eq!(text(&made, "/metadata/ownerReferences/0/name"), "owner");
    assert_eq!(text(&made, "/metadata/ownerReferences/0/uid"), "a-uid");
    hook.remove().await;
}

async fn pinning(cluster: &Cluster) -> Installed {
    let rules = rule(&["CREATE"], &["pods/eviction"]);
    Installed::new(cluster, "Mutating", rules, json!({}), |request| {
        // The test passes the UID of the pod to the webhook in an annotation.
        let uid = text(request, "/object/metadata/annotations/pin").to_owned();
        let options = match request["object"].get("deleteOptions") {
            Some(options) => options.clone(),
            None => json!({}),
        };
        let mut pinned = options;
        pinned["preconditions"] = json!({"uid": uid});
        Reply::Patch(json!([{"op": "add", "path": "/deleteOptions", "value": pinned}]))
    })
    .await
}

async fn evict_pinned(
    ns: &TestNamespace,
    name: &str,
    uid: &str,
    version: &str,
) -> quorate_testbed::WireResponse {
    let body = json!({"apiVersion": version, "metadata": {"name": name, "namespace": ns.name,
        "annotations": {"pin": uid}}});
    ns.evict_with(name, body).await
}

async fn a_patch_of_an_eviction_pins_the_pod(cluster: Cluster) {
    let hook = pinning(&cluster).await;
    let ns = hook.ns();
    for version in ["policy/v1", "policy/v1beta1"] {
        let pod = ns.pod("one", "Running", Some(true)).await;
        evict_pinned(ns, "one", uid_of(&pod), version).await.expect(201);
        assert_eq!(ns.code(&ns.core("pods/one")).await, 404);
    }
    hook.remove().await;
}

async fn a_pin_to_another_pod_conflicts(cluster: Cluster) {
    let hook = pinning(&cluster).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    let answer = evict_pinned(ns, "one", "another", "policy/v1").await;
    assert_eq!((answer.code, answer.reason()), (409, "Conflict"), "{:#}", answer.body);
    assert_eq!(ns.code(&ns.core("pods/one")).await, 200);
    hook.remove().await;
}

async fn a_mutating_webhook_can_deny(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["pods/eviction"]);
    let hook = Installed::new(&cluster, "Mutating", rules, json!({}), |_| Reply::Deny(not_now())).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict("one").await;
    let message = "admission webhook \"pods.example.com\" denied the request: not now";
    assert_eq!(answer.failure(), (429, "TooManyRequests", message));
    assert_eq!(answer.body["details"]["causes"], not_now()["details"]["causes"]);
    hook.remove().await;
}

async fn a_patch_that_does_not_apply_fails_the_request(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let patch = Reply::Patch(json!([{"op": "remove", "path": "/data/none"}]));
    let hook = Installed::new(&cluster, "Mutating", rules, json!({}), move |_| patch.clone()).await;
    let ns = hook.ns();
    let answer = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({"k": "v"}))).await;
    assert_eq!((answer.code, answer.reason()), (500, "InternalError"), "{:#}", answer.body);
    hook.remove().await;
}

async fn a_dry_run_is_mutated_too(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let patch = Reply::Patch(json!([{"op": "add", "path": "/data", "value": {"added": "yes"}}]));
    let hook = Installed::new(&cluster, "Mutating", rules, json!({}), move |_| patch.clone()).await;
    let ns = hook.ns();
    let path = ns.core("configmaps?dryRun=All");
    let made = ns.wire.post(&path, &config_map("one", json!({}))).await.expect(201);
    assert_eq!(made["data"], json!({"added": "yes"}));
    assert_eq!(hook.seen_once()["dryRun"], true);
    hook.remove().await;
}
