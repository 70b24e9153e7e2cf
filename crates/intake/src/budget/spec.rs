//! The parser of a `DisruptionBudget`'s spec.

use quorate_engine::basics::{Quantity, Text};
use quorate_engine::facts::{Covers, HealthRule, Operation, Operations, Rules, UnhealthyPolicy, Units};
use quorate_engine::selector::Selector;
use serde_json::Value;

use crate::error::Problem;
use crate::field::Field;
use crate::objects::group_kind;
use crate::{selector, syntax};

/// The largest number that a spec may contain.
const MAX_NUMBER: u32 = 999_999_999;

/// A parsed spec, as far as it can be read.
pub(crate) struct ParsedSpec {
    /// Valid as a whole only if `refused` is empty. The coverage is always valid: if it cannot be read, it is every pod
    /// of the namespace.
    pub(crate) rules: Rules,
    /// The operations that the budget denies if `refused` is not empty.
    pub(crate) operations_if_broken: Operations,
    /// Problems that make the budget invalid.
    pub(crate) refused: Vec<Problem>,
    /// Problems that the webhook rejects, but that have a defined meaning in a stored budget.
    pub(crate) tolerated: Vec<Problem>,
}

/// All problems of the spec of a budget.
pub fn validate(spec: &Value) -> Vec<Problem> {
    let mut reading = read(spec);
    reading.refused.append(&mut reading.tolerated);
    reading.refused
}

pub(super) fn read(spec: &Value) -> ParsedSpec {
    let mut refused = Vec::new();
    let mut tolerated = Vec::new();
    let spec = Field::new("spec", spec);
    spec.must_be_object(&mut refused);
    let covers = read_covers(&spec, read_target, &mut refused, &mut tolerated);
    let min_available = spec.get("minAvailable").and_then(|field| read_quantity(&field, &mut refused));
    let max_unavailable = spec.get("maxUnavailable").and_then(|field| read_quantity(&field, &mut refused));
    if spec.get("minAvailable").is_none() && spec.get("maxUnavailable").is_none() {
        refused.push(Problem::at("spec", "sets no limit: set minAvailable, maxUnavailable or both"));
    }
    let units = read_units(&spec, &mut refused);
    let expected =
        spec.get("expectedReplicas").and_then(|field| field.number(0, i32::MAX as u32, &mut refused));
    let unhealthy = spec.get("unhealthyPodEvictionPolicy").and_then(|field| {
        let words = [
            ("IfHealthyBudget", UnhealthyPolicy::IfHealthyBudget),
            ("AlwaysAllow", UnhealthyPolicy::AlwaysAllow),
        ];
        field.word(&words, &mut refused)
    });
    let observe = spec
        .get("enforcement")
        .and_then(|field| field.word(&[("Enforce", false), ("Observe", true)], &mut refused))
        .unwrap_or_default();
    let operations = read_operations(&spec, &mut refused);
    let operations_if_broken = match operations {
        // A budget that only observes denies nothing, even if it is invalid.
        _ if observe => Operations::of(&[]),
        Some(operations) => operations,
        None => Operations::of(&Operation::ASSUMED),
    };
    let rules = Rules {
        covers,
        min_available,
        max_unavailable,
        units,
        expected,
        unhealthy: unhealthy.unwrap_or_default(),
        operations: operations.unwrap_or(operations_if_broken),
        observe,
        health: HealthRule::Ready,
        waivable: false,
    };
    ParsedSpec { rules, operations_if_broken, refused, tolerated }
}

/// The coverage of a budget; every pod of the namespace if it cannot be read.
pub(crate) fn read_covers(
    spec: &Field<'_>,
    read_target: fn(&Field<'_>, &mut Vec<Problem>) -> Option<Covers>,
    refused: &mut Vec<Problem>,
    tolerated: &mut Vec<Problem>,
) -> Covers {
    let everything = Covers::Selector(Selector::default());
    let before = refused.len();
    let covers = match (spec.get("selector"), spec.get("targetRef")) {
        (selector, Some(target)) => {
            if selector.is_some() {
                tolerated.push(Problem::at(
                    "spec",
                    "has selector and targetRef, which exclude each other: keep one of them",
                ));
            }
            read_target(&target, refused)
        }
        (Some(selector), None) => Some(Covers::Selector(selector::read(&selector, refused))),
        (None, None) => {
            refused.push(Problem::at("spec", "covers no pods: set selector or targetRef"));
            None
        }
    };
    // A selector that was read only in part covers other pods than the user meant.
    covers.filter(|_| refused.len() == before).unwrap_or(everything)
}

fn read_target(target: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Covers> {
    let api_version = read_api_version(target, problems);
    let kind = required(target, "kind", 63, problems);
    let name = required(target, "name", 253, problems);
    Some(Covers::Target(group_kind(api_version?, kind?), name?.into()))
}

fn read_api_version<'a>(field: &Field<'a>, problems: &mut Vec<Problem>) -> Option<&'a str> {
    let version = required(field, "apiVersion", 317, problems)?;
    if syntax::is_api_version(version) {
        return Some(version);
    }
    problems.push(Problem::with(
        format!("{}.apiVersion", field.path),
        format!("{version:?}"),
        "must be a version such as v1, or a group and a version such as apps/v1",
    ));
    None
}

