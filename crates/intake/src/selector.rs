//! Label selectors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use quorate_engine::basics::Text;
use quorate_engine::selector::{Operator, Requirement, Selector};

use crate::error::Problem;
use crate::field::Field;
use crate::syntax;

/// The selector of an object of another API.
pub fn from_object(selector: &LabelSelector) -> Result<Selector, Vec<Problem>> {
    let mut problems = Vec::new();
    let value = serde_json::to_value(selector).unwrap_or_default();
    let selector = read(&Field::new("spec.selector", &value), &mut problems);
    if problems.is_empty() { Ok(selector) } else { Err(problems) }
}

/// Reads a selector. A part that cannot be read adds a problem and is omitted from the result. The caller must not use
/// a result with problems: a selector with fewer requirements covers more pods.
pub(crate) fn read(field: &Field<'_>, problems: &mut Vec<Problem>) -> Selector {
    let mut requirements = Vec::new();
    for (name, member) in field.members(problems) {
        match name {
            _ if member.value.is_null() => {}
            "matchLabels" => {
                for (key, value) in member.members(problems) {
                    requirements.extend(pair(key, &value, problems));
                }
            }
            "matchExpressions" => {
                for item in member.items(problems) {
                    requirements.extend(expression(&item, problems));
                }
            }
            // The API server drops unknown fields, and a selector without one of its parts covers too much.
            _ => problems.push(Problem::at(
                member.path,
                "is not a field of a selector: use matchLabels or matchExpressions",
            )),
        }
    }
    Selector(requirements.into())
}

fn pair(key: &str, value: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Requirement> {
    if let Err(why) = syntax::label_key(key) {
        problems.push(Problem::with(&value.path, key, why));
        return None;
    }
    // As in Kubernetes, `null` is the empty string here.
    let text = if value.value.is_null() { "" } else { label_value(value, problems)? };
    Some(Requirement { key: key.into(), operator: Operator::In([text.into()].into()) })
}

fn expression(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Requirement> {
    let before = problems.len();
    if !field.value.is_object() {
        problems.push(field.problem("must be an object with key and operator"));
        return None;
    }
    let key = match field.get("key") {
        Some(key) => read_label_key(&key, problems),
        None => {
            problems.push(Problem::at(format!("{}.key", field.path), "is missing: name a label"));
            None
        }
    };
    let values: Vec<Text> = match field.get("values") {
        Some(values) => values
            .items(problems)
            .iter()
            .filter_map(|value| label_value(value, problems))
            .map(Text::from)
            .collect(),
        None => Vec::new(),
    };
    let Some(name) = field.get("operator") else {
        problems.push(Problem::at(
            format!("{}.operator", field.path),
            "is missing: set In, NotIn, Exists or DoesNotExist",
        ));
        return None;
    };
    let name = name.word(
        &[
            ("In", OperatorName::In),
            ("NotIn", OperatorName::NotIn),
            ("Exists", OperatorName::Exists),
            ("DoesNotExist", OperatorName::DoesNotExist),
        ],
        problems,
    )?;
    if problems.len() > before {
        return None;
    }
    let path = format!("{}.values", field.path);
    let wants_values = matches!(name, OperatorName::In | OperatorName::NotIn);
    if wants_values && values.is_empty() {
        problems.push(Problem::at(path, "is empty: operators In and NotIn need at least one value"));
        return None;
    }
    if !wants_values && !values.is_empty() {
        problems.push(Problem::at(
            path,
            "must be empty: operators Exists and DoesNotExist take no values; remove them, or use In or NotIn",
        ));
        return None;
    }
    let operator = match name {
        OperatorName::In => Operator::In(values.into()),
        OperatorName::NotIn => Operator::NotIn(values.into()),
        OperatorName::Exists => Operator::Exists,
        OperatorName::DoesNotExist => Operator::Absent,
    };
    Some(Requirement { key: key?, operator })
}

#[derive(Clone, Copy)]
enum OperatorName {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// A label key in a field of its own.
pub(crate) fn read_label_key(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Text> {
    let key = field.text(problems)?;
    match syntax::label_key(key) {
        Ok(()) => Some(key.into()),
        Err(why) => {
            problems.push(field.problem(why));
            None
        }
    }
}

fn label_value<'a>(field: &Field<'a>, problems: &mut Vec<Problem>) -> Option<&'a str> {
    let value = field.text(problems)?;
    match syntax::label_value(value) {
        Ok(()) => Some(value),
        Err(why) => {
            problems.push(field.problem(why));
            None
        }
    }
}
