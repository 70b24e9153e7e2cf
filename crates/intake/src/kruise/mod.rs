//! OpenKruise's `PodUnavailableBudget`, the second [`BudgetKind`](quorate_engine::facts::BudgetKind).
//!
//! This module holds the differences from a `DisruptionBudget`: defaults and annotations, validation beyond the schema,
//! and the conditions for an available pod. The status differs only in field names; see
//! [`crate::budget::status_patch`].

mod neighbours;
mod pod;
mod spec;

pub use neighbours::Neighbour;
pub(crate) use pod::{is_consistent, waives};

use std::collections::BTreeMap;

use quorate_api::budget::StoredBudget;
use quorate_api::names::kruise::{PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS};
use quorate_engine::basics::Text;
use quorate_engine::facts::{RuleAnnotations, Rules};
use serde_json::Value;

use crate::budget::ParsedSpec;
use crate::error::Problem;
use crate::field::Field;

/// Reads a stored budget, as far as possible.
pub(crate) fn read(object: &StoredBudget) -> ParsedSpec {
    let none = BTreeMap::new();
    spec::read(&object.spec, object.metadata.annotations.as_ref().unwrap_or(&none))
}

/// The annotations that the rules of a budget depend on.
pub(crate) fn rule_annotations(object: &StoredBudget) -> RuleAnnotations {
    let annotations = object.metadata.annotations.as_ref();
    let value = |name: &str| annotations?.get(name).map(|value| Text::from(value.as_str()));
    let values = [PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS].map(|name| (Text::from(name), value(name)));
    RuleAnnotations { any: annotations.is_some(), values: values.into() }
}

/// All problems of a new budget. `neighbours` are the other budgets of its namespace.
pub fn validate_new(object: &Value, neighbours: &[Neighbour]) -> Vec<Problem> {
    let reading = of_value(object);
    let mut problems = neighbours::conflicts(&reading.rules.covers, neighbours);
    let (mut refused, mut tolerated) = (reading.refused, reading.tolerated);
    refused.append(&mut tolerated);
    // A budget that cannot be read cannot be compared with others.
    if refused.is_empty() {
        refused.append(&mut problems);
    }
    refused
}

/// All problems of a change of a budget. Its coverage is immutable, because requests were admitted under it.
pub fn validate_change(old: &Value, new: &Value) -> Vec<Problem> {
    let same = |pointer: &str| {
        let given = |object: &Value| object.pointer(pointer).filter(|value| !value.is_null()).cloned();
        given(old) == given(new)
    };
    let annotations = [PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS];
    let annotation = |name: &str| format!("/metadata/annotations/{}", name.replace('/', "~1"));
    // An object that was stored without this validation must still accept a removed finalizer or a new label.
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
                "is immutable: create another budget, and delete this one once the new one is enforced",
            ));
        }
    }
    problems
}

/// The rules of a stored budget, if they are valid.
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
