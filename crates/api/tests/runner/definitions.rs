//! What the definitions accept, refuse and fill in.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use quorate_api::{DisruptionBudgetSpec, PodUnavailableBudgetSpec, WorkloadSpec, crds};
use quorate_engine::facts::Operation;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::data;
use crate::rules::{self, Problem};

/// A definition with the cases that try it.
struct Tried {
    schema: Value,
    /// Each case with what is wrong with it.
    cases: Vec<(Value, Vec<Problem>)>,
}

fn tried() -> Vec<Tried> {
    crds::all()
        .iter()
        .map(|crd| {
            let schema = schema(crd);
            let cases = cases(&format!("{}.yaml", crd.spec.names.plural));
            let objects = cases.iter().map(|case| json!({ "spec": case["spec"] })).collect();
            let problems = rules::problems(&schema, objects);
            Tried { schema, cases: cases.into_iter().zip(problems).collect() }
        })
        .collect()
}

fn schema(crd: &CustomResourceDefinition) -> Value {
    serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].take()
}

fn cases(file: &str) -> Vec<Value> {
    data(file).as_array().expect("a list of cases").clone()
}

#[test]
fn cases_are_accepted_and_refused_as_they_say() {
    for Tried { schema, cases } in tried() {
        let rules = rules::rules(&schema);
        for (case, problems) in &cases {
            let name = case["name"].as_str().expect("a name");
            let Some(refused) = case["refused"].as_str() else {
                assert!(problems.is_empty(), "{name}: {problems:?}");
                continue;
            };
            // What an API server says of a broken bound is not ours, and only an API server can show it.
            let by_rule = rules.iter().any(|(_, message)| message.contains(refused));
            let field = case["field"].as_str().expect("a field");
            assert!(
                problems.iter().any(|problem| problem.field == field
                    && problem.by_rule == by_rule
                    && (!by_rule || problem.message.contains(refused))),
                "{name}: not refused for {field} with {refused:?}: {problems:?}"
            );
            // One mistake, one message.
            assert!(problems.len() == 1, "{name}: {problems:?}");
        }
    }
}

#[test]
fn every_rule_has_a_case_that_breaks_it() {
    for Tried { schema, cases } in tried() {
        for (rule, message) in rules::rules(&schema) {
            let broken = cases
                .iter()
                .flat_map(|(_, problems)| problems)
                .any(|problem| problem.by_rule && problem.message == message);
            assert!(broken, "no case breaks {rule}");
        }
    }
}

#[test]
fn what_is_accepted_can_be_read_and_written() {
    read_and_write::<DisruptionBudgetSpec>("disruptionbudgets.yaml");
    read_and_write::<WorkloadSpec>("workloads.yaml");
    read_and_write::<PodUnavailableBudgetSpec>("podunavailablebudgets.yaml");
}

fn read_and_write<Spec: DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug>(file: &str) {
    for case in cases(file).iter().filter(|case| case["refused"].is_null()) {
        let mut given = case["spec"].clone();
        // An API server drops nulls before anyone reads them.
        given.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let spec: Spec =
            serde_json::from_value(given.clone()).unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
        let written = serde_json::to_value(&spec).unwrap();
        for (field, value) in given.as_object().unwrap() {
            // Empty lists and maps may be left out.
            if field != "selector" {
                assert_eq!(&written[field], value, "{}: {field}", case["name"]);
            }
        }
        assert_eq!(serde_json::from_value::<Spec>(written).unwrap(), spec, "{}", case["name"]);
    }
}

#[test]
fn the_types_fill_in_what_the_schema_fills_in() {
    let schema = schema(&crds::all()[0]);
    let filled: Value = schema["properties"]["spec"]["properties"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, field)| !field["default"].is_null())
        .map(|(name, field)| (name.clone(), field["default"].clone()))
        .collect();
    assert_eq!(
        filled,
        json!({
            "budgetScope": "Pod",
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            "operations": ["Evict"],
            "enforcement": "Enforce",
        })
    );
    assert_eq!(serde_json::to_value(DisruptionBudgetSpec::default()).unwrap(), filled);
    assert_eq!(
        serde_json::from_value::<DisruptionBudgetSpec>(json!({})).unwrap(),
        DisruptionBudgetSpec::default()
    );
}

/// The engine has the operations, and this crate their schema.
#[test]
fn the_schema_has_every_operation_of_the_engine() {
    let items = &schema(&crds::all()[0])["properties"]["spec"]["properties"]["operations"]["items"]["enum"];
    assert_eq!(*items, json!(Operation::ALL.map(Operation::name)));
}

#[test]
fn nothing_of_a_status_is_filled_in() {
    // A number that was not counted yet must not read as 0.
    for crd in crds::all() {
        let status = schema(&crd)["properties"]["status"].to_string();
        assert!(!status.contains("\"default\""), "{status}");
    }
}

#[test]
fn what_grows_with_the_pods_is_atomic() {
    for crd in crds::all().iter().filter(|crd| crd.spec.names.kind != "Workload") {
        let schema = schema(crd);
        let status = &schema["properties"]["status"]["properties"];
        for map in ["claims", "disruptedPods", "unavailablePods"] {
            assert_eq!(status[map]["x-kubernetes-map-type"], "atomic", "{map}");
        }
        assert_eq!(status["groups"]["x-kubernetes-list-type"], "atomic");
        assert_eq!(status["conditions"]["x-kubernetes-list-type"], "map");
        assert_eq!(status["conditions"]["x-kubernetes-list-map-keys"], json!(["type"]));
    }
}

#[test]
fn nothing_is_nullable_and_everything_is_described() {
    for Tried { schema, .. } in tried() {
        assert!(!schema.to_string().contains("nullable"));
        described(&schema, "");
    }
}

fn described(schema: &Value, path: &str) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let text = field["description"].as_str().unwrap_or_default();
        assert!(text.ends_with('.'), "{path} is described as {text:?}");
        described(field, &path);
        described(&field["items"], &path);
        described(&field["additionalProperties"], &path);
    }
}
