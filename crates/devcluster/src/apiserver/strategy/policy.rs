//! PodDisruptionBudgets.

use serde_json::{Value, json};

use crate::apiserver::failure::FieldError;
use crate::apiserver::object::{default_field, map_mut};
use crate::apiserver::selector::Labels;

/// Numbers of the status that are always present, even if they are zero.
const NUMBERS: [&str; 4] = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];

pub(crate) fn default(value: &mut Value) {
    if value["kind"] == "PodDisruptionBudget" {
        let status = map_mut(value, "status");
        for number in NUMBERS {
            default_field(status, number, 0);
        }
    }
}

pub(crate) fn prepare_create(value: &mut Value) {
    value["status"] =
        json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
}

pub(crate) fn validate(value: &Value) -> Vec<FieldError> {
    let spec = &value["spec"];
    let mut errors = Vec::new();
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        errors.push(FieldError::invalid(
            "spec",
            spec.clone(),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        errors.extend(int_or_percent(&format!("spec.{field}"), &spec[field]));
    }
    if spec["selector"].is_object()
        && let Err(why) = Labels::from_object(&spec["selector"])
    {
        errors.push(FieldError::invalid("spec.selector", spec["selector"].clone(), why));
    }
    if let Some(policy) = spec["unhealthyPodEvictionPolicy"].as_str()
        && !matches!(policy, "IfHealthyBudget" | "AlwaysAllow")
    {
        errors.push(FieldError::not_supported(
            "spec.unhealthyPodEvictionPolicy",
            policy,
            &["AlwaysAllow", "IfHealthyBudget"],
        ));
    }
    errors
}

/// Accepts a count of at least zero, or a whole percentage from 0% to 100%.
fn int_or_percent(field: &str, value: &Value) -> Option<FieldError> {
    match value {
        Value::Null => None,
        Value::Number(number) => match number.as_i64() {
            Some(n) if n >= 0 => None,
            _ => Some(FieldError::invalid(field, value.clone(), "must be greater than or equal to 0")),
        },
        Value::String(text) => {
            let digits =
                text.strip_suffix('%').filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
            match digits.map(|d| d.parse::<u32>().unwrap_or(u32::MAX)) {
                None => Some(FieldError::invalid(
                    field,
                    text.as_str(),
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                )),
                Some(percent) if percent > 100 => {
                    Some(FieldError::invalid(field, text.as_str(), "must not be greater than 100%"))
                }
                Some(_) => None,
            }
        }
        other => {
            Some(FieldError::invalid(field, other.clone(), "must be an integer or percentage (e.g '5%%')"))
        }
    }
}

pub(crate) fn validate_status(value: &Value) -> Vec<FieldError> {
    NUMBERS
        .iter()
        .filter_map(|field| {
            let number = value["status"][*field].as_i64().unwrap_or(0);
            (number < 0).then(|| {
                FieldError::invalid(format!("status.{field}"), number, "must be greater than or equal to 0")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::int_or_percent;
    use serde_json::json;

    #[test]
    fn counts_and_percentages_are_validated() {
        for good in [json!("0%"), json!("1%"), json!("100%"), json!(0), json!(1), json!(100), json!(null)] {
            assert!(int_or_percent("f", &good).is_none(), "{good}");
        }
        for bad in [
            json!("1.1%"),
            json!("nope"),
            json!("-1%"),
            json!("101%"),
            json!(-1),
            json!("%"),
            json!("99999999999%"),
        ] {
            assert!(int_or_percent("f", &bad).is_some(), "{bad}");
        }
    }
}
