//! Tests of when a webhook is called, and what happens if it does not respond.

use quorate_testbed::{Cluster, Patch, Reply, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, config_map, pod};
use crate::validating_webhooks::{Installed, not_now, rule};

stories!(ApiServer:
    only_requests_that_match_the_rules_are_reviewed,
    another_namespace_is_not_reviewed,
    an_object_selector_matches_the_old_or_the_new_object,
    a_condition_excludes_requests,
    a_condition_that_fails_follows_the_failure_policy,
    a_condition_can_use_the_user,
    an_invalid_webhook_response_fails_the_request,
    an_invalid_webhook_response_is_ignored_with_policy_ignore,
    a_silent_webhook_times_out,
    a_denial_is_never_ignored,
    an_invalid_configuration_is_rejected,
);

async fn only_requests_that_match_the_rules_are_reviewed(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Deny(not_now())).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    ns.config_map("one", json!({})).await;
    ns.wire.delete(&ns.core("configmaps/one"), &json!({})).await.expect(200);
    ns.evict("one").await.expect(201);
    assert_eq!(hook.seen().len(), 0);
    hook.remove().await;
}

async fn another_namespace_is_not_reviewed(cluster: Cluster) {
    let rules = rule(&["*"], &["configmaps"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Deny(not_now())).await;
    let other = TestNamespace::new(&cluster, "other").await;
    other.config_map("one", json!({})).await;
    let ns = hook.ns();
    let answer = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({}))).await;
    assert_eq!(answer.code, 429);
    hook.remove().await;
}