/// A string that must be set and not be empty.
pub(crate) fn required<'a>(
    field: &Field<'a>,
    name: &str,
    longest: usize,
    problems: &mut Vec<Problem>,
) -> Option<&'a str> {
    let Some(member) = field.get(name) else {
        problems.push(Problem::at(format!("{}.{name}", field.path), "is missing"));
        return None;
    };
    let text = member.text(problems)?;
    if text.is_empty() || text.chars().count() > longest {
        problems.push(member.problem(format!("must have from 1 to {longest} characters")));
        return None;
    }
    Some(text)
}

/// A number or a percentage.
pub(crate) fn read_quantity(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Quantity> {
    let quantity = match field.value {
        Value::Number(number) => number
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n <= MAX_NUMBER)
            .map(Quantity::Count),
        Value::String(text) => percent(text).map(Quantity::Percent),
        _ => None,
    };
    if quantity.is_none() {
        problems.push(field.problem(format!(
            "must be a whole number from 0 to {MAX_NUMBER}, or a percentage from \"0%\" to \"100%\""
        )));
    }
    quantity
}

/// `0%` to `100%`, in digits only. A percentage above 100 is a mistake.
fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    let fits = (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let percent: u32 = fits.then(|| digits.parse().ok()).flatten()?;
    (percent < 100 && digits.len() < 3 || digits == "100").then_some(percent)
}

fn read_units(spec: &Field<'_>, problems: &mut Vec<Problem>) -> Units {
    let workload = spec
        .get("budgetScope")
        .and_then(|field| field.word(&[("Pod", false), ("Workload", true), ("PodGroup", true)], problems));
    let policy = spec.get("podGroupPolicy");
    match (workload, policy) {
        (Some(true), Some(policy)) => {
            problems.push(Problem::at(
                policy.path,
                "forms groups of its own and excludes budgetScope Workload and PodGroup: remove one of the two",
            ));
            Units::Workload
        }
        (Some(true), None) => Units::Workload,
        (_, Some(policy)) => read_policy(&policy, problems).unwrap_or(Units::Pods),
        (_, None) => Units::Pods,
    }
}

fn read_policy(policy: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Units> {
    if !policy.value.is_object() {
        problems.push(policy.problem("must be an object with groupLabelKey or groupOwner"));
        return None;
    }
    let min_ready =
        policy.get("minReadyReplicas").and_then(|field| field.number(1, i32::MAX as u32, problems));
    match (policy.get("groupLabelKey"), policy.get("groupOwner")) {
        (Some(key), None) => {
            let key: Text = selector::read_label_key(&key, problems)?;
            Some(Units::Label { key, min_ready })
        }
        (None, Some(owner)) => {
            let api_version = read_api_version(&owner, problems);
            let kind = required(&owner, "kind", 63, problems);
            Some(Units::Owner { kind: group_kind(api_version?, kind?), min_ready })
        }
        (Some(_), Some(_)) => {
            problems.push(Problem::at(
                &policy.path,
                "has groupLabelKey and groupOwner, which exclude each other: keep one of them",
            ));
            None
        }
        (None, None) => {
            problems.push(Problem::at(&policy.path, "forms no groups: set groupLabelKey or groupOwner"));
            None
        }
    }
}

/// The operations; `None` if they cannot be read.
fn read_operations(spec: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Operations> {
    let Some(field) = spec.get("operations") else { return Some(Operations::of(&[Operation::Evict])) };
    let before = problems.len();
    let words = Operation::ALL.map(|operation| (operation.name(), operation));
    let mut operations = Vec::new();
    for item in field.items(problems) {
        if let Some(operation) = item.word(&words, problems) {
            if operations.contains(&operation) {
                problems.push(item.problem("is listed twice: list each operation once"));
            }
            operations.push(operation);
        }
    }
    if operations.is_empty() && problems.len() == before {
        problems.push(Problem::at(
            field.path,
            "is empty: name at least one of Evict, Delete, Update, Resize and Relabel",
        ));
    }
    (problems.len() == before).then(|| Operations::of(&operations))
}
