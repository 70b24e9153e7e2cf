//! Tests of Quorate's own definitions: what a cluster accepts, rejects, defaults and prints.

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams};
use quorate_api::{crds, slim};
use quorate_testbed::{Cluster, Patch, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, deployment, text};

stories!(ApiServer:
    budgets_are_accepted_or_rejected_as_in_the_cases,
    workloads_are_accepted_or_rejected_as_in_the_cases,
    openkruise_budgets_are_accepted_or_rejected_as_in_the_cases,
    openkruise_budgets_are_printed_as_by_openkruise,
    missing_fields_of_a_budget_are_defaulted,
    a_budget_with_all_fields_is_stored_unchanged,
    claims_do_not_enlarge_the_managed_fields,
    a_claim_is_committed_once,
    budgets_are_printed_in_units,
    foreign_objects_are_read_with_the_slim_types,
);

const BUDGETS: &str = "policy.quorate.dev/v1alpha1";
const KRUISE: &str = "policy.kruise.io/v1alpha1";
const WORKLOADS: &str = "scheduling.quorate.dev/v1alpha1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A namespace in a cluster that serves Quorate's kinds.
async fn ns(cluster: &Cluster, stem: &str) -> TestNamespace {
    let ns = TestNamespace::new(cluster, stem).await;
    for crd in crds::all() {
        let name = crd.metadata.name.clone().expect("a name");
        let answer = ns.wire.post(DEFINITIONS, &serde_json::to_value(&crd).expect("JSON")).await;
        // Another test may have created it first.
        assert!([201, 409].contains(&answer.code), "{name}: {answer:?}");
        let path = format!("{DEFINITIONS}/{name}");
        let kinds = ns.path(&format!("{}/v1alpha1", crd.spec.group), &crd.spec.names.plural);
        eventually(&format!("{name} is served"), async || {
            let stored = ns.wire.get(&path).await.body;
            let conditions = stored["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is = |kind: &str, status: &str| {
                conditions.iter().any(|c| c["type"] == kind && c["status"] == status)
            };
            assert!(!is("NonStructuralSchema", "True"), "{conditions:?}");
            let served = ns.wire.get(&kinds).await.code == 200;
            if is("Established", "True") && served { Ok(()) } else { Err(conditions) }
        })
        .await;
    }
    ns
}

fn yaml(text: &str) -> Value {
    serde_yaml_ng::from_str(text).expect("YAML")
}

async fn budgets_are_accepted_or_rejected_as_in_the_cases(cluster: Cluster) {
    let cases = yaml(include_str!("../../../api/tests/data/disruptionbudgets.yaml"));
    let ns = ns(&cluster, "dbu").await;
    try_cases(&ns, BUDGETS, "DisruptionBudget", "disruptionbudgets", &cases).await;
}

async fn workloads_are_accepted_or_rejected_as_in_the_cases(cluster: Cluster) {
    let cases = yaml(include_str!("../../../api/tests/data/workloads.yaml"));
    let ns = ns(&cluster, "qwl").await;
    try_cases(&ns, WORKLOADS, "Workload", "workloads", &cases).await;
}

async fn openkruise_budgets_are_accepted_or_rejected_as_in_the_cases(cluster: Cluster) {
    let cases = yaml(include_str!("../../../api/tests/data/podunavailablebudgets.yaml"));
    let ns = ns(&cluster, "pub").await;
    try_cases(&ns, KRUISE, "PodUnavailableBudget", "podunavailablebudgets", &cases).await;
}

async fn openkruise_budgets_are_printed_as_by_openkruise(cluster: Cluster) {
    let ns = ns(&cluster, "printedpub").await;
    let path = ns.path(KRUISE, "podunavailablebudgets");
    let budget = json!({
        "apiVersion": KRUISE, "kind": "PodUnavailableBudget", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
    });
    ns.wire.post(&path, &budget).await.expect(201);
    // The status as OpenKruise writes it, without the fields of Quorate.
    let status = json!({
        "unavailableAllowed": 1, "currentAvailable": 4, "desiredAvailable": 3, "totalReplicas": 5,
        "disruptedPods": {"web-0": "2026-11-15T21:00:00Z"}, "observedGeneration": 1,
    });
    let patch = json!({"status": status});
    ns.wire.patch(&format!("{path}/web/status"), Patch::Merge, &patch).await.expect(200);
    let table = ns.wire.table(&path).await.expect(200);
    let columns = table["columnDefinitions"].as_array().into_iter().flatten();
    let names: Vec<_> = columns.map(|column| text(column, "/name")).collect();
    assert_eq!(names, ["Name", "Allowed", "Current", "Desired", "Total"]);
    let cells = table["rows"][0]["cells"].as_array().expect("a row");
    assert_eq!(cells[..], [json!("web"), json!(1), json!(4), json!(3), json!(5)]);
}

