//! Priority classes, and the gang-scheduling kinds in the versions of three releases.

use serde_json::{Value, json};

use super::meta::immutable;
use crate::apiserver::api::Api;
use crate::apiserver::builtin::table_id;
use crate::apiserver::failure::{Failure, FieldError, Outcome};
use crate::apiserver::names;
use crate::apiserver::object::{self, Key, default_field, map_mut};
use crate::apiserver::resource::Resource;

/// Maximum number of templates in a Workload.
const TEMPLATES_MAX: usize = 8;

/// The field with the list of templates, by version.
fn templates_field(version: &str) -> &'static str {
    if version == "v1alpha1" { "podGroups" } else { "podGroupTemplates" }
}

fn policy_field(version: &str) -> &'static str {
    if version == "v1alpha1" { "policy" } else { "schedulingPolicy" }
}

pub(crate) fn default(kind: &str, version: &str, value: &mut Value) {
    match kind {
        "PriorityClass" => {
            let Value::Object(map) = value else { return };
            default_field(map, "preemptionPolicy", "PreemptLowerPriority");
        }
        "PodGroup" => default_mode(version, map_mut(value, "spec")),
        "Workload" if version != "v1alpha1" => {
            let spec = map_mut(value, "spec");
            for template in
                spec.get_mut(templates_field(version)).and_then(Value::as_array_mut).into_iter().flatten()
            {
                default_mode(version, object::as_map(template));
            }
        }
        _ => {}
    }
}

fn default_mode(version: &str, map: &mut serde_json::Map<String, Value>) {
    let mode = if version == "v1alpha2" { json!("Pod") } else { json!({"single": {}}) };
    default_field(map, "disruptionMode", mode);
}

pub(crate) fn validate(kind: &str, version: &str, value: &Value) -> Vec<FieldError> {
    match kind {
        "Workload" => validate_workload(version, value),
        "PodGroup" => {
            let mut errors = validate_policy(&value["spec"][policy_field(version)], "spec.schedulingPolicy");
            errors.extend(validate_mode(version, &value["spec"]["disruptionMode"], "spec.disruptionMode"));
            errors
        }
        "PriorityClass"
            if value["value"].as_i64().is_some_and(|v| v > 1_000_000_000)
                && !object::name(value).starts_with("system-") =>
        {
            vec![FieldError::forbidden(
                "value",
                "maximum allowed value of a user defined priority is 1000000000",
            )]
        }
        _ => Vec::new(),
    }
}

fn validate_workload(version: &str, value: &Value) -> Vec<FieldError> {
    let field = templates_field(version);
    let at = format!("spec.{field}");
    let templates: Vec<&Value> = value["spec"][field].as_array().into_iter().flatten().collect();
    let mut errors = Vec::new();
    if templates.is_empty() {
        errors.push(FieldError::required(&at, ""));
    }
    if templates.len() > TEMPLATES_MAX {
        errors.push(FieldError::too_many(&at, templates.len(), TEMPLATES_MAX));
    }
    let mut seen = Vec::new();
    for (index, template) in templates.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let name = template["name"].as_str().unwrap_or_default();
        if !names::is_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, names::LABEL_RULE));
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        seen.push(name);
        let policy = policy_field(version);
        errors.extend(validate_policy(&template[policy], &format!("{at}.{policy}")));
        errors.extend(validate_mode(version, &template["disruptionMode"], &format!("{at}.disruptionMode")));
    }
    errors
}

fn validate_policy(policy: &Value, at: &str) -> Vec<FieldError> {
    match (policy.get("basic").is_some(), policy.get("gang").is_some()) {
        (true, false) => Vec::new(),
        (false, true) => match policy["gang"]["minCount"].as_i64() {
            Some(count) if count >= 1 => Vec::new(),
            Some(count) => vec![FieldError::invalid(
                format!("{at}.gang.minCount"),
                count,
                "must be greater than or equal to 1",
            )],
            None => vec![FieldError::required(format!("{at}.gang.minCount"), "")],
        },
        _ => vec![FieldError::invalid(at, policy.clone(), "must specify exactly one of: `basic`, `gang`")],
    }
}

fn validate_mode(version: &str, mode: &Value, at: &str) -> Option<FieldError> {
    match (version, mode) {
        (_, Value::Null) => None,
        ("v1alpha2", Value::String(mode)) if matches!(mode.as_str(), "Pod" | "PodGroup") => None,
        ("v1alpha2", other) => Some(FieldError::not_supported(at, other.clone(), &["Pod", "PodGroup"])),
        ("v1beta1", Value::Object(mode))
            if mode.len() == 1 && (mode.contains_key("single") || mode.contains_key("all")) =>
        {
            None
        }
        (_, other) => {
            Some(FieldError::invalid(at, other.clone(), "must specify exactly one of: `single`, `all`"))
        }
    }
}

pub(crate) fn validate_update(kind: &str, version: &str, old: &Value, new: &Value) -> Vec<FieldError> {
    // From v1beta1 on, the size of a gang can change. All other fields of a group are immutable.
    let frozen = |value: &Value| {
        let mut value = value.clone();
        if version == "v1beta1" {
            let lift = |policy: &mut Value| {
                if let Some(Value::Object(gang)) = policy.get_mut("gang") {
                    gang.remove("minCount");
                }
            };
            if let Some(policy) = value.pointer_mut("/spec/schedulingPolicy") {
                lift(policy);
            }
            for template in value
                .pointer_mut("/spec/podGroupTemplates")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if let Some(policy) = template.get_mut("schedulingPolicy") {
                    lift(policy);
                }
            }
        }
        value
    };
    match kind {
        "Workload" => immutable(&frozen(old), &frozen(new), &format!("spec.{}", templates_field(version)))
            .into_iter()
            .collect(),
        "PodGroup" => immutable(&frozen(old), &frozen(new), "spec").into_iter().collect(),
        "PriorityClass" => immutable(old, new, "value").into_iter().collect(),
        _ => Vec::new(),
    }
}

/// In v1alpha2, the template that a PodGroup names must exist.
pub(crate) fn check_template_exists(api: &Api, resource: &Resource, value: &Value) -> Outcome<()> {
    let link = &value["spec"]["podGroupTemplateRef"]["workload"];
    if resource.storage_version != "v1alpha2" || !link.is_object() {
        return Ok(());
    }
    let name = link["workloadName"].as_str().unwrap_or_default();
    let template = link["podGroupTemplateName"].as_str().unwrap_or_default();
    let table = table_id("scheduling.k8s.io", "workloads");
    let found = api.store.get(&table, &Key::new(object::namespace(value), name));
    let why = match found {
        None => format!("workload {name:?} not found"),
        Some(workload) => {
            let known = workload.value["spec"]["podGroupTemplates"].as_array().into_iter().flatten();
            if known.into_iter().any(|t| t["name"] == template) {
                return Ok(());
            }
            format!("workload {name:?} has no pod group template {template:?}")
        }
    };
    Err(Failure::forbidden(resource.about(), object::name(value), &why))
}
