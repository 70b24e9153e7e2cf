//! The parser of a `PodUnavailableBudget`'s spec and annotations.

use std::collections::BTreeMap;

use quorate_api::names::kruise::{PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS};
use quorate_engine::facts::{Covers, HealthRule, Operation, Operations, Rules, UnhealthyPolicy, Units};
use serde_json::Value;

use crate::budget::{ParsedSpec, read_covers, read_quantity, required};
use crate::error::Problem;
use crate::field::Field;
use crate::objects::group_kind;
use crate::selector;

/// `UPDATE` includes resizes: a resize that needs a decision restarts containers, as an update does.
const UPDATE: [Operation; 2] = [Operation::Update, Operation::Resize];

pub(super) fn read(spec: &Value, annotations: &BTreeMap<String, String>) -> ParsedSpec {
    let mut refused = Vec::new();
    let mut tolerated = Vec::new();
    let spec = Field::new("spec", spec);
    spec.must_be_object(&mut refused);
    let covers = read_covers(&spec, read_target, &mut refused, &mut tolerated);
    if let Covers::Selector(selector) = &covers
        && selector.0.is_empty()
        && refused.is_empty()
    {
        tolerated.push(Problem::at(
            "spec.selector",
            "is empty and would cover every pod of the namespace: name at least one label",
        ));
    }
    let units = spec.get("podGroupPolicy").and_then(|policy| read_policy(&policy, &mut refused));
    let max_unavailable = spec.get("maxUnavailable").and_then(|field| read_quantity(&field, &mut refused));
    let mut min_available = spec.get("minAvailable").and_then(|field| read_quantity(&field, &mut refused));
    match (spec.get("maxUnavailable"), spec.get("minAvailable")) {
        (None, None) => {
            refused.push(Problem::at("spec", "sets no limit: set maxUnavailable or minAvailable"));
        }
        (Some(_), Some(_)) if spec.get("podGroupPolicy").is_none() => {
            tolerated.push(Problem::at(
                "spec",
                "has maxUnavailable and minAvailable, which exclude each other, except with podGroupPolicy: \
                 keep one of them",
            ));
            // If a stored object has both, maxUnavailable takes effect.
            min_available = None;
        }
        _ => {}
    }
    let expected = annotation(annotations, PROTECT_TOTAL_REPLICAS)
        .and_then(|(path, text)| read_total(&path, text, &mut refused));
    let operations = match annotation(annotations, PROTECT_OPERATIONS) {
        Some((path, text)) => read_operations(&path, text, &mut refused),
        None => Some(Operations::of(&Operation::ASSUMED)),
    };
    let operations_if_broken = operations.unwrap_or(Operations::of(&Operation::ASSUMED));
    let rules = Rules {
        covers,
        min_available,
        max_unavailable,
        units: units.unwrap_or(Units::Pods),
        expected,
        unhealthy: UnhealthyPolicy::AlwaysAllow,
        operations: operations_if_broken,
        observe: false,
        health: HealthRule::Strict,
        waivable: true,
    };
    ParsedSpec { rules, operations_if_broken, refused, tolerated }
}

/// OpenKruise accepts any API version that is not empty.
fn read_target(target: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Covers> {
    let api_version = required(target, "apiVersion", 317, problems);
    let kind = required(target, "kind", 63, problems);
    let name = required(target, "name", 253, problems);
    Some(Covers::Target(group_kind(api_version?, kind?), name?.into()))
}

fn read_policy(policy: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Units> {
    policy.must_be_object(problems);
    let min_ready =
        policy.get("minReadyReplicas").map_or(Some(1), |field| field.number(1, i32::MAX as u32, problems));
    let Some(key) = policy.get("groupLabelKey") else {
        problems.push(Problem::at(
            format!("{}.groupLabelKey", policy.path),
            "is missing: name the label that forms groups",
        ));
        return None;
    };
    Some(Units::Label { key: selector::read_label_key(&key, problems)?, min_ready })
}

/// An annotation and its path. An empty annotation is the same as a missing one.
fn annotation<'a>(annotations: &'a BTreeMap<String, String>, name: &str) -> Option<(String, &'a str)> {
    let text = annotations.get(name).map(|text| text.trim()).filter(|text| !text.is_empty())?;
    Some((format!("metadata.annotations[{name}]"), text))
}

fn read_total(path: &str, text: &str, problems: &mut Vec<Problem>) -> Option<u32> {
    let number = text.parse().ok().filter(|number| (1..=i32::MAX as u32).contains(number));
    if number.is_none() {
        let given = format!("{text:?}");
        problems.push(Problem::with(path, given, format!("must be a whole number from 1 to {}", i32::MAX)));
    }
    number
}

fn read_operations(path: &str, text: &str, problems: &mut Vec<Problem>) -> Option<Operations> {
    let mut operations = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let is_named = |operation: &Operation| operation.name().to_uppercase() == word;
        match Operation::ALL.into_iter().find(is_named) {
            Some(Operation::Update) => operations.extend(UPDATE),
            Some(operation) => operations.push(operation),
            None => {
                problems.push(Problem::with(
                    path,
                    format!("{word:?}"),
                    "is not an operation: list DELETE, UPDATE, EVICT, RESIZE or RELABEL, separated by commas",
                ));
                return None;
            }
        }
    }
    // Only commas: the same as no annotation.
    Some(if operations.is_empty() {
        Operations::of(&Operation::ASSUMED)
    } else {
        Operations::of(&operations)
    })
}