/// Runs every case, and reports all unexpected results.
async fn try_cases(ns: &TestNamespace, group_version: &str, kind: &str, plural: &str, cases: &Value) {
    let mut surprises = Vec::new();
    let path = format!("{}?dryRun=All", ns.path(group_version, plural));
    for case in cases.as_array().expect("a list of cases") {
        let object = json!({
            "apiVersion": group_version,
            "kind": kind,
            "metadata": {"name": "case"},
            "spec": case["spec"],
        });
        let answer = ns.wire.post(&path, &object).await;
        let as_expected = match (case["refused"].as_str(), case["field"].as_str()) {
            (Some(refused), Some(field)) => {
                let causes = answer.body["details"]["causes"].as_array();
                answer.code == 422
                    && causes
                        .into_iter()
                        .flatten()
                        .any(|cause| cause["field"] == field && text(cause, "/message").contains(refused))
            }
            _ => answer.code == 201,
        };
        if !as_expected {
            surprises.push(format!("{}: {} {}", case["name"], answer.code, answer.body["message"]));
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}

fn budget(name: &str) -> Value {
    json!({
        "apiVersion": BUDGETS,
        "kind": "DisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "llm"}}, "minAvailable": 2, "maxUnavailable": "30%"},
    })
}

async fn missing_fields_of_a_budget_are_defaulted(cluster: Cluster) {
    let ns = ns(&cluster, "filledin").await;
    let made = ns.wire.post(&ns.path(BUDGETS, "disruptionbudgets"), &budget("llm")).await.expect(201);
    assert_eq!(
        made["spec"],
        json!({
            "selector": {"matchLabels": {"app": "llm"}},
            "minAvailable": 2,
            "maxUnavailable": "30%",
            "budgetScope": "Pod",
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            "operations": ["Evict"],
            "enforcement": "Enforce",
        })
    );
    assert_eq!(made["status"], Value::Null);
}

async fn a_budget_with_all_fields_is_stored_unchanged(cluster: Cluster) {
    let ns = ns(&cluster, "whole").await;
    let mut given = yaml(include_str!("../../../api/tests/data/budget.yaml"));
    given["metadata"] = json!({"name": "llm"});
    let made = ns.wire.post(&ns.path(BUDGETS, "disruptionbudgets"), &given).await.expect(201);
    given["metadata"] = made["metadata"].clone();
    let path = ns.path(BUDGETS, "disruptionbudgets/llm");
    ns.wire.put(&format!("{path}/status"), &given).await.expect(200);
    let stored = ns.wire.get(&path).await.expect(200);
    assert_eq!((&stored["spec"], &stored["status"]), (&given["spec"], &given["status"]));
}

async fn claims_do_not_enlarge_the_managed_fields(cluster: Cluster) {
    let ns = ns(&cluster, "small").await;
    let at = "2026-11-15T21:00:00Z";
    ns.wire.post(&ns.path(BUDGETS, "disruptionbudgets"), &budget("llm")).await.expect(201);
    let claims: Value = (0..300)
        .map(|n| {
            let token = json!({"operation": "Evict", "by": "ann", "at": at});
            (format!("uid-{n}"), json!({"pod": format!("llm-{n}"), "tokens": {"t": token}}))
        })
        .collect();
    let pods: Value = (0..300).map(|n| (format!("llm-{n}"), json!(at))).collect();
    let groups: Value =
        (0..100).map(|n| json!({"name": n.to_string(), "healthy": 1, "minCount": 1, "pods": 1})).collect();
    let status = json!({"claims": claims, "disruptedPods": pods, "unavailablePods": pods, "groups": groups});
    let path = ns.path(BUDGETS, "disruptionbudgets/llm/status");
    let after = ns.wire.patch(&path, Patch::Merge, &json!({"status": status})).await.expect(200);
    assert_eq!(after["status"]["claims"].as_object().map(|claims| claims.len()), Some(300));
    let size = after["metadata"]["managedFields"].to_string().len();
    assert!(size < 2000, "{size} bytes");
}

async fn a_claim_is_committed_once(cluster: Cluster) {
    let ns = ns(&cluster, "commit").await;
    ns.wire.post(&ns.path(BUDGETS, "disruptionbudgets"), &budget("llm")).await.expect(201);
    let path = ns.path(BUDGETS, "disruptionbudgets/llm/status");
    let opened = json!({"status": {"ledger": 0, "claims": {}, "protocol": 1, "settledVersion": "0"}});
    let uid = ns.wire.patch(&path, Patch::Merge, &opened).await.expect(200)["metadata"]["uid"].clone();
    let claim = json!({"pod": "llm-0", "tokens": {"9d2e": {"operation": "Evict", "by": "ann", "at": "2026-11-15T21:00:00Z"}}});
    let commit = json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/generation", "value": 1},
        {"op": "test", "path": "/status/ledger", "value": 0},
        {"op": "replace", "path": "/status/ledger", "value": 1},
        {"op": "add", "path": "/status/claims/u-1", "value": claim},
    ]);
    let after = ns.wire.patch(&path, Patch::Json, &commit).await.expect(200);
    assert_eq!((&after["status"]["ledger"], &after["status"]["claims"]["u-1"]), (&json!(1), &claim));
    let again = ns.wire.patch(&path, Patch::Json, &commit).await;
    assert_eq!((again.code, again.reason()), (422, "Invalid"));
    // Other numbers of the status are written without changing the ledger.
    let counters = json!({"status": {"disruptionsAllowed": 1}});
    let after = ns.wire.patch(&path, Patch::Merge, &counters).await.expect(200);
    assert_eq!((&after["status"]["ledger"], &after["metadata"]["generation"]), (&json!(1), &json!(1)));
}

