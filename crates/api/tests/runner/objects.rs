//! Whole objects of Quorate, read and written.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResourceExt, Resource};
use quorate_api::budget::{Claim, ContainerTarget, Operation, StoredBudget, Token, UpdateTarget};
use quorate_api::{
    DisruptionBudget, DisruptionBudgetStatus, PodUnavailableBudget, PodUnavailableBudgetStatus, Workload,
    crds,
};
use serde_json::{Value, json};

use crate::{data, rules};

#[test]
fn a_full_budget_survives_reading_and_writing() {
    let given = data("budget.yaml");
    let budget: DisruptionBudget = serde_json::from_value(given.clone()).unwrap();
    assert_eq!(serde_json::to_value(&budget).unwrap(), given);

    assert_eq!(budget.spec.min_available, Some(IntOrString::Int(2)));
    assert_eq!(budget.spec.max_unavailable, Some(IntOrString::String("30%".to_owned())));
    let status = budget.status.unwrap();
    assert_eq!(status.ledger, 17);
    let claim = &status.claims["5f0c6c1e-3a54-4e5f-9a3c-0c9d0a6f2b11"];
    assert_eq!(claim.pod, "llm-1-3");
    assert_eq!(claim.tokens["9d2e"].operation, Operation::Evict);
    let update = &status.claims["c8a1f7d2-7d6b-4b58-8f0e-2d1f3b7a9e02"].tokens["4b7a"];
    let target = &update.target.as_ref().unwrap().containers["server"];
    assert_eq!(target.image.as_deref(), Some("0d4f1b2ac8e95377"));
}

#[test]
fn the_full_budget_is_what_the_schema_describes() {
    let crd = DisruptionBudget::crd();
    let full = serde_json::to_value(&crds::all()[0].spec.versions[0].schema).unwrap();
    let schema = &full["openAPIV3Schema"];
    let budget = data("budget.yaml");
    let problems = rules::problems(schema, vec![budget.clone()]);
    assert!(problems[0].is_empty(), "{problems:?}");
    // Whatever the schema does not name is dropped when it is stored: a claim could be lost that way.
    assert_eq!(unnamed(schema, &budget["spec"], "spec"), Vec::<String>::new());
    assert_eq!(unnamed(schema, &budget["status"], "status"), Vec::<String>::new());
    // And the example leaves nothing out, so that the test above means something.
    for part in ["spec", "status"] {
        for name in schema["properties"][part]["properties"].as_object().unwrap().keys() {
            let other_of_two = ["targetRef", "podGroupPolicy"].contains(&name.as_str());
            assert!(other_of_two || !budget[part][name].is_null(), "the example has no {part}.{name}");
        }
    }
    assert_eq!(crd.spec.names.short_names.unwrap(), ["dbu"]);
}

