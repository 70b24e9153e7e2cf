//! Tests of which pods can be evicted: pods in every state, with budgets in every state.
//!
//! No controller runs here, so the test itself writes the status of a budget.

use quorate_testbed::{Cluster, Kubernetes, Patch, WireResponse, stories};
use serde_json::{Value, json};

use crate::fixtures::TestNamespace;

stories!(ApiServer:
    without_a_budget_a_pod_is_evicted,
    an_exhausted_budget_denies_the_eviction_of_a_running_pod,
    pods_that_do_not_run_are_evicted_despite_the_budget,
    a_terminating_pod_is_evicted_despite_the_budget,
    a_budget_of_other_pods_does_not_apply,
    an_empty_selector_matches_all_pods,
    a_missing_selector_matches_no_pod,
    an_allowed_disruption_is_charged,
    a_budget_that_is_not_yet_observed_denies,
    an_unready_pod_is_not_charged_if_enough_pods_are_healthy,
    an_unready_pod_is_denied_if_too_few_pods_are_healthy,
    an_unready_pod_is_not_charged_with_always_allow,
    a_budget_with_zero_desired_pods_denies_an_unready_pod,
    a_denial_states_its_reason,
    two_budgets_on_one_pod_are_an_error,
);

/// The status that the disruption controller would write.
pub(crate) fn counted(allowed: i64, healthy: i64, desired: i64) -> Value {
    json!({"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy,
        "desiredHealthy": desired, "expectedPods": healthy})
}

impl TestNamespace {
    /// Creates a budget for the pods with the label `a`, with this status.
    pub(crate) async fn budget(&self, name: &str, spec: Value, status: Value) {
        let mut budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "true"}}}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            budget["spec"][key] = value.clone();
        }
        self.wire.post(&self.budgets(""), &budget).await.expect(201);
        let path = self.budgets(&format!("/{name}/status"));
        self.wire.patch(&path, Patch::Merge, &json!({"status": status})).await.expect(200);
    }

    pub(crate) async fn evict(&self, name: &str) -> WireResponse {
        self.evict_with(name, json!({})).await
    }

    /// Posts an eviction with additional fields in its body.
    pub(crate) async fn evict_with(&self, name: &str, more: Value) -> WireResponse {
        let mut body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.name}});
        for (key, value) in more.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        self.wire.post(&self.core(&format!("pods/{name}/eviction")), &body).await
    }
}

/// Asserts a denial with this cause.
#[track_caller]
pub(crate) fn assert_refused(answer: &WireResponse, cause: &str) {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    assert_eq!(answer.failure(), (429, "TooManyRequests", message));
    assert_eq!(answer.body["details"]["causes"], json!([{"reason": "DisruptionBudget", "message": cause}]));
}

async fn without_a_budget_a_pod_is_evicted(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nobudget").await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict("one").await.expect(201);
    assert_eq!((&answer["kind"], &answer["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(ns.code(&ns.core("pods/one")).await, 404);
    let none = ns.evict("none").await;
    assert_eq!(none.failure(), (404, "NotFound", "pods \"none\" not found"));
}

async fn an_exhausted_budget_denies_the_eviction_of_a_running_pod(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "exhausted").await;
    ns.budget("foo", json!({}), counted(0, 2, 2)).await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict("one").await;
    assert_refused(&answer, "The disruption budget foo needs 2 healthy pods and has 2 currently");
    assert_eq!(answer.retry_after, None, "with it, every Go client would wait and retry by itself");
    let pod = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert_eq!(pod["metadata"].get("deletionTimestamp"), None);
}

async fn pods_that_do_not_run_are_evicted_despite_the_budget(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "phases").await;
    ns.budget("foo", json!({}), counted(0, 0, 0)).await;
    for phase in ["Pending", "Succeeded", "Failed"] {
        let name = phase.to_lowercase();
        ns.pod(&name, phase, None).await;
        ns.evict(&name).await.expect(201);
        assert_eq!(ns.code(&ns.core(&format!("pods/{name}"))).await, 404, "{phase}");
    }
}

async fn a_terminating_pod_is_evicted_despite_the_budget(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "terminating").await;
    ns.budget("foo", json!({}), counted(0, 2, 2)).await;
    ns.create("pods", &crate::fixtures::pod_on("one", "some-node")).await;
    ns.set_phase("one", "Running", Some(true)).await;
    ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    ns.evict_with("one", json!({"deleteOptions": {"gracePeriodSeconds": 300}})).await.expect(201);
}

async fn a_budget_of_other_pods_does_not_apply(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "others").await;
    ns.budget("foo", json!({"selector": {"matchLabels": {"b": "true"}}}), counted(0, 2, 2)).await;
    ns.pod("one", "Running", Some(true)).await;
    ns.evict("one").await.expect(201);
}

