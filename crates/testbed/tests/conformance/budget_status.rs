//! Tests of the numbers that the disruption controller writes into the status of a native budget.

use std::time::Duration;

use quorate_testbed::{Cluster, Patch, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, deployment, pod, stateful_set, text};

stories!(Controllers:
    min_available_counts_the_existing_pods,
    an_empty_selector_counts_all_pods,
    pods_without_a_controller_do_not_count_for_max_unavailable,
    max_unavailable_counts_from_the_scale_of_the_controller,
    percentages_round_up,
    the_scale_of_a_stateful_set_counts,
    the_scale_of_a_deployment_counts,
    the_scale_of_a_custom_resource_counts,
    a_controller_without_scale_is_an_error,
    an_evicted_pod_is_deducted_until_its_deletion_is_seen,
    an_old_disrupted_pods_entry_is_dropped,
    other_conditions_are_kept,
    a_changed_budget_is_reconciled,
);

/// Allowed, healthy, desired, expected.
type Counts = (i64, i64, i64, i64);

impl TestNamespace {
    async fn make_budget(&self, spec: Value) {
        let mut spec = spec;
        if spec.get("selector").is_none() {
            spec["selector"] = json!({"matchLabels": {"a": "true"}});
        }
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "foo"}, "spec": spec});
        self.wire.post(&self.budgets(""), &budget).await.expect(201);
    }

    /// Waits until the budget has these numbers, and asserts that the rest of its status agrees.
    async fn await_counts(&self, expected: Counts) -> Value {
        let path = self.budgets("/foo");
        let budget = eventually(&format!("the counts are {expected:?}"), || async {
            let budget = self.wire.get(&path).await.expect(200);
            let number = |name: &str| budget["status"][name].as_i64().unwrap_or_default();
            let counts = (
                number("disruptionsAllowed"),
                number("currentHealthy"),
                number("desiredHealthy"),
                number("expectedPods"),
            );
            let observed = budget["status"]["observedGeneration"] == budget["metadata"]["generation"];
            if observed && counts == expected { Ok(budget) } else { Err((counts, budget["status"].clone())) }
        })
        .await;
        let word = if expected.0 > 0 { "True" } else { "False" };
        assert_eq!(condition(&budget, "DisruptionAllowed")["status"], word, "{budget:#}");
        budget
    }

    /// Makes `count` pods of an owner ready.
    async fn make_ready(&self, selector: &str, count: usize) -> Vec<String> {
        let path = self.core(&format!("pods?labelSelector={selector}"));
        let pods = eventually("there are enough pods", || async {
            let list = self.wire.get(&path).await.expect(200);
            let names: Vec<String> = crate::fixtures::names(&list).into_iter().map(str::to_owned).collect();
            if names.len() >= count { Ok(names) } else { Err(names) }
        })
        .await;
        for name in &pods[..count] {
            self.set_phase(name, "Running", Some(true)).await;
        }
        pods
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

/// A ReplicaSet whose pods have the label of the budget.
fn replica_set(name: &str, replicas: u32) -> Value {
    let mut set = deployment(name, replicas);
    set["kind"] = json!("ReplicaSet");
    set["spec"]["template"]["metadata"]["labels"]["a"] = json!("true");
    set
}

async fn min_available_counts_the_existing_pods(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "minimum").await;
    ns.make_budget(json!({"minAvailable": 3})).await;
    ns.await_counts((0, 0, 3, 0)).await;
    for (index, expected) in [(0, 1, 3, 1), (0, 2, 3, 2), (0, 3, 3, 3), (1, 4, 3, 4)].into_iter().enumerate()
    {
        ns.pod(&format!("pod-{index}"), "Running", Some(true)).await;
        ns.await_counts(expected).await;
    }
    ns.set_phase("pod-0", "Running", Some(false)).await;
    let budget = ns.await_counts((0, 3, 3, 4)).await;
    assert_eq!(condition(&budget, "DisruptionAllowed")["reason"], "InsufficientPods");
}

async fn an_empty_selector_counts_all_pods(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "allpods").await;
    ns.make_budget(json!({"minAvailable": 1, "selector": {}})).await;
    ns.await_counts((0, 0, 1, 0)).await;
    ns.pod("one", "Running", Some(true)).await;
    ns.await_counts((0, 1, 1, 1)).await;
    ns.pod("two", "Running", Some(true)).await;
    let budget = ns.await_counts((1, 2, 1, 2)).await;
    assert_eq!(condition(&budget, "DisruptionAllowed")["reason"], "SufficientPods");
}

