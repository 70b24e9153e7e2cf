//! PodDisruptionBudgets whose annotations request groups: each gets a DisruptionBudget as its twin.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{BUDGETS, PDBS, TestNamespace};

quorate_testbed::stories!(Whole:
    a_twin_follows_its_native_budget,
    a_drain_keeps_the_groups_of_the_twin,
    a_native_rule_too_tight_for_a_group_is_reported,
    an_existing_budget_is_not_replaced_by_a_twin,
    an_invalid_annotation_is_reported,
    a_native_budget_and_a_budget_of_one_pod_must_both_allow,
);

fn native(annotations: &Value, numbers: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"gang": "gang"}}});
    for (field, value) in numbers.as_object().expect("numbers") {
        spec[field] = value.clone();
    }
    json!({"apiVersion": PDBS.0, "kind": "PodDisruptionBudget",
        "metadata": {"name": "gang", "annotations": annotations}, "spec": spec})
}

/// Groups by a label, so that no Workload is needed.
fn by_label() -> Value {
    json!({"quorate.dev/group-label-key": "gang-group"})
}

async fn create_gang(ns: &TestNamespace) {
    for set in Gang::new("gang", 2, 3).stateful_sets(WorkloadApi::Off) {
        ns.create("apps/v1", "statefulsets", &set).await;
    }
    ns.await_ready_pods(6).await;
}

/// Waits until the twin exists and fits; returns the whole object.
async fn await_twin(ns: &TestNamespace, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || async {
        let answer = ns.get(BUDGETS.0, BUDGETS.1, "gang").await;
        if answer.code == 200 && fits(&answer.body) { Ok(answer.body) } else { Err(answer.body) }
    })
    .await
}

/// Waits until the condition of the PodDisruptionBudget has this reason.
async fn await_reason(ns: &TestNamespace, reason: &str) -> Value {
    ns.await_native_condition("gang", &format!("the condition has the reason {reason}"), |condition| {
        condition["reason"] == reason
    })
    .await
}

async fn await_event(ns: &TestNamespace, reason: &str) {
    eventually(&format!("there is an Event {reason}"), || async {
        let events = ns.get("v1", "events", "").await.body;
        let items = events["items"].as_array().cloned().unwrap_or_default();
        let found = items.iter().any(|event| {
            event["reason"] == reason && event["involvedObject"]["kind"] == "PodDisruptionBudget"
        });
        if found { Ok(()) } else { Err(items) }
    })
    .await;
}

async fn a_twin_follows_its_native_budget(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "adopted").await;
    create_gang(&ns).await;
    let made = ns.create(PDBS.0, PDBS.1, &native(&by_label(), &json!({"maxUnavailable": 3}))).await;
    let twin = await_twin(&ns, "there is a twin", |_| true).await;
    assert_eq!(twin["spec"]["selector"], made["spec"]["selector"]);
    assert_eq!(twin["spec"]["maxUnavailable"], 3);
    let owner = &twin["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&made["metadata"]["uid"], &json!(true)));
    ns.await_enforced("gang").await;

    // An annotation sets other numbers for the groups.
    let annotations = json!({"metadata": {"annotations": {"quorate.dev/max-unavailable": "1"}}});
    ns.patch(PDBS.0, PDBS.1, "gang", &annotations).await;
    await_twin(&ns, "the twin has the numbers of the annotation", |twin| twin["spec"]["maxUnavailable"] == 1)
        .await;
    let policy = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    ns.patch(PDBS.0, PDBS.1, "gang", &policy).await;
    await_twin(&ns, "the twin has the policy", |twin| {
        twin["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    })
    .await;
    // A change of the twin itself is reverted.
    ns.patch_budget_spec("gang", json!({"maxUnavailable": 2})).await;
    await_twin(&ns, "the twin is put right", |twin| twin["spec"]["maxUnavailable"] == 1).await;

    let condition = await_reason(&ns, "ExpectedFromObservation").await;
    assert_eq!(condition["status"], "False");
    let without = json!({"metadata": {"annotations": {"quorate.dev/group-label-key": null}}});
    ns.patch(PDBS.0, PDBS.1, "gang", &without).await;
    eventually("the twin and the condition are gone", || async {
        let twin = ns.get(BUDGETS.0, BUDGETS.1, "gang").await;
        let native = ns.get(PDBS.0, PDBS.1, "gang").await.body;
        let has_condition = native["status"]["conditions"].to_string().contains("BudgetConfigured");
        if twin.code == 404 && !has_condition { Ok(()) } else { Err(native) }
    })
    .await;

    ns.patch(PDBS.0, PDBS.1, "gang", &json!({"metadata": {"annotations": by_label()}})).await;
    await_twin(&ns, "there is a twin again", |_| true).await;
    let path = ns.path(PDBS.0, &format!("{}/gang", PDBS.1));
    ns.wire.delete(&path, &json!({})).await.expect(200);
    eventually("the twin goes with the native budget", || async {
        let twin = ns.get(BUDGETS.0, BUDGETS.1, "gang").await;
        if twin.code == 404 { Ok(()) } else { Err(twin.body) }
    })
    .await;
}

async fn a_drain_keeps_the_groups_of_the_twin(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "adopted").await;
    create_gang(&ns).await;
    let mut annotations = by_label();
    annotations["quorate.dev/min-available"] = json!("1");
    ns.create(PDBS.0, PDBS.1, &native(&annotations, &json!({"minAvailable": 0}))).await;
    await_twin(&ns, "there is a twin", |_| true).await;
    ns.await_enforced("gang").await;
    ns.await_status("gang", "both groups are up", |status| {
        status["currentHealthyReplicas"] == 2 && status["disruptionsAllowed"] == 1
    })
    .await;
    // With only a label, a group is up while one of its pods is up. The API server itself allows all evictions.
    let drain = ns.start_blocked_drain("node-1", 1).await;
    ns.await_ready_pods_by("gang-group", &[1]).await;
    let refusals = drain.stop();
    assert!(refusals.contains("/gang keeps 1 of 2 groups"), "{refusals}");

    let annotations = json!({"metadata": {"annotations": {"quorate.dev/min-available": "0"}}});
    ns.patch(PDBS.0, PDBS.1, "gang", &annotations).await;
    ns.await_status("gang", "no replica is required", |status| status["desiredHealthyReplicas"] == 0).await;
    ns.drain("node-1").await;
    assert!(ns.ready_pods_by("gang-group").await.is_empty());
}

async fn a_native_rule_too_tight_for_a_group_is_reported(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "tight").await;
    create_gang(&ns).await;
    ns.create(PDBS.0, PDBS.1, &native(&by_label(), &json!({"minAvailable": 1}))).await;
    await_reason(&ns, "ValidConfig").await;
    ns.patch(
        PDBS.0,
        PDBS.1,
        "gang",
        &json!({"spec": {"minAvailable": 5}, "metadata": {"annotations":
        {"quorate.dev/min-available": "1"}}}),
    )
    .await;
    let condition = await_reason(&ns, "NativeRuleTooTight").await;
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(message.contains("Set minAvailable: 3"), "{message}");
    await_event(&ns, "NativeRuleTooTight").await;
    ns.patch(PDBS.0, PDBS.1, "gang", &json!({"spec": {"minAvailable": 3}})).await;
    await_reason(&ns, "ValidConfig").await;
}

async fn an_existing_budget_is_not_replaced_by_a_twin(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "taken").await;
    let spec = json!({"selector": {"matchLabels": {"app": "other"}}, "maxUnavailable": 7});
    ns.create_enforced_budget("gang", spec).await;
    ns.create(PDBS.0, PDBS.1, &native(&by_label(), &json!({"maxUnavailable": 1}))).await;
    let condition = await_reason(&ns, "NameTaken").await;
    assert_eq!(condition["status"], "False");
    await_event(&ns, "NameTaken").await;
    let budget = ns.get(BUDGETS.0, BUDGETS.1, "gang").await.body;
    assert_eq!(budget["spec"]["maxUnavailable"], 7);
    assert_eq!(budget["metadata"].get("ownerReferences"), None);

    ns.delete_budget("gang").await;
    await_twin(&ns, "the name is free", |twin| twin["spec"]["maxUnavailable"] == 1).await;
}

