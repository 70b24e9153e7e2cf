//! The rules of the built-in kinds: defaults, fields that the server sets, and validation.

mod apps;
mod gang;
mod meta;
mod others;
mod pods;
mod policy;
mod webhooks;

use serde_json::Value;

use super::api::Api;
use super::crd;
use super::failure::{FieldError, Outcome};
use super::object;
use super::resource::Resource;

pub(crate) use webhooks::webhook_defaults;

/// Sets the defaults of an object.
pub(crate) fn default(resource: &Resource, value: &mut Value) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pods::default_pod(value),
        ("", "ReplicationController") | ("apps", _) => apps::default(&resource.kind, value),
        ("batch", "Job") => apps::default_job(value),
        ("admissionregistration.k8s.io", _) => webhook_defaults(value),
        ("apiextensions.k8s.io", _) => crd::default_definition(value),
        ("scheduling.k8s.io", kind) => gang::default(kind, &resource.storage_version, value),
        ("policy", _) => policy::default(value),
        _ => others::default(resource, value),
    }
}

/// Sets the fields that the server controls on a new object.
pub(crate) fn prepare_create(
    api: &Api,
    resource: &Resource,
    version: &str,
    value: &mut Value,
) -> Outcome<()> {
    if resource.status_rule(version).is_some() && !resource.is("", "nodes") {
        object::as_map(value).remove("status");
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pods::prepare_create(api, value)?,
        ("", "Namespace") => others::prepare_namespace(value),
        ("batch", "Job") => apps::prepare_job(value),
        ("policy", "PodDisruptionBudget") => policy::prepare_create(value),
        ("apiextensions.k8s.io", _) => {}
        _ => others::prepare_create(api, resource, value),
    }
    Ok(())
}

/// Sets the fields that the server controls on an updated object.
pub(crate) fn prepare_update(resource: &Resource, subresource: &str, old: &Value, value: &mut Value) {
    if resource.is_pods() && subresource == "status" {
        object::carry_meta(old, value, "ownerReferences");
    }
    if resource.is("", "namespaces") {
        // The finalizers in the spec of a namespace change only through `finalize`.
        object::carry(old, value, "spec");
        if object::is_terminating(value) {
            object::map_mut(value, "status").insert("phase".into(), "Terminating".into());
        }
    }
}

/// Validates a new object.
pub(crate) fn validate_create(resource: &Resource, value: &Value) -> Vec<FieldError> {
    let mut errors = meta::validate(resource, value);
    errors.extend(validate_body(resource, value));
    errors
}

fn validate_body(resource: &Resource, value: &Value) -> Vec<FieldError> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pods::validate(value),
        ("", "ReplicationController") | ("apps", _) => apps::validate(&resource.kind, value),
        ("batch", "Job") => apps::validate_job(value),
        ("policy", "PodDisruptionBudget") => policy::validate(value),
        ("admissionregistration.k8s.io", _) => webhooks::validate(value),
        ("apiextensions.k8s.io", _) => crd::validate_definition(value),
        ("scheduling.k8s.io", kind) => gang::validate(kind, &resource.storage_version, value),
        _ => Vec::new(),
    }
}

/// Validates an updated object.
pub(crate) fn validate_update(
    resource: &Resource,
    subresource: &str,
    old: &Value,
    value: &Value,
) -> Vec<FieldError> {
    let mut errors = meta::validate(resource, value);
    errors.extend(meta::validate_update(old, value));
    if subresource == "status" {
        if resource.is("policy", "poddisruptionbudgets") {
            errors.extend(policy::validate_status(value));
        }
        return errors;
    }
    errors.extend(validate_body(resource, value));
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") if subresource == "resize" => errors.extend(pods::validate_resize(old, value)),
        ("", "Pod") => errors.extend(pods::validate_update(old, value)),
        ("apps", _) => errors.extend(apps::validate_update(&resource.kind, old, value)),
        ("batch", "Job") => errors.extend(apps::validate_job_update(old, value)),
        ("scheduling.k8s.io", kind) => {
            errors.extend(gang::validate_update(kind, &resource.storage_version, old, value));
        }
        ("", kind) => errors.extend(others::validate_update(kind, old, value)),
        _ => {}
    }
    errors
}

/// Checks the other objects to which a new object refers.
pub(crate) fn check_references(api: &Api, resource: &Resource, value: &Value) -> Outcome<()> {
    if resource.is("scheduling.k8s.io", "podgroups") {
        gang::check_template_exists(api, resource, value)?;
    }
    Ok(())
}
