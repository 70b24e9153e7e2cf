//! Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers and Jobs.

use serde_json::{Value, json};

use super::meta::immutable;
use super::pods;
use crate::apiserver::failure::FieldError;
use crate::apiserver::object::{self, as_map, default_field, map_mut};
use crate::apiserver::selector::Labels;

pub(crate) fn default(kind: &str, value: &mut Value) {
    if kind == "ControllerRevision" {
        return;
    }
    let spec = map_mut(value, "spec");
    if kind != "DaemonSet" {
        default_field(spec, "replicas", 1);
    }
    match kind {
        "Deployment" => {
            default_field(spec, "revisionHistoryLimit", 10);
            default_field(spec, "progressDeadlineSeconds", 600);
            let strategy = as_map(spec.entry("strategy").or_insert_with(|| json!({})));
            default_field(strategy, "type", "RollingUpdate");
            if strategy.get("type") == Some(&json!("RollingUpdate")) {
                let rolling = as_map(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
                default_field(rolling, "maxSurge", "25%");
                default_field(rolling, "maxUnavailable", "25%");
            }
        }
        "StatefulSet" => {
            default_field(spec, "revisionHistoryLimit", 10);
            default_field(spec, "podManagementPolicy", "OrderedReady");
            default_field(
                spec,
                "persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
            );
            let strategy = as_map(spec.entry("updateStrategy").or_insert_with(|| json!({})));
            default_field(strategy, "type", "RollingUpdate");
            if strategy.get("type") == Some(&json!("RollingUpdate")) {
                let rolling = as_map(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
                default_field(rolling, "partition", 0);
            }
        }
        "DaemonSet" => {
            default_field(spec, "revisionHistoryLimit", 10);
            let strategy = as_map(spec.entry("updateStrategy").or_insert_with(|| json!({})));
            default_field(strategy, "type", "RollingUpdate");
        }
        "ReplicationController" => {
            let labels = spec.get("template").map(|t| t["metadata"]["labels"].clone()).unwrap_or_default();
            if labels.is_object() {
                default_field(spec, "selector", labels);
            }
        }
        _ => {}
    }
    default_template(spec);
}

fn default_template(spec: &mut serde_json::Map<String, Value>) {
    if let Some(template) = spec.get_mut("template").filter(|t| t.is_object()) {
        pods::default_spec(template);
    }
}

pub(crate) fn default_job(value: &mut Value) {
    let spec = map_mut(value, "spec");
    if spec.get("completions").is_none_or(Value::is_null)
        && spec.get("parallelism").is_none_or(Value::is_null)
    {
        default_field(spec, "completions", 1);
    }
    default_field(spec, "parallelism", 1);
    default_field(spec, "backoffLimit", 6);
    default_field(spec, "completionMode", "NonIndexed");
    default_field(spec, "suspend", false);
    default_field(spec, "manualSelector", false);
    default_field(spec, "podReplacementPolicy", "TerminatingOrFailed");
    default_template(spec);
}

/// Sets the selector of a job: it selects pods by the job's UID.
pub(crate) fn prepare_job(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let uid = object::uid(job).to_owned();
    let name = object::name(job).to_owned();
    let spec = map_mut(job, "spec");
    spec.insert("selector".into(), json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    let template = as_map(spec.entry("template").or_insert_with(|| json!({})));
    let meta = as_map(template.entry("metadata").or_insert_with(|| json!({})));
    let labels = as_map(meta.entry("labels").or_insert_with(|| json!({})));
    for key in ["batch.kubernetes.io/controller-uid", "controller-uid"] {
        labels.insert(key.into(), uid.clone().into());
    }
    for key in ["batch.kubernetes.io/job-name", "job-name"] {
        labels.insert(key.into(), name.clone().into());
    }
}

pub(crate) fn validate(kind: &str, value: &Value) -> Vec<FieldError> {
    if kind == "ControllerRevision" {
        return Vec::new();
    }
    let spec = &value["spec"];
    let mut errors = Vec::new();
    if let Some(replicas) = spec["replicas"].as_i64()
        && replicas < 0
    {
        errors.push(FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0"));
    }
    if kind == "ReplicationController" {
        errors.extend(pods::validate_spec(&spec["template"]["spec"], "spec.template.spec"));
        return errors;
    }
    if !spec["selector"].is_object() {
        errors.push(FieldError::required("spec.selector", ""));
    } else {
        errors.extend(validate_selector(spec));
    }
    errors.extend(pods::validate_spec(&spec["template"]["spec"], "spec.template.spec"));
    if spec["template"]["spec"]["restartPolicy"].as_str().is_some_and(|p| p != "Always") {
        errors.push(FieldError::not_supported(
            "spec.template.spec.restartPolicy",
            spec["template"]["spec"]["restartPolicy"].clone(),
            &["Always"],
        ));
    }
    errors
}

fn validate_selector(spec: &Value) -> Option<FieldError> {
    match Labels::from_object(&spec["selector"]) {
        Err(why) => Some(FieldError::invalid("spec.selector", spec["selector"].clone(), why)),
        Ok(selector) if selector.is_empty() => Some(FieldError::invalid(
            "spec.selector",
            spec["selector"].clone(),
            "empty selector is invalid for deployment",
        )),
        Ok(selector) => {
            let labels = &spec["template"]["metadata"]["labels"];
            (!selector.matches(labels.as_object())).then(|| {
                FieldError::invalid(
                    "spec.template.metadata.labels",
                    labels.clone(),
                    "`selector` does not match template `labels`",
                )
            })
        }
    }
}

pub(crate) fn validate_update(kind: &str, old: &Value, new: &Value) -> Vec<FieldError> {
    match kind {
        "Deployment" | "ReplicaSet" | "DaemonSet" => {
            immutable(old, new, "spec.selector").into_iter().collect()
        }
        "StatefulSet" => {
            const MUTABLE: [&str; 7] = [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ];
            let frozen = |value: &Value| {
                let mut spec = value["spec"].clone();
                as_map(&mut spec).retain(|field, _| !MUTABLE.contains(&field.as_str()));
                spec
            };
            if frozen(old) == frozen(new) {
                return Vec::new();
            }
            vec![FieldError::forbidden(
                "spec",
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
            )]
        }
        "ControllerRevision" => immutable(old, new, "data").into_iter().collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn validate_job(job: &Value) -> Vec<FieldError> {
    let spec = &job["spec"];
    let mut errors = pods::validate_spec(&spec["template"]["spec"], "spec.template.spec");
    for field in ["parallelism", "completions", "backoffLimit"] {
        if let Some(number) = spec[field].as_i64()
            && number < 0
        {
            errors.push(FieldError::invalid(
                format!("spec.{field}"),
                number,
                "must be greater than or equal to 0",
            ));
        }
    }
    if spec["template"]["spec"]["restartPolicy"] == "Always" {
        errors.push(FieldError::required(
            "spec.template.spec.restartPolicy",
            "valid values: \"OnFailure\", \"Never\"",
        ));
    }
    errors
}

pub(crate) fn validate_job_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> =
        ["spec.selector", "spec.completionMode"].iter().filter_map(|f| immutable(old, new, f)).collect();
    if old["spec"]["suspend"] != true {
        errors.extend(immutable(old, new, "spec.template"));
    }
    errors
}