async fn an_empty_selector_matches_all_pods(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "allpods").await;
    ns.budget("foo", json!({"selector": {}}), counted(0, 3, 3)).await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict("one").await;
    assert_refused(&answer, "The disruption budget foo needs 3 healthy pods and has 3 currently");
}

async fn a_missing_selector_matches_no_pod(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nopods").await;
    ns.budget("foo", json!({"selector": null}), counted(0, 3, 3)).await;
    ns.pod("one", "Running", Some(true)).await;
    ns.evict("one").await.expect(201);
}

async fn an_allowed_disruption_is_charged(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "spent").await;
    let mut status = counted(2, 4, 2);
    status["conditions"] = json!([{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    ns.budget("foo", json!({}), status).await;
    for (name, left, reason) in [("one", 1, "SufficientPods"), ("two", 0, "InsufficientPods")] {
        ns.pod(name, "Running", Some(true)).await;
        ns.evict(name).await.expect(201);
        let budget = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
        assert_eq!(budget["status"]["disruptionsAllowed"], left);
        assert!(budget["status"]["disruptedPods"][name].is_string(), "{budget}");
        assert_eq!(budget["status"]["conditions"][0]["reason"], reason);
    }
    ns.pod("three", "Running", Some(true)).await;
    assert_eq!(ns.evict("three").await.code, 429);
}

async fn a_budget_that_is_not_yet_observed_denies(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "unseen").await;
    let mut status = counted(1, 3, 2);
    status["observedGeneration"] = json!(0);
    ns.budget("foo", json!({}), status).await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict("one").await;
    assert_refused(&answer, "The disruption budget foo is still being processed by the server.");
    assert_eq!(answer.body["details"]["retryAfterSeconds"], 10);
    assert_eq!(answer.retry_after.as_deref(), Some("10"));
}

async fn an_unready_pod_is_not_charged_if_enough_pods_are_healthy(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "suffice").await;
    ns.budget("foo", json!({}), counted(0, 2, 2)).await;
    ns.pod("one", "Running", Some(false)).await;
    ns.evict("one").await.expect(201);
    let budget = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
    assert_eq!(budget["status"].get("disruptedPods"), None, "it was not charged");
}

async fn an_unready_pod_is_denied_if_too_few_pods_are_healthy(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "lacking").await;
    ns.budget("foo", json!({}), counted(0, 1, 2)).await;
    ns.pod("one", "Running", Some(false)).await;
    let answer = ns.evict("one").await;
    assert_refused(&answer, "The disruption budget foo needs 2 healthy pods and has 1 currently");
}

async fn an_unready_pod_is_not_charged_with_always_allow(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "always").await;
    ns.budget("foo", json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), counted(0, 1, 2)).await;
    ns.pod("ready", "Running", Some(true)).await;
    assert_eq!(ns.evict("ready").await.code, 429, "a healthy one is not");
    for (name, ready) in [("unready", Some(false)), ("unheard", None)] {
        ns.pod(name, "Running", ready).await;
        ns.evict(name).await.expect(201);
    }
}

async fn a_budget_with_zero_desired_pods_denies_an_unready_pod(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nothing").await;
    ns.budget("foo", json!({}), counted(0, 0, 0)).await;
    ns.pod("one", "Running", None).await;
    let answer = ns.evict("one").await;
    assert_refused(&answer, "The disruption budget foo needs 0 healthy pods and has 0 currently");
}

async fn a_denial_states_its_reason(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "reason").await;
    ns.pod("one", "Running", Some(true)).await;
    for (name, healthy, reason, cause) in [
        ("a", 2, "SyncFailed", "does not allow evicting pods currently because it failed sync: hoge"),
        ("b", 4, "BarReason", "does not allow evicting pods currently (BarReason): hoge"),
    ] {
        let mut status = counted(0, healthy, 3);
        status["conditions"] = json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason,
            "message": "hoge", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        ns.budget(name, json!({}), status).await;
        let answer = ns.evict("one").await;
        if cluster.is_before(Kubernetes::V1_35) {
            // Older releases report only the numbers, even if they are not the reason.
            let numbers = format!("needs 3 healthy pods and has {healthy} currently");
            assert_refused(&answer, &format!("The disruption budget {name} {numbers}"));
        } else {
            assert_refused(&answer, &format!("The disruption budget {name} {cause}"));
        }
        ns.wire.delete(&ns.budgets(&format!("/{name}")), &json!({})).await.expect(200);
    }
}

async fn two_budgets_on_one_pod_are_an_error(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "two").await;
    ns.budget("foo", json!({}), counted(1, 3, 2)).await;
    ns.budget("bar", json!({}), counted(1, 3, 2)).await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict("one").await;
    let message =
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(answer.failure(), (500, "", message));
    assert_eq!(answer.body["status"], "Failure");
}