async fn an_object_selector_matches_the_old_or_the_new_object(cluster: Cluster) {
    let selector = json!({"objectSelector": {"matchLabels": {"watched": "yes"}}});
    let rules = rule(&["CREATE", "UPDATE", "DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, selector, |_| Reply::Allow).await;
    let ns = hook.ns();
    ns.create("pods", &pod("one")).await;
    assert_eq!(hook.seen().len(), 0);
    for label in [json!("yes"), json!(null)] {
        let patch = json!({"metadata": {"labels": {"watched": label}}});
        ns.wire.patch(&ns.core("pods/one"), Patch::Merge, &patch).await.expect(200);
    }
    assert_eq!(hook.seen().len(), 2, "one change added the label, the other removed it");
    ns.settle("pods/one").await;
    ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(hook.seen().len(), 2);
    hook.remove().await;
}

async fn a_condition_excludes_requests(cluster: Cluster) {
    let conditions = json!({"matchConditions": [
        {"name": "not-ending", "expression":
            "request.operation != 'DELETE' || !has(oldObject.metadata.deletionTimestamp)"},
        {"name": "labelled", "expression": "oldObject.metadata.labels['a'] == 'true'"},
    ]});
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, conditions, |_| Reply::Allow).await;
    let ns = hook.ns();
    ns.create("pods", &crate::fixtures::pod_on("one", "some-node")).await;
    ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(hook.seen().len(), 1);
    ns.settle("pods/one").await;
    ns.wire.delete(&ns.core("pods/one"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    assert_eq!(hook.seen().len(), 1, "the pod was terminating");
    let mut other = pod("two");
    other["metadata"]["labels"]["a"] = json!("false");
    ns.create("pods", &other).await;
    ns.wire.delete(&ns.core("pods/two"), &json!({})).await.expect(200);
    assert_eq!(hook.seen().len(), 1, "the pod has another label");
    hook.remove().await;
}

async fn a_condition_that_fails_follows_the_failure_policy(cluster: Cluster) {
    for (policy, code) in [("Fail", 403), ("Ignore", 200)] {
        let more = json!({"failurePolicy": policy,
            "matchConditions": [{"name": "broken", "expression": "oldObject.metadata.labels['none'] == 'x'"}]});
        let rules = rule(&["DELETE"], &["pods"]);
        let hook = Installed::new(&cluster, "Validating", rules, more, |_| Reply::Allow).await;
        let ns = hook.ns();
        ns.create("pods", &pod("one")).await;
        let answer = ns.wire.delete(&ns.core("pods/one"), &json!({})).await;
        assert_eq!(answer.code, code, "{policy}: {:#}", answer.body);
        assert_eq!(hook.seen().len(), 0);
        hook.remove().await;
    }
}

async fn a_condition_can_use_the_user(cluster: Cluster) {
    let more = json!({"matchConditions": [
        {"name": "no-kubelet", "expression": "!request.userInfo.username.startsWith('system:node:')"},
        {"name": "no-system", "expression": "!('system:serviceaccounts:kube-system' in request.userInfo.groups)"},
        {"name": "not-terminating-by-grace", "expression":
            "!(has(request.options.gracePeriodSeconds) && request.options.gracePeriodSeconds == 0)"},
    ]});
    let rules = rule(&["DELETE"], &["configmaps"]);
    let hook = Installed::new(&cluster, "Validating", rules, more, |_| Reply::Allow).await;
    let ns = hook.ns();
    let users = [
        quorate_testbed::User::kubelet("node-1").in_group("system:masters"),
        quorate_testbed::User::service_account("kube-system", "generic-garbage-collector")
            .in_group("system:masters"),
        quorate_testbed::User::named("jane").in_group("system:masters"),
    ];
    for user in &users {
        ns.config_map("one", json!({})).await;
        ns.settle("configmaps/one").await;
        let wire = quorate_testbed::Wire::new(cluster.client(user));
        wire.delete(&ns.core("configmaps/one"), &json!({})).await.expect(200);
    }
    assert_eq!(hook.seen_once()["userInfo"]["username"], "jane");
    ns.config_map("one", json!({})).await;
    ns.settle("configmaps/one").await;
    ns.wire.delete(&ns.core("configmaps/one"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    assert_eq!(hook.seen().len(), 1);
    hook.remove().await;
}

async fn an_invalid_webhook_response_fails_the_request(cluster: Cluster) {
    for (code, body) in [(500, "broken"), (200, "{}"), (200, "no json")] {
        let rules = rule(&["CREATE"], &["configmaps"]);
        let hook = Installed::new(&cluster, "Validating", rules, json!({}), move |_| {
            Reply::Nonsense(code, body.to_owned())
        })
        .await;
        let ns = hook.ns();
        let answer = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({}))).await;
        assert_eq!((answer.code, answer.reason()), (500, "InternalError"), "{code} {body}");
        assert!(
            answer
                .message()
                .starts_with("Internal error occurred: failed calling webhook \"pods.example.com\": "),
            "{}",
            answer.message()
        );
        hook.remove().await;
    }
}

async fn an_invalid_webhook_response_is_ignored_with_policy_ignore(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let more = json!({"failurePolicy": "Ignore"});
    let hook =
        Installed::new(&cluster, "Validating", rules, more, |_| Reply::Nonsense(500, "broken".to_owned()))
            .await;
    hook.ns().config_map("one", json!({})).await;
    assert_eq!(hook.seen().len(), 1);
    hook.remove().await;
}

async fn a_silent_webhook_times_out(cluster: Cluster) {
    for (policy, code) in [("Fail", 500), ("Ignore", 201)] {
        let rules = rule(&["CREATE"], &["configmaps"]);
        let more = json!({"failurePolicy": policy, "timeoutSeconds": 1});
        let hook = Installed::new(&cluster, "Validating", rules, more, |_| Reply::Silence).await;
        let ns = hook.ns();
        let answer = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({}))).await;
        assert_eq!(answer.code, code, "{policy}: {:#}", answer.body);
        hook.remove().await;
    }
}

async fn a_denial_is_never_ignored(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let more = json!({"failurePolicy": "Ignore"});
    let hook = Installed::new(&cluster, "Validating", rules, more, |_| Reply::Deny(not_now())).await;
    let ns = hook.ns();
    let answer = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({}))).await;
    assert_eq!(answer.code, 429);
    hook.remove().await;
}

async fn an_invalid_configuration_is_rejected(cluster: Cluster) {
    let wire = cluster.wire();
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let good = json!({"name": "pods.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "rules": rule(&["CREATE"], &["configmaps"])});
    for (key, value, expected) in [
        ("sideEffects", json!("Some"), "sideEffects"),
        ("admissionReviewVersions", json!(["v9"]), "admissionReviewVersions"),
        ("timeoutSeconds", json!(31), "timeoutSeconds"),
        ("failurePolicy", json!("Sometimes"), "failurePolicy"),
        ("matchConditions", json!([{"name": "x", "expression": "1 +"}]), "matchConditions"),
        ("clientConfig", json!({"url": "http://127.0.0.1:1/"}), "clientConfig"),
    ] {
        let mut entry = good.clone();
        entry[key] = value;
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration", "metadata": {"name": cluster.unique("bad")},
            "webhooks": [entry]});
        let answer = wire.post(&format!("{path}?dryRun=All"), &configuration).await;
        assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{key}: {:#}", answer.body);
        assert!(answer.message().contains(expected), "{}", answer.message());
    }
}
