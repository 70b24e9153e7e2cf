//! People who keep to the native budget, and ask for groups by an annotation.

use std::time::Duration;

use quorate_devcluster::actors::{Gang, Timing};
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::space::Space;

quorate_testbed::stories!(Whole:
    a_native_budget_gets_a_twin_that_is_kept_in_step,
    a_drain_goes_by_the_groups_of_the_twin,
    a_rule_that_is_too_tight_for_a_group_is_told,
    a_budget_that_somebody_made_is_left_alone,
    an_annotation_that_makes_no_sense_is_told,
    a_native_budget_and_a_budget_on_one_pod_must_both_agree,
);

const POLICY: &str = "policy/v1";
const PDBS: &str = "poddisruptionbudgets";
const QUORATE: &str = "policy.quorate.dev/v1alpha1";
const BUDGETS: &str = "disruptionbudgets";

fn native(annotations: &Value, numbers: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"gang": "gang"}}});
    for (field, value) in numbers.as_object().expect("numbers") {
        spec[field] = value.clone();
    }
    json!({"apiVersion": POLICY, "kind": "PodDisruptionBudget",
        "metadata": {"name": "gang", "annotations": annotations}, "spec": spec})
}

/// Groups by a label, so that no Workload is needed.
fn by_label() -> Value {
    json!({"quorate.dev/group-label-key": "gang-group"})
}

async fn gang(space: &Space) {
    for set in Gang::new("gang", 2, 3).stateful_sets(WorkloadApi::Off) {
        space.create("apps/v1", "statefulsets", &set).await;
    }
    space.ready(6).await;
}

/// Waits until the twin is as it should be; the whole of it.
async fn twin_is(space: &Space, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || async {
        let answer = space.get(QUORATE, BUDGETS, "gang").await;
        if answer.code == 200 && is(&answer.body) { Ok(answer.body) } else { Err(answer.body) }
    })
    .await
}

