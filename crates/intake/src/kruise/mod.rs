//! OpenKruise's `PodUnavailableBudget`, as a second front of the same budget.
//!
//! What differs from a `DisruptionBudget` is decided here: its defaults and annotations, what it refuses beside what a
//! schema can, and what it asks of a pod before it calls it available. What it writes into a status differs only in
//! names, which [`crate::budget::status_patch`] knows.

mod neighbours;
mod pod;
mod spec;

pub use neighbours::Neighbour;
pub(crate) use pod::{is_consistent, waives};

use std::collections::BTreeMap;

use quorate_api::budget::StoredBudget;
use quorate_api::names::kruise::{PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS};
use quorate_engine::facts::Rules;
use serde_json::Value;

use crate::budget::ParsedSpec;
use crate::error::Problem;
use crate::field::Field;

/// What a stored budget says, as far as it can be read.
pub(crate) fn read(object: &StoredBudget) -> ParsedSpec {
    let none = BTreeMap::new();
    spec::read(&object.spec, object.metadata.annotations.as_ref().unwrap_or(&none))
}

/// Everything that is wrong with a new budget beside others of its namespace.
pub fn validate_new(object: &Value, neighbours: &[Neighbour]) -> Vec<Problem> {
    let reading = of_value(object);
    let mut problems = neighbours::conflicts(&reading.rules.covers, neighbours);
    let (mut refused, mut tolerated) = (reading.refused, reading.tolerated);
    refused.append(&mut tolerated);
    // Of what cannot be read nothing can be compared.
    if refused.is_empty() {
        refused.append(&mut problems);
    }
    refused
}

/// Everything that is wrong with a change of a budget. What it covers stays: whoever was admitted under it counts on it.
pub fn validate_change(old: &Value, new: &Value) -> Vec<Problem> {
    let same = |pointer: &str| {
        let given = |object: &Value| object.pointer(pointer).filter(|value| !value.is_null()).cloned();
        given(old) == given(new)
    };
    let annotations = [PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS];
    let annotation = |name: &str| format!("/metadata/annotations/{}", name.replace('/', "~1"));
    // What was stored past this check must still be able to lose a finalizer, or get a label.
    if same("/spec") && annotations.iter().all(|name| same(&annotation(name))) {
        return Vec::new();
    }
    let reading = of_value(new);
    let mut problems = reading.refused;
    problems.extend(reading.tolerated);
    for field in ["selector", "targetRef"] {
        if !same(&format!("/spec/{field}")) {
            problems.push(Problem::at(
                format!("spec.{field}"),
                "cannot be changed: make another budget, and delete this one once that is enforced",
            ));
        }
    }
    problems
}

/// What a budget asks for, if it makes sense as it is stored.
pub fn rules(object: &Value) -> Option<Rules> {
    let reading = of_value(object);
    reading.refused.is_empty().then_some(reading.rules)
}

fn of_value(object: &Value) -> ParsedSpec {
    let mut problems = Vec::new();
    let mut annotations = BTreeMap::new();
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    if let Some(field) = Field::new("metadata", metadata).get("annotations") {
        for (name, value) in field.members(&mut problems) {
            annotations.extend(value.value.as_str().map(|text| (name.to_owned(), text.to_owned())));
        }
    }
    let mut reading = spec::read(object.get("spec").unwrap_or(&Value::Null), &annotations);
    reading.refused.append(&mut problems);
    reading
}
