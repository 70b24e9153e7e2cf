//! Validation: what is allowed, rejected, or allowed with a warning.

use quorate_engine::facts::BudgetKind;
use quorate_intake::budget::{self, KnownNumbers};
use quorate_intake::{kruise, workload};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    spec: Value,
    refused: Option<String>,
}

/// The cases of the definitions themselves: the parser must not accept what a schema rejects, nor reject what a
/// schema accepts.
fn cases(file: &str) -> Vec<Case> {
    let path = format!("{}/../api/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_yaml_ng::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn agree(file: &str, validate: fn(&Value) -> Vec<quorate_intake::Problem>) {
    let cases = cases(file);
    assert!(cases.len() > 10);
    for case in cases {
        let problems = validate(&case.spec);
        assert_eq!(!problems.is_empty(), case.refused.is_some(), "{}: {problems:?}", case.name);
    }
}

#[test]
fn agrees_with_the_definition_of_budgets() {
    agree("disruptionbudgets.yaml", budget::validate);
}

#[test]
fn agrees_with_the_definition_of_openkruise_s_budgets() {
    agree("podunavailablebudgets.yaml", |spec| kruise::validate_new(&json!({ "spec": spec }), &[]));
}

#[test]
fn agrees_with_the_definition_of_workloads() {
    agree("workloads.yaml", workload::validate);
}

fn problems(spec: &Value) -> Vec<String> {
    budget::validate(spec).iter().map(ToString::to_string).collect()
}

#[test]
fn each_problem_names_its_field_and_the_valid_values() {
    let with = |part: Value| {
        let mut spec = json!({ "selector": {}, "minAvailable": 1 });
        spec.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        spec
    };
    let amount = "must be a whole number from 0 to 999999999, or a percentage from \"0%\" to \"100%\"";
    let key = "must be a label key: a name of letters, digits, '-', '_' and '.', with a domain and '/' before it where \
               there is one, such as example.com/group";
    let expression = |part: Value| json!({ "selector": { "matchExpressions": [part] } });
    let cases = [
        (json!({ "minAvailable": "1.1%" }), format!("spec.minAvailable: \"1.1%\" {amount}")),
        (json!({ "minAvailable": "nope" }), format!("spec.minAvailable: \"nope\" {amount}")),
        (json!({ "minAvailable": "-1%" }), format!("spec.minAvailable: \"-1%\" {amount}")),
        (json!({ "minAvailable": "+1%" }), format!("spec.minAvailable: \"+1%\" {amount}")),
        (json!({ "minAvailable": "101%" }), format!("spec.minAvailable: \"101%\" {amount}")),
        (json!({ "minAvailable": "%" }), format!("spec.minAvailable: \"%\" {amount}")),
        (json!({ "minAvailable": "5" }), format!("spec.minAvailable: \"5\" {amount}")),
        (json!({ "maxUnavailable": -1 }), format!("spec.maxUnavailable: -1 {amount}")),
        (json!({ "maxUnavailable": 1.5 }), format!("spec.maxUnavailable: 1.5 {amount}")),
        (json!({ "maxUnavailable": 1_000_000_000 }), format!("spec.maxUnavailable: 1000000000 {amount}")),
        (json!({ "maxUnavailable": true }), format!("spec.maxUnavailable: true {amount}")),
        (
            json!({ "targetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db" } }),
            "spec: has selector and targetRef, which exclude each other: keep one of them".to_owned(),
        ),
        (
            json!({ "selector": null, "targetRef": { "apiVersion": "Apps", "kind": "StatefulSet", "name": "db" } }),
            "spec.targetRef.apiVersion: \"Apps\" must be a version such as v1, or a group and a version such as apps/v1"
                .to_owned(),
        ),
        (
            json!({ "podGroupPolicy": { "groupLabelKey": "-bad-" } }),
            format!("spec.podGroupPolicy.groupLabelKey: \"-bad-\" {key}"),
        ),
        (
            json!({ "podGroupPolicy": {} }),
            "spec.podGroupPolicy: forms no groups: set groupLabelKey or groupOwner".to_owned(),
        ),
        (
            json!({ "podGroupPolicy": { "groupLabelKey": "a", "minReadyReplicas": 0 } }),
            "spec.podGroupPolicy.minReadyReplicas: 0 must be a whole number from 1 to 2147483647".to_owned(),
        ),
        (
            json!({ "podGroupPolicy": { "groupLabelKey": "a" }, "budgetScope": "PodGroup" }),
            "spec.podGroupPolicy: forms groups of its own and excludes budgetScope Workload and PodGroup: remove one \
             of the two"
                .to_owned(),
        ),
        (
            json!({ "budgetScope": "workload" }),
            "spec.budgetScope: \"workload\" must be Pod, Workload or PodGroup".to_owned(),
        ),
        (
            json!({ "operations": [] }),
            "spec.operations: is empty: name at least one of Evict, Delete, Update, Resize and Relabel".to_owned(),
        ),
        (
            json!({ "operations": ["Evict", "evict"] }),
            "spec.operations[1]: \"evict\" must be Evict, Delete, Update, Resize or Relabel".to_owned(),
        ),
        (
            expression(json!({ "key": "a", "operator": "In", "values": [] })),
            "spec.selector.matchExpressions[0].values: is empty: operators In and NotIn need at least one value"
                .to_owned(),
        ),
        (
            expression(json!({ "key": "a", "operator": "Exists", "values": ["b"] })),
            "spec.selector.matchExpressions[0].values: must be empty: operators Exists and DoesNotExist take no \
             values; remove them, or use In or NotIn"
                .to_owned(),
        ),
        (
            expression(json!({ "key": "a", "operator": "Equals", "values": ["b"] })),
            "spec.selector.matchExpressions[0].operator: \"Equals\" must be In, NotIn, Exists or DoesNotExist"
                .to_owned(),
        ),
        (expression(json!({ "key": "a/b/c", "operator": "Exists" })), format!("spec.selector.matchExpressions[0].key: \"a/b/c\" {key}")),
        (
            json!({ "selector": { "matchLabels": { "app": "a b" } } }),
            "spec.selector.matchLabels.app: \"a b\" must be a label value: empty, or letters, digits, '-', '_' and '.', \
             beginning and ending with a letter or digit"
                .to_owned(),
        ),
        (
            json!({ "selector": { "app": "llm" } }),
            "spec.selector.app: is not a field of a selector: use matchLabels or matchExpressions".to_owned(),
        ),
    ];
    for (part, message) in cases {
        assert_eq!(problems(&with(part.clone())), [message], "{part}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let spec = json!({ "selector": { "matchLabels": { "a b": "c d" } }, "minAvailable": -1, "enforcement": "Maybe" });
    assert_eq!(problems(&spec).len(), 3, "{:?}", problems(&spec));
}

#[test]
fn a_long_value_is_shown_in_part() {
    let spec = json!({ "selector": {}, "minAvailable": "x".repeat(5000) });
    assert!(problems(&spec)[0].len() < 300);
}

fn warnings(part: &Value, known: KnownNumbers) -> Vec<String> {
    let mut spec = json!({ "selector": { "matchLabels": { "app": "llm" } } });
    spec.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    budget::warnings(BudgetKind::DisruptionBudget, &budget::rules(&spec).unwrap(), known)
}

#[test]
fn a_valid_but_risky_budget_gets_a_warning() {
    let nothing = KnownNumbers::default();
    let expects = |expected| KnownNumbers { expected: Some(expected), ..nothing };
    let sized = |size, falls_whole| KnownNumbers { group_size: Some(size), falls_whole, ..nothing };
    let key = "leaderworkerset.sigs.k8s.io/group-index";
    let cases = [
        (json!({ "maxUnavailable": 1 }), nothing, None),
        (json!({ "minAvailable": 2 }), expects(3), None),
        (json!({ "minAvailable": "100%" }), nothing, Some("100%, so no pod may ever be disrupted")),
        (json!({ "maxUnavailable": 0 }), nothing, Some("maxUnavailable is 0, so no pod may ever")),
        (json!({ "maxUnavailable": "0%", "budgetScope": "Workload" }), nothing, Some("no group may ever")),
        (json!({ "minAvailable": 3 }), expects(3), Some("3 of 3, so no pod may ever be disrupted")),
        (json!({ "minAvailable": "90%" }), expects(5), Some("90% of 5, so no pod may ever be disrupted")),
        (json!({ "minAvailable": 1, "expectedReplicas": 0 }), nothing, Some("expectedReplicas is 0")),
        (json!({ "maxUnavailable": 1, "budgetScope": "Workload" }), expects(1), Some("only one group")),
        (json!({ "maxUnavailable": 1 }), expects(1), None),
        (json!({ "minAvailable": 0 }), nothing, Some("protects nothing")),
        (json!({ "maxUnavailable": "100%" }), nothing, Some("protects nothing")),
        (json!({ "maxUnavailable": "100%", "minAvailable": 1 }), nothing, None),
        (json!({ "maxUnavailable": 1, "selector": {} }), nothing, Some("every pod of the namespace")),
        (json!({ "maxUnavailable": 1, "operations": ["Delete"] }), nothing, Some("leaves out Evict")),
        (
            json!({ "maxUnavailable": 1, "podGroupPolicy": { "groupLabelKey": "shard" } }),
            nothing,
            Some("size of the groups is not known"),
        ),
        (
            json!({ "maxUnavailable": 1, "podGroupPolicy": { "groupLabelKey": "shard" } }),
            sized(3, false),
            None,
        ),
        (json!({ "maxUnavailable": 1, "podGroupPolicy": { "groupLabelKey": key } }), nothing, None),
        (
            json!({ "maxUnavailable": 1, "podGroupPolicy": { "groupLabelKey": key, "minReadyReplicas": 2 } }),
            sized(3, true),
            Some("recreate the group: 3 is used instead"),
        ),
        (
            json!({ "maxUnavailable": 1, "podGroupPolicy": { "groupLabelKey": key, "minReadyReplicas": 2 } }),
            sized(3, false),
            None,
        ),
        (
            json!({ "maxUnavailable": 1, "podGroupPolicy": { "groupLabelKey": key, "minReadyReplicas": 4 } }),
            sized(3, true),
            Some("can never have more: 3 is used instead"),
        ),
    ];
    for (part, known, expected) in cases {
        let warnings = warnings(&part, known);
        match expected {
            None => assert_eq!(warnings, Vec::<String>::new(), "{part}"),
            Some(words) => {
                assert_eq!(warnings.len(), 1, "{part}: {warnings:?}");
                assert!(warnings[0].contains(words), "{part}: {warnings:?}");
                assert!(warnings[0].len() <= 256, "the API server may cut it: {}", warnings[0]);
            }
        }
    }
}

#[test]
fn problems_of_a_workload_name_their_field() {
    let group = json!({ "name": "w", "replicas": 2, "policy": { "gang": { "minCount": 3 } } });
    let spec = json!({ "podGroups": [group, group] });
    let problems: Vec<String> = workload::validate(&spec).iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "spec.podGroups[1].name: w is the name of an earlier group: names must be unique within the workload"
        ]
    );
    let first = |spec: Value| workload::validate(&spec)[0].to_string();
    assert_eq!(first(json!({})), "spec.podGroups: must have from 1 to 8 groups, and has 0");
    assert_eq!(first(json!({ "podGroups": {} })), "spec.podGroups: an object must be a list");
    let both = json!({ "gang": { "minCount": 1 }, "basic": {} });
    assert_eq!(
        first(json!({ "podGroups": [{ "name": "w", "replicas": 2, "policy": both }] })),
        "spec.podGroups[0].policy: has gang and basic, which exclude each other: keep one"
    );
}
