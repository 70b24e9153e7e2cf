//! Webhook configurations.

use serde_json::{Value, json};

use crate::apiserver::cel;
use crate::apiserver::failure::FieldError;
use crate::apiserver::object::{as_map, default_field};

pub(crate) fn webhook_defaults(value: &mut Value) {
    let mutating = value["kind"] == "MutatingWebhookConfiguration";
    for hook in value["webhooks"].as_array_mut().into_iter().flatten() {
        let hook = as_map(hook);
        default_field(hook, "failurePolicy", "Fail");
        default_field(hook, "matchPolicy", "Equivalent");
        default_field(hook, "timeoutSeconds", 10);
        default_field(hook, "namespaceSelector", json!({}));
        default_field(hook, "objectSelector", json!({}));
        if mutating {
            default_field(hook, "reinvocationPolicy", "Never");
        }
        for rule in hook.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
            default_field(as_map(rule), "scope", "*");
        }
        if let Some(Value::Object(config)) = hook.get_mut("clientConfig")
            && let Some(Value::Object(service)) = config.get_mut("service")
        {
            default_field(service, "port", 443);
        }
    }
}

pub(crate) fn validate(value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (index, hook) in value["webhooks"].as_array().into_iter().flatten().enumerate() {
        let at = |field: &str| format!("webhooks[{index}].{field}");
        let name = hook["name"].as_str().unwrap_or_default();
        if name.split('.').count() < 3 || !crate::apiserver::names::is_subdomain(name) {
            errors.push(FieldError::invalid(
                at("name"),
                name,
                "should be a domain with at least three segments separated by dots",
            ));
        }
        if names.contains(&name) {
            errors.push(FieldError::duplicate(at("name"), name));
        }
        names.push(name);
        match hook["sideEffects"].as_str() {
            Some("None" | "NoneOnDryRun") => {}
            None => {
                errors
                    .push(FieldError::required(at("sideEffects"), "must specify one of None, NoneOnDryRun"));
            }
            Some(other) => {
                errors.push(FieldError::not_supported(at("sideEffects"), other, &["None", "NoneOnDryRun"]));
            }
        }
        let versions = hook["admissionReviewVersions"].as_array();
        if versions.is_none_or(|v| !v.iter().any(|v| v == "v1")) {
            errors.push(FieldError::invalid(
                at("admissionReviewVersions"),
                hook["admissionReviewVersions"].clone(),
                "must include at least one of v1",
            ));
        }
        if let Some(seconds) = hook["timeoutSeconds"].as_i64()
            && !(1..=30).contains(&seconds)
        {
            errors.push(FieldError::invalid(
                at("timeoutSeconds"),
                seconds,
                "the timeout value must be between 1 and 30 seconds",
            ));
        }
        match hook["failurePolicy"].as_str() {
            None | Some("Fail" | "Ignore") => {}
            Some(other) => {
                errors.push(FieldError::not_supported(at("failurePolicy"), other, &["Fail", "Ignore"]));
            }
        }
        errors.extend(validate_target(&hook["clientConfig"], &at("clientConfig")));
        errors.extend(validate_conditions(hook, index));
    }
    errors
}

fn validate_target(config: &Value, at: &str) -> Option<FieldError> {
    match (config["url"].as_str(), config["service"].is_object()) {
        (Some(_), true) | (None, false) => {
            Some(FieldError::required(at, "exactly one of url or service is required"))
        }
        (Some(url), false) if !url.starts_with("https://") => {
            Some(FieldError::invalid(format!("{at}.url"), url, "'https' is the only allowed URL scheme"))
        }
        _ => None,
    }
}

fn validate_conditions(hook: &Value, index: usize) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let conditions: Vec<&Value> = hook["matchConditions"].as_array().into_iter().flatten().collect();
    if conditions.len() > 64 {
        errors.push(FieldError::too_many(format!("webhooks[{index}].matchConditions"), conditions.len(), 64));
    }
    for (at, condition) in conditions.iter().enumerate() {
        let field = format!("webhooks[{index}].matchConditions[{at}]");
        if condition["name"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(format!("{field}.name"), ""));
        }
        let expression = condition["expression"].as_str().unwrap_or_default();
        if let Err(why) = cel::compile(expression) {
            errors.push(FieldError::invalid(format!("{field}.expression"), expression, why));
        }
    }
    errors
}
