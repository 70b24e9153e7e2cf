//! Nothing that comes from outside makes intake panic.

use proptest::prelude::*;
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Time};
use quorate_engine::facts::BudgetKind;
use quorate_intake::{admission, budget, kruise, objects, probe, workload};
use serde_json::{Map, Value, json};

use crate::data::{load, object, random_cases};

/// Any JSON, including values and keys that have a meaning.
fn junk() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC*".prop_map(Value::from),
        prop::sample::select(vec![
            "In",
            "Exists",
            "100%",
            "0%",
            "%",
            "Evict",
            "Workload",
            "2026-11-15T10:00:00Z",
            "1e9Mi",
            "/",
            "@",
            ":",
            "sha256:",
            "v1",
            "apps/v1",
            "{}"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let keys = prop_oneof![
            "\\PC{0,8}",
            prop::sample::select(vec![
                "selector",
                "matchLabels",
                "matchExpressions",
                "key",
                "operator",
                "values",
                "claims",
                "tokens",
                "spec",
                "status",
                "metadata",
                "policy",
                "gang",
                "httpGet",
                "port"
            ])
            .prop_map(str::to_owned),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(keys, inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// The JSON pointers to all parts of a value.
fn pointers(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: String, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => members.iter().for_each(|(name, member)| {
                walk(member, format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, item)| walk(item, format!("{at}/{i}"), found));
            }
            _ => {}
        }
        found.push(at);
    }
    let mut found = Vec::new();
    walk(value, String::new(), &mut found);
    found
}

/// A real object with one damaged part.
fn damaged(file: &'static str) -> impl Strategy<Value = Value> {
    let value = load(file);
    let pointers = pointers(&value);
    (prop::sample::select(pointers), junk()).prop_map(move |(pointer, junk)| {
        let mut value = value.clone();
        if let Some(at) = value.pointer_mut(&pointer) {
            *at = junk;
        }
        value
    })
}

fn take_in_pod(value: &Value) {
    if let Ok(pod) = serde_json::from_value::<slim::Pod>(value.clone()) {
        let _ = objects::pod(&pod);
        let _ = probe::problems(&pod);
    }
}

fn take_in_budget(value: &Value) {
    if let Ok(stored) = serde_json::from_value::<quorate_api::budget::StoredBudget>(value.clone()) {
        let _ = budget::validate(&stored.spec);
        let _ = kruise::validate_new(value, &[]);
        let _ = kruise::validate_change(&serde_json::Value::Null, value);
        for kind in BudgetKind::ALL {
            let Ok(fact) = budget::fact(kind, &stored) else { continue };
            let missing = budget::MissingFields::of(fact.key.kind, &stored);
            for claim in fact.ledger.claims.values() {
                let _ = budget::claim_to_json(claim);
            }
            let patch = quorate_engine::ledger::LedgerPatch { budget: fact.key, steps: Vec::new() };
            let _ = budget::json_patch(&patch, &missing);
            if let Ok(rules) = fact.spec {
                let _ = budget::warnings(kind, &rules, budget::KnownNumbers::default());
            }
        }
    }
}

fn review(value: &Value) {
    match admission::read(value.to_string().as_bytes(), 1 << 20) {
        Ok(review) => {
            if let Err(rejected) = review.reviewed_operation() {
                assert_eq!(rejected.uid.as_deref(), Some(review.uid()));
                let _ = admission::reject(&rejected);
            }
        }
        Err(rejected) => drop(admission::reject(&rejected)),
    }
}

proptest! {
    #![proptest_config(random_cases(200))]

    #[test]
    fn random_json_never_panics(value in junk()) {
        take_in_pod(&value);
        take_in_budget(&value);
        take_in_budget(&json!({ "metadata": { "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1" }, "spec": value, "status": value }));
        review(&value);
        workload::validate(&value);
        let _ = probe::parse("p", &value.to_string());
        let _ = serde_json::from_value(value.clone()).map(|o| objects::pod_group(&o));
        let _ = serde_json::from_value(value.clone()).map(|o| objects::upstream_workload(&o));
        let _ = serde_json::from_value(value.clone()).map(|o| objects::leader_worker_set(&o));
        let path = quorate_api::slim::ReplicasPath::default();
        for (group, kind) in [("", ""), ("batch", "Job"), ("jobset.x-k8s.io", "JobSet"), ("apps.kruise.io", "CloneSet")] {
            let _ = objects::any_controller(&GroupKind::new(group, kind), &value.to_string(), Some(&path));
        }
        let _ = objects::any_pod(&value.to_string());
        let _ = serde_json::from_value(value.clone()).map(|o| objects::agent(&o, Time(0)));
        let _ = serde_json::from_value(value).map(|o| objects::native_budget(&o));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(rejected) = admission::read(&bytes, 100) {
            let _ = admission::reject(&rejected);
        }
    }

    #[test]
    fn a_damaged_pod_never_panics(value in damaged("pod.json")) {
        take_in_pod(&value);
    }

    #[test]
    fn a_damaged_review_never_panics(
        value in prop_oneof![damaged("review/drain.json"), damaged("review/delete.json"), damaged("review/update.json"), damaged("review/resize.json")]
    ) {
        review(&value);
    }

    /// A budget that still has its identity is read as broken at worst, and never ignored.
    #[test]
    fn a_damaged_budget_with_an_identity_is_still_read(value in damaged("budget.json")) {
        take_in_budget(&value);
        let mut whole = load("budget.json");
        whole["spec"] = value["spec"].clone();
        whole["status"] = value["status"].clone();
        prop_assert!(budget::budget(&object(whole)).is_ok());
    }
}
