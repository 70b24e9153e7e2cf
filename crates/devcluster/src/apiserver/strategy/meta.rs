//! Validation of the metadata of every object.

use serde_json::Value;

use crate::apiserver::failure::FieldError;
use crate::apiserver::names;
use crate::apiserver::object;
use crate::apiserver::resource::Resource;
use crate::apiserver::selector::check_label_key;

/// Maximum total size of all annotations.
const ANNOTATIONS_MAX: usize = 256 * 1024;

pub(crate) fn validate(resource: &Resource, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = object::name(value);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        errors.extend(validate_name(resource, name));
    }
    for (key, label) in object::labels(value).into_iter().flatten() {
        errors.extend(validate_label("metadata.labels", key, label));
    }
    errors.extend(validate_annotations(value));
    errors.extend(validate_owners(value));
    errors
}

fn validate_name(resource: &Resource, name: &str) -> Option<FieldError> {
    let rbac = resource.group == "rbac.authorization.k8s.io";
    if rbac {
        let bad = name.contains('/') || name.contains('%') || matches!(name, "." | "..");
        return bad.then(|| FieldError::invalid("metadata.name", name, "may not contain '/' or '%'"));
    }
    let label = resource.group.is_empty() && matches!(resource.kind.as_str(), "Namespace" | "Service");
    if label {
        return (!names::is_label(name))
            .then(|| FieldError::invalid("metadata.name", name, names::LABEL_RULE));
    }
    (!names::is_subdomain(name)).then(|| FieldError::invalid("metadata.name", name, names::SUBDOMAIN_RULE))
}

/// Checks one label of the map at `field`.
pub(crate) fn validate_label(field: &str, key: &str, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(why) = check_label_key(key) {
        errors.push(FieldError::invalid(field, key, why));
    }
    let text = value.as_str().unwrap_or_default();
    if text.len() > 63 {
        errors.push(FieldError::invalid(field, text, "must be no more than 63 bytes"));
    } else if !names::is_label_value(text) {
        errors.push(FieldError::invalid(field, text, names::LABEL_VALUE_RULE));
    }
    errors
}

fn validate_annotations(value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, text) in value["metadata"]["annotations"].as_object().into_iter().flatten() {
        size += key.len() + text.as_str().unwrap_or_default().len();
        if check_label_key(&key.to_lowercase()).is_err() {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                key.as_str(),
                "must be a qualified name",
            ));
        }
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long("metadata.annotations", ANNOTATIONS_MAX));
    }
    errors
}

fn validate_owners(value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controller: Option<&str> = None;
    for (at, owner) in value["metadata"]["ownerReferences"].as_array().into_iter().flatten().enumerate() {
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::invalid(
                    format!("metadata.ownerReferences[{at}].{field}"),
                    "",
                    detail,
                ));
            }
        }
        if owner["controller"] == true {
            let name = owner["name"].as_str().unwrap_or_default();
            match controller {
                None => controller = Some(name),
                Some(first) => errors.push(FieldError::invalid(
                    "metadata.ownerReferences",
                    value["metadata"]["ownerReferences"].clone(),
                    format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"),
                )),
            }
        }
    }
    errors
}

pub(crate) fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    if !object::is_terminating(old) {
        return Vec::new();
    }
    let before = object::finalizers(old);
    let added: Vec<String> =
        object::finalizers(new).iter().filter(|f| !before.contains(*f)).map(|f| format!("{f:?}")).collect();
    if added.is_empty() {
        return Vec::new();
    }
    vec![FieldError::forbidden(
        "metadata.finalizers",
        format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        ),
    )]
}

/// Returns an error if the field changed.
pub(crate) fn immutable(old: &Value, new: &Value, field: &str) -> Option<FieldError> {
    let at = |object: &Value| field.split('.').fold(object.clone(), |value, step| value[step].clone());
    let (before, after) = (at(old), at(new));
    (before != after).then(|| FieldError::invalid(field, after, "field is immutable"))
}