async fn an_invalid_annotation_is_reported(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "wrong").await;
    let annotations = json!({"quorate.dev/budget-scope": "Workload", "quorate.dev/max-unavailable": "one"});
    ns.create(PDBS.0, PDBS.1, &native(&annotations, &json!({"maxUnavailable": 1}))).await;
    let condition = await_reason(&ns, "Invalid").await;
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("metadata.annotations[quorate.dev/max-unavailable]: \"one\" must be"),
        "{message}"
    );
    await_event(&ns, "Invalid").await;
    assert_eq!(ns.get(BUDGETS.0, BUDGETS.1, "gang").await.code, 404);
    let right = json!({"metadata": {"annotations": {"quorate.dev/max-unavailable": "1"}}});
    ns.patch(PDBS.0, PDBS.1, "gang", &right).await;
    await_twin(&ns, "there is a twin", |twin| twin["spec"]["budgetScope"] == "Workload").await;
}

async fn a_native_budget_and_a_budget_of_one_pod_must_both_allow(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "both").await;
    create_gang(&ns).await;
    // No annotation requests a twin here: these are two independent budgets.
    ns.create(PDBS.0, PDBS.1, &native(&json!({}), &json!({"minAvailable": 6}))).await;
    let spec = json!({"selector": {"matchLabels": {"gang": "gang"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "gang-group", "minReadyReplicas": 3}});
    ns.create_enforced_budget("groups", spec).await;
    eventually("the native budget has counted", || async {
        let native = ns.get(PDBS.0, PDBS.1, "gang").await.body;
        let counted = native["status"]["currentHealthy"] == 6 && native["status"]["disruptionsAllowed"] == 0;
        if counted { Ok(()) } else { Err(native) }
    })
    .await;
    eventually("the server has seen that", || async {
        let answer = ns.evict_with("gang-0-0", json!({}), "?dryRun=All").await;
        if answer.message().contains("PodDisruptionBudget") { Ok(()) } else { Err(answer.body) }
    })
    .await;
    // The native budget allows nothing. An eviction that the API server would deny anyway must not leave a claim.
    let refused = ns.evict("gang-0-0").await;
    assert_eq!(refused.code, 429, "{:#}", refused.body);
    assert!(refused.message().contains("PodDisruptionBudget"), "it must be named: {}", refused.message());
    let status =
        ns.await_status("groups", "nothing is claimed", |status| status["claims"] == json!({})).await;
    assert_eq!(status["disruptionsAllowed"], 1);

    // An evicted pod must not be ready again before the end of this story.
    ns.replace_slowly(true);
    ns.patch(PDBS.0, PDBS.1, "gang", &json!({"spec": {"minAvailable": 0}})).await;
    eventually("the first group may go", || async {
        let answer = ns.evict("gang-0-0").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let refused = ns.evict("gang-1-0").await;
    assert_eq!(refused.code, 429, "now it is the groups: {:#}", refused.body);
    assert!(refused.message().contains("/groups keeps 1 of 2 groups"), "{}", refused.message());
}