/// Waits until the native budget is told this.
async fn told(space: &Space, reason: &str) -> Value {
    eventually(&format!("the native budget is told {reason}"), || async {
        let native = space.get(POLICY, PDBS, "gang").await.body;
        let conditions = native["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|c| c["type"] == "BudgetConfigured" && c["reason"] == reason);
        found.cloned().ok_or(native)
    })
    .await
}

async fn has_event(space: &Space, reason: &str) {
    eventually(&format!("there is an Event {reason}"), || async {
        let events = space.get("v1", "events", "").await.body;
        let items = events["items"].as_array().cloned().unwrap_or_default();
        let found = items.iter().any(|event| {
            event["reason"] == reason && event["involvedObject"]["kind"] == "PodDisruptionBudget"
        });
        if found { Ok(()) } else { Err(items) }
    })
    .await;
}

async fn a_native_budget_gets_a_twin_that_is_kept_in_step(cluster: Cluster) {
    let space = Space::with_node(cluster, "adopted").await;
    gang(&space).await;
    let made = space.create(POLICY, PDBS, &native(&by_label(), &json!({"maxUnavailable": 3}))).await;
    let twin = twin_is(&space, "there is a twin", |_| true).await;
    assert_eq!(twin["spec"]["selector"], made["spec"]["selector"]);
    assert_eq!(twin["spec"]["maxUnavailable"], 3);
    let owner = &twin["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&made["metadata"]["uid"], &json!(true)));
    space.enforced("gang").await;

    // The groups get numbers of their own.
    let annotations = json!({"metadata": {"annotations": {"quorate.dev/max-unavailable": "1"}}});
    space.change(POLICY, PDBS, "gang", &annotations).await;
    twin_is(&space, "the twin has the numbers of the annotation", |twin| twin["spec"]["maxUnavailable"] == 1)
        .await;
    let policy = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    space.change(POLICY, PDBS, "gang", &policy).await;
    twin_is(&space, "the twin has the policy", |twin| {
        twin["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    })
    .await;
    // Who changes the twin itself has changed nothing.
    space.change_budget("gang", json!({"maxUnavailable": 2})).await;
    twin_is(&space, "the twin is put right", |twin| twin["spec"]["maxUnavailable"] == 1).await;

    let condition = told(&space, "ExpectedFromObservation").await;
    assert_eq!(condition["status"], "False");
    let without = json!({"metadata": {"annotations": {"quorate.dev/group-label-key": null}}});
    space.change(POLICY, PDBS, "gang", &without).await;
    eventually("the twin is gone and nothing more is told", || async {
        let twin = space.get(QUORATE, BUDGETS, "gang").await;
        let native = space.get(POLICY, PDBS, "gang").await.body;
        let told = native["status"]["conditions"].to_string().contains("BudgetConfigured");
        if twin.code == 404 && !told { Ok(()) } else { Err(native) }
    })
    .await;

    space.change(POLICY, PDBS, "gang", &json!({"metadata": {"annotations": by_label()}})).await;
    twin_is(&space, "there is a twin again", |_| true).await;
    let path = format!("/apis/{POLICY}/namespaces/{}/{PDBS}/gang", space.namespace);
    space.cluster.wire().delete(&path, &json!({})).await.expect(200);
    eventually("the twin goes with the native budget", || async {
        let twin = space.get(QUORATE, BUDGETS, "gang").await;
        if twin.code == 404 { Ok(()) } else { Err(twin.body) }
    })
    .await;
}

async fn a_drain_goes_by_the_groups_of_the_twin(cluster: Cluster) {
    let space = Space::with_node(cluster, "adopted").await;
    gang(&space).await;
    let mut annotations = by_label();
    annotations["quorate.dev/min-available"] = json!("1");
    space.create(POLICY, PDBS, &native(&annotations, &json!({"minAvailable": 0}))).await;
    twin_is(&space, "there is a twin", |_| true).await;
    space.enforced("gang").await;
    space
        .budget_is("gang", "both groups are up", |status| {
            status["currentHealthyReplicas"] == 2 && status["disruptionsAllowed"] == 1
        })
        .await;
    // By their label alone a group is up while one of its pods is, and the API server lets all of them go.
    let drain = space.drain_waits("node-1", 1).await;
    space.left_by("gang-group", &[1]).await;
    let refusals = drain.give_up();
    assert!(refusals.contains("/gang keeps 1 of 2 groups"), "{refusals}");

    let annotations = json!({"metadata": {"annotations": {"quorate.dev/min-available": "0"}}});
    space.change(POLICY, PDBS, "gang", &annotations).await;
    space.budget_is("gang", "nothing is asked for", |status| status["desiredHealthyReplicas"] == 0).await;
    space.drain("node-1").await;
    assert!(space.ready_by("gang-group").await.is_empty());
}

async fn a_rule_that_is_too_tight_for_a_group_is_told(cluster: Cluster) {
    let space = Space::with_node(cluster, "tight").await;
    gang(&space).await;
    space.create(POLICY, PDBS, &native(&by_label(), &json!({"minAvailable": 1}))).await;
    told(&space, "ValidConfig").await;
    space
        .change(
            POLICY,
            PDBS,
            "gang",
            &json!({"spec": {"minAvailable": 5}, "metadata": {"annotations":
        {"quorate.dev/min-available": "1"}}}),
        )
        .await;
    let condition = told(&space, "NativeRuleTooTight").await;
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(message.contains("Set minAvailable: 3"), "{message}");
    has_event(&space, "NativeRuleTooTight").await;
    space.change(POLICY, PDBS, "gang", &json!({"spec": {"minAvailable": 3}})).await;
    told(&space, "ValidConfig").await;
}

async fn a_budget_that_somebody_made_is_left_alone(cluster: Cluster) {
    let space = Space::with_node(cluster, "taken").await;
    let spec = json!({"selector": {"matchLabels": {"app": "other"}}, "maxUnavailable": 7});
    space.budget("gang", spec).await;
    space.create(POLICY, PDBS, &native(&by_label(), &json!({"maxUnavailable": 1}))).await;
    let condition = told(&space, "NameTaken").await;
    assert_eq!(condition["status"], "False");
    has_event(&space, "NameTaken").await;
    let budget = space.get(QUORATE, BUDGETS, "gang").await.body;
    assert_eq!(budget["spec"]["maxUnavailable"], 7);
    assert_eq!(budget["metadata"].get("ownerReferences"), None);

    let path = format!("/apis/{QUORATE}/namespaces/{}/{BUDGETS}/gang", space.namespace);
    space.cluster.wire().delete(&path, &json!({})).await.expect(200);
    twin_is(&space, "the name is free", |twin| twin["spec"]["maxUnavailable"] == 1).await;
}

async fn an_annotation_that_makes_no_sense_is_told(cluster: Cluster) {
    let space = Space::with_node(cluster, "wrong").await;
    let annotations = json!({"quorate.dev/budget-scope": "Workload", "quorate.dev/max-unavailable": "one"});
    space.create(POLICY, PDBS, &native(&annotations, &json!({"maxUnavailable": 1}))).await;
    let condition = told(&space, "Invalid").await;
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("metadata.annotations[quorate.dev/max-unavailable]: \"one\" must be"),
        "{message}"
    );
    has_event(&space, "Invalid").await;
    assert_eq!(space.get(QUORATE, BUDGETS, "gang").await.code, 404);
    let right = json!({"metadata": {"annotations": {"quorate.dev/max-unavailable": "1"}}});
    space.change(POLICY, PDBS, "gang", &right).await;
    twin_is(&space, "there is a twin", |twin| twin["spec"]["budgetScope"] == "Workload").await;
}

async fn a_native_budget_and_a_budget_on_one_pod_must_both_agree(cluster: Cluster) {
    let space = Space::with_node(cluster, "both").await;
    gang(&space).await;
    // Nobody asks for a twin here: two rules of two owners.
    space.create(POLICY, PDBS, &native(&json!({}), &json!({"minAvailable": 6}))).await;
    let spec = json!({"selector": {"matchLabels": {"gang": "gang"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "gang-group", "minReadyReplicas": 3}});
    space.budget("groups", spec).await;
    eventually("the native budget has counted", || async {
        let native = space.get(POLICY, PDBS, "gang").await.body;
        let counted = native["status"]["currentHealthy"] == 6 && native["status"]["disruptionsAllowed"] == 0;
        if counted { Ok(()) } else { Err(native) }
    })
    .await;
    // The native one allows nothing: nothing is claimed for what the API server would refuse anyway.
    let refused = space.evict("gang-0-0").await;
    assert_eq!(refused.code, 429, "{:#}", refused.body);
    assert!(refused.message().contains("PodDisruptionBudget"), "it must be named: {}", refused.message());
    let status =
        space.budget_is("groups", "nothing is claimed", |status| status["claims"] == json!({})).await;
    assert_eq!(status["disruptionsAllowed"], 1);

    // Whatever is taken stays away for as long as is asked here.
    let slow = Timing { start: Duration::from_secs(60), ..Timing::default() };
    space.cluster.actors().kubelets().set_timing(slow);
    space.change(POLICY, PDBS, "gang", &json!({"spec": {"minAvailable": 0}})).await;
    eventually("the first group may go", || async {
        let answer = space.evict("gang-0-0").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let refused = space.evict("gang-1-0").await;
    assert_eq!(refused.code, 429, "now it is the groups: {:#}", refused.body);
    assert!(refused.message().contains("/groups keeps 1 of 2 groups"), "{}", refused.message());
}