async fn pods_without_a_controller_do_not_count_for_max_unavailable(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "unmanaged").await;
    ns.make_budget(json!({"maxUnavailable": 1})).await;
    ns.await_counts((0, 0, 0, 0)).await;
    ns.pod("one", "Running", Some(true)).await;
    ns.await_counts((0, 1, 0, 0)).await;
    eventually("an event reports it", || async {
        let events = ns.wire.get(&ns.core("events")).await.expect(200);
        let reasons: Vec<String> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|event| text(event, "/reason").to_owned())
            .collect();
        if reasons.iter().any(|reason| reason == "UnmanagedPods") { Ok(()) } else { Err(reasons) }
    })
    .await;
}

async fn max_unavailable_counts_from_the_scale_of_the_controller(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "maximum").await;
    let path = ns.path("apps/v1", "replicasets");
    ns.wire.post(&path, &replica_set("web", 7)).await.expect(201);
    ns.make_ready("app%3Dweb", 7).await;
    ns.make_budget(json!({"maxUnavailable": 2})).await;
    ns.await_counts((2, 7, 5, 7)).await;
    let patch = json!({"spec": {"replicas": 5}});
    ns.wire.patch(&format!("{path}/web"), Patch::Merge, &patch).await.expect(200);
    ns.await_counts((2, 5, 3, 5)).await;
}

async fn percentages_round_up(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "percent").await;
    ns.wire.post(&ns.path("apps/v1", "replicasets"), &replica_set("web", 7)).await.expect(201);
    ns.make_ready("app%3Dweb", 7).await;
    ns.make_budget(json!({"maxUnavailable": "30%"})).await;
    ns.await_counts((3, 7, 4, 7)).await;
    let patch = json!({"spec": {"maxUnavailable": null, "minAvailable": "28%"}});
    ns.wire.patch(&ns.budgets("/foo"), Patch::Merge, &patch).await.expect(200);
    ns.await_counts((5, 7, 2, 7)).await;
    // A pod without a controller counts as healthy, but not as expected.
    ns.pod("rogue", "Running", Some(true)).await;
    ns.await_counts((6, 8, 2, 7)).await;
}

async fn the_scale_of_a_stateful_set_counts(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "stateful").await;
    let mut set = stateful_set("db", 3);
    set["spec"]["podManagementPolicy"] = json!("Parallel");
    set["spec"]["template"]["metadata"]["labels"]["a"] = json!("true");
    ns.wire.post(&ns.path("apps/v1", "statefulsets"), &set).await.expect(201);
    ns.make_budget(json!({"minAvailable": "34%"})).await;
    let pods = ns.make_ready("app%3Ddb", 3).await;
    ns.await_counts((1, 3, 2, 3)).await;
    ns.set_phase(&pods[1], "Running", Some(false)).await;
    ns.await_counts((0, 2, 2, 3)).await;
}

async fn the_scale_of_a_deployment_counts(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "behind").await;
    let mut object = deployment("web", 3);
    object["spec"]["template"]["metadata"]["labels"]["a"] = json!("true");
    ns.wire.post(&ns.path("apps/v1", "deployments"), &object).await.expect(201);
    ns.make_ready("app%3Dweb", 3).await;
    ns.make_budget(json!({"maxUnavailable": 1})).await;
    ns.await_counts((1, 3, 2, 3)).await;
}

/// Creates a kind with or without the subresource `scale`, and one object of this kind.
async fn owner(cluster: &Cluster, scaled: bool) -> (crate::crd_schema::Widgets, Value) {
    let mut subresources = json!({"status": {}});
    if scaled {
        subresources["scale"] =
            json!({"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"});
    }
    let schema = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    let widgets =
        crate::crd_schema::Widgets::new(cluster, schema, json!({"subresources": subresources})).await;
    let made = widgets.create("boss", json!({"size": 10})).await.expect(201);
    let reference = json!({"apiVersion": made["apiVersion"], "kind": "Widget", "name": "boss",
        "uid": made["metadata"]["uid"], "controller": true});
    (widgets, reference)
}