/// The fields of a value that its schema does not name.
fn unnamed(root: &Value, value: &Value, part: &str) -> Vec<String> {
    fn walk(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
        for item in value.as_array().into_iter().flatten() {
            walk(&schema["items"], item, path, found);
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            let own = &schema["properties"][name];
            let schema = if own.is_null() { &schema["additionalProperties"] } else { own };
            let path = format!("{path}.{name}");
            if schema.is_null() {
                found.push(path);
            } else {
                walk(schema, value, &path, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root["properties"][part], value, part, &mut found);
    found
}

#[test]
fn a_claim_is_written_in_the_words_of_the_protocol() {
    let at = MicroTime("2026-11-15T21:00:00.25Z".parse().unwrap());
    let target = UpdateTarget {
        containers: BTreeMap::from([(
            "server".to_owned(),
            ContainerTarget { replaces: Some("9c1e66a0b7d3f214".to_owned()), ..ContainerTarget::default() },
        )]),
        label: None,
        active_deadline_seconds: None,
        base: Some("4711".to_owned()),
    };
    let token = Token { operation: Operation::Update, by: "ann".to_owned(), at, target: Some(target) };
    let claim = Claim { pod: "llm-0".to_owned(), tokens: BTreeMap::from([("4b7a".to_owned(), token)]) };
    assert_eq!(
        serde_json::to_value(claim).unwrap(),
        json!({
            "pod": "llm-0",
            "tokens": {
                "4b7a": {
                    "operation": "Update",
                    "by": "ann",
                    "at": "2026-11-15T21:00:00.250000Z",
                    "target": { "containers": { "server": { "replaces": "9c1e66a0b7d3f214" } }, "base": "4711" },
                }
            },
        })
    );
}

#[test]
fn the_ledger_is_always_written_out() {
    // A JSON Patch can test and replace only what is there.
    let ours = serde_json::to_value(DisruptionBudgetStatus::default()).unwrap();
    let kruise = serde_json::to_value(PodUnavailableBudgetStatus::default()).unwrap();
    for field in ["claims", "ledger", "settledVersion", "protocol", "observedGeneration"] {
        assert!(!ours[field].is_null() && !kruise[field].is_null(), "{field} is left out");
    }
}

#[test]
fn a_status_of_another_version_can_be_read() {
    let status: DisruptionBudgetStatus =
        serde_json::from_value(json!({ "ledger": 3, "protocol": 2, "notYetInvented": { "a": [1] } }))
            .unwrap();
    assert_eq!((status.ledger, status.protocol, status.claims.len()), (3, 2, 0));
}

#[test]
fn an_unreadable_budget_is_still_a_budget() {
    let given = json!({
        "apiVersion": "policy.quorate.dev/v1alpha1",
        "kind": "DisruptionBudget",
        "metadata": { "name": "llm", "namespace": "inference", "uid": "b1" },
        "spec": { "selector": {}, "minAvailable": [1], "budgetScope": "Node" },
    });
    assert!(serde_json::from_value::<DisruptionBudget>(given.clone()).is_err());
    let stored: StoredBudget = serde_json::from_value(given.clone()).unwrap();
    assert_eq!(stored.metadata.uid.as_deref(), Some("b1"));
    assert_eq!((stored.spec, stored.status), (given["spec"].clone(), Value::Null));
}

#[test]
fn the_budget_of_openkruise_has_its_fields_and_columns() {
    let crd = PodUnavailableBudget::crd();
    assert_eq!(crd.metadata.name.as_deref(), Some("podunavailablebudgets.policy.kruise.io"));
    assert_eq!(crd.spec.names.short_names.unwrap(), ["pub"]);
    let version = &crd.spec.versions[0];
    let columns: Vec<(&str, &str)> = version
        .additional_printer_columns
        .iter()
        .flatten()
        .map(|column| (column.name.as_str(), column.json_path.as_str()))
        .collect();
    let expected = [
        ("Allowed", ".status.unavailableAllowed"),
        ("Current", ".status.currentAvailable"),
        ("Desired", ".status.desiredAvailable"),
        ("Total", ".status.totalReplicas"),
    ];
    assert_eq!(columns, expected);
    let written = serde_json::to_value(PodUnavailableBudgetStatus::default()).unwrap();
    for field in ["unavailableAllowed", "currentAvailable", "desiredAvailable", "totalReplicas"] {
        assert_eq!(written[field], 0, "{field}: OpenKruise calls it required");
    }
}

#[test]
fn the_kinds_are_found_where_they_are_served() {
    let namespace = Some("inference");
    assert_eq!(
        DisruptionBudget::url_path(&(), namespace),
        "/apis/policy.quorate.dev/v1alpha1/namespaces/inference/disruptionbudgets"
    );
    assert_eq!(StoredBudget::url_path(&(), namespace), DisruptionBudget::url_path(&(), namespace));
    assert_eq!(
        Workload::url_path(&(), namespace),
        "/apis/scheduling.quorate.dev/v1alpha1/namespaces/inference/workloads"
    );
}