async fn budgets_are_printed_in_units(cluster: Cluster) {
    let ns = ns(&cluster, "printed").await;
    let path = ns.path(BUDGETS, "disruptionbudgets");
    ns.wire.post(&path, &budget("llm")).await.expect(201);
    let status = json!({
        "disruptionsAllowedReplicas": 1, "currentHealthyReplicas": 4, "desiredHealthyReplicas": 3, "expectedReplicas": 5,
        "disruptionsAllowed": 1, "currentHealthy": 16, "desiredHealthy": 12, "expectedPods": 20, "scope": "Group",
    });
    let patch = json!({"status": status});
    ns.wire.patch(&format!("{path}/llm/status"), Patch::Merge, &patch).await.expect(200);
    let table = ns.wire.table(&path).await.expect(200);
    let names: Vec<_> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| text(column, "/name"))
        .collect();
    assert_eq!(names, ["Name", "Scope", "Min", "Max", "Allowed", "Healthy", "Desired", "Expected", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().expect("a row");
    assert_eq!(
        cells[..8],
        [json!("llm"), json!("Group"), json!("2"), json!("30%"), json!(1), json!(4), json!(3), json!(5)]
    );
}

async fn foreign_objects_are_read_with_the_slim_types(cluster: Cluster) {
    let ns = ns(&cluster, "slim").await;
    let mut pod = crate::fixtures::pod("one");
    pod["metadata"]["annotations"] =
        json!({"quorate.dev/disruption-probe.main": "{}", "example.com/other": "x"});
    ns.create("pods", &pod).await;
    ns.set_phase("one", "Running", Some(true)).await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 2)).await.expect(201);
    let pdb = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    ns.wire.post(&ns.budgets(""), &pdb).await.expect(201);

    let client = cluster.admin();
    let all = ListParams::default();
    let pods = Api::<slim::Pod>::namespaced(client.clone(), &ns.name).list(&all).await.expect("pods");
    let [slim] = &pods.items[..] else { panic!("{pods:?}") };
    let full = Api::<core::Pod>::namespaced(client.clone(), &ns.name).get("one").await.expect("the pod");
    assert_eq!(
        (&slim.metadata.uid, &slim.metadata.resource_version),
        (&full.metadata.uid, &full.metadata.resource_version)
    );
    assert_eq!(slim.metadata.annotations.as_ref().map(|kept| kept.len()), Some(1));
    assert_eq!(slim.status.phase, slim::Phase::Running);
    assert!(slim::Condition::find(&slim.status.conditions, "Ready").is_some_and(slim::Condition::is_true));

    let web = Api::<slim::Deployment>::namespaced(client.clone(), &ns.name)
        .get("web")
        .await
        .expect("the deployment");
    assert_eq!(web.spec.replicas, Some(2));
    let pdb = Api::<slim::PodDisruptionBudget>::namespaced(client.clone(), &ns.name)
        .get("web")
        .await
        .expect("the pdb");
    assert!(pdb.spec.max_unavailable.is_some());
    let namespace = Api::<slim::Namespace>::all(client).get(&ns.name).await.expect("the namespace");
    assert_eq!(namespace.metadata.deletion_timestamp, None);
}