async fn the_scale_of_a_custom_resource_counts(cluster: Cluster) {
    let (widgets, reference) = owner(&cluster, true).await;
    let ns = &widgets.ns;
    ns.make_budget(json!({"maxUnavailable": 5})).await;
    for name in ["a", "b", "c", "d"] {
        let mut object = pod(name);
        object["metadata"]["ownerReferences"] = json!([reference]);
        ns.create("pods", &object).await;
        ns.set_phase(name, "Running", Some(true)).await;
    }
    // A real controller manager discovers a new kind within half a minute, and reconciles again when a pod changes.
    let counted = || tokio::time::timeout(Duration::from_secs(1), ns.await_counts((0, 4, 5, 10)));
    for round in 0.. {
        let patch = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        ns.wire.patch(&ns.core("pods/a"), Patch::Merge, &patch).await.expect(200);
        if counted().await.is_ok() {
            return;
        }
    }
}

async fn a_controller_without_scale_is_an_error(cluster: Cluster) {
    let (widgets, reference) = owner(&cluster, false).await;
    let ns = &widgets.ns;
    let mut object = pod("one");
    object["metadata"]["ownerReferences"] = json!([reference]);
    ns.create("pods", &object).await;
    ns.set_phase("one", "Running", Some(true)).await;
    ns.make_budget(json!({"maxUnavailable": 5})).await;
    eventually("the budget reports that it cannot count", || async {
        let budget = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
        let failed = condition(&budget, "DisruptionAllowed");
        if failed["reason"] == "SyncFailed" && failed["status"] == "False" { Ok(()) } else { Err(budget) }
    })
    .await;
    assert_eq!(ns.evict("one").await.code, 429);
}

async fn an_evicted_pod_is_deducted_until_its_deletion_is_seen(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "takenoff").await;
    for name in ["a", "b", "c"] {
        ns.pod(name, "Running", Some(true)).await;
    }
    ns.make_budget(json!({"minAvailable": 2})).await;
    ns.await_counts((1, 3, 2, 3)).await;
    ns.evict("a").await.expect(201);
    let budget = ns.await_counts((0, 2, 2, 2)).await;
    assert_eq!(budget["status"].get("disruptedPods"), None, "the pod is gone, and so is its entry");
    assert_eq!(ns.evict("b").await.code, 429);
}

async fn an_old_disrupted_pods_entry_is_dropped(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "oldentry").await;
    for name in ["a", "b"] {
        ns.pod(name, "Running", Some(true)).await;
    }
    ns.make_budget(json!({"minAvailable": 1})).await;
    ns.await_counts((1, 2, 1, 2)).await;
    let patch =
        json!({"status": {"disruptedPods": {"a": "2020-01-01T00:00:00Z", "none": "2020-01-01T00:00:00Z"}}});
    ns.wire.patch(&ns.budgets("/foo/status"), Patch::Merge, &patch).await.expect(200);
    eventually("both entries are gone", || async {
        let budget = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
        if budget["status"].get("disruptedPods").is_none() { Ok(()) } else { Err(budget) }
    })
    .await;
    ns.await_counts((1, 2, 1, 2)).await;
}

async fn other_conditions_are_kept(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "kept").await;
    ns.make_budget(json!({"minAvailable": 1})).await;
    ns.await_counts((0, 0, 1, 0)).await;
    let foreign = json!({"type": "BudgetConfigured", "status": "True", "reason": "ValidConfig", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = json!([{"op": "add", "path": "/status/conditions/-", "value": foreign}]);
    ns.wire.patch(&ns.budgets("/foo/status"), Patch::Json, &patch).await.expect(200);
    ns.pod("one", "Running", Some(true)).await;
    ns.pod("two", "Running", Some(true)).await;
    let budget = ns.await_counts((1, 2, 1, 2)).await;
    assert_eq!(condition(&budget, "BudgetConfigured")["reason"], "ValidConfig");
    assert_eq!(budget["status"]["conditions"].as_array().map(Vec::len), Some(2));
}

async fn a_changed_budget_is_reconciled(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "again").await;
    ns.pod("one", "Running", Some(true)).await;
    ns.pod("two", "Running", Some(true)).await;
    ns.make_budget(json!({"minAvailable": 2})).await;
    ns.await_counts((0, 2, 2, 2)).await;
    ns.wire.patch(&ns.budgets("/foo"), Patch::Merge, &json!({"spec": {"minAvailable": 1}})).await.expect(200);
    ns.await_counts((1, 2, 1, 2)).await;
    // Delete the pod instead of changing its label: a pod whose label no longer matches is noticed only with the next
    // event of a pod that still matches.
    ns.wire.delete(&ns.core("pods/two"), &json!({})).await.expect(200);
    ns.await_counts((0, 1, 1, 1)).await;
}
