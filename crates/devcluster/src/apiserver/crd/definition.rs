//! Validation of a CustomResourceDefinition itself.

use serde_json::{Value, json};

use super::rules;
use crate::apiserver::failure::FieldError;
use crate::apiserver::names;
use crate::apiserver::object::{self, as_map, default_field, map_mut};
use crate::apiserver::table::JsonPath;

pub(crate) fn default_definition(value: &mut Value) {
    let spec = map_mut(value, "spec");
    default_field(spec, "conversion", json!({"strategy": "None"}));
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        default_field(names, "singular", kind.to_lowercase());
        default_field(names, "listKind", format!("{kind}List"));
    }
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        let version = as_map(version);
        default_field(version, "served", false);
        default_field(version, "storage", false);
    }
}

pub(crate) fn validate_definition(value: &Value) -> Vec<FieldError> {
    let spec = &value["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut errors = Vec::new();
    let group = text(&spec["group"]);
    let plural = text(&spec["names"]["plural"]);
    if !names::is_subdomain(&group) || !group.contains('.') {
        errors.push(FieldError::invalid(
            "spec.group",
            group.as_str(),
            "should be a domain with at least one dot",
        ));
    }
    for name in ["plural", "kind"] {
        if text(&spec["names"][name]).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{name}"), ""));
        }
    }
    let expected = format!("{plural}.{group}");
    if object::name(value) != expected {
        errors.push(FieldError::invalid(
            "metadata.name",
            object::name(value),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if !matches!(spec["scope"].as_str(), Some("Cluster" | "Namespaced")) {
        errors.push(FieldError::not_supported(
            "spec.scope",
            spec["scope"].clone(),
            &["Cluster", "Namespaced"],
        ));
    }
    if spec["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "must be false in order to use defaults in the schema",
        ));
    }
    if spec["conversion"]["strategy"] != "None" {
        errors.push(FieldError::not_supported(
            "spec.conversion.strategy",
            spec["conversion"]["strategy"].clone(),
            &["None"],
        ));
    }
    errors.extend(validate_versions(spec));
    errors
}

fn validate_versions(spec: &Value) -> Vec<FieldError> {
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let mut errors = Vec::new();
    if versions.is_empty() {
        errors.push(FieldError::required("spec.versions", "must have at least one version"));
    }
    let storage = versions.iter().filter(|v| v["storage"] == true).count();
    if storage != 1 && !versions.is_empty() {
        errors.push(FieldError::invalid(
            "spec.versions",
            spec["versions"].clone(),
            "must have exactly one version marked as storage version",
        ));
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = version["name"].as_str().unwrap_or_default();
        if !names::is_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, names::LABEL_RULE));
        }
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            errors.push(FieldError::required(format!("{at}.schema.openAPIV3Schema"), "schemas are required"));
            continue;
        }
        if schema["type"] != "object" {
            errors.push(FieldError::invalid(
                format!("{at}.schema.openAPIV3Schema.type"),
                schema["type"].clone(),
                "must be object at the root",
            ));
        }
        validate_schema(schema, &format!("{at}.schema.openAPIV3Schema"), &mut errors);
        for (column, entry) in
            version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate()
        {
            let path = entry["jsonPath"].as_str().unwrap_or_default();
            if JsonPath::parse(path).is_none() {
                errors.push(FieldError::invalid(
                    format!("{at}.additionalPrinterColumns[{column}].jsonPath"),
                    path,
                    "is a JSONPath this API server does not understand",
                ));
            }
        }
    }
    errors
}

/// Accepts only structural schemas, with rules and patterns that compile.
fn validate_schema(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for forbidden in
        ["$ref", "definitions", "dependencies", "patternProperties", "additionalItems", "uniqueItems"]
    {
        if schema.get(forbidden).is_some_and(|v| !v.is_null() && v != false) {
            errors.push(FieldError::forbidden(
                format!("{at}.{forbidden}"),
                "not allowed in a structural schema",
            ));
        }
    }
    let free = schema["x-kubernetes-int-or-string"] == true
        || schema["x-kubernetes-preserve-unknown-fields"] == true;
    if schema["type"].as_str().is_none() && !free {
        errors.push(FieldError::required(
            format!("{at}.type"),
            "must not be empty for specified object fields",
        ));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(why) = regex::Regex::new(pattern)
    {
        errors.push(FieldError::invalid(
            format!("{at}.pattern"),
            pattern,
            format!("must be a valid regular expression: {why}"),
        ));
    }
    rules::validate_rules(schema, at, errors);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        validate_schema(property, &format!("{at}.properties[{name}]"), errors);
    }
    if schema["items"].is_object() {
        validate_schema(&schema["items"], &format!("{at}.items"), errors);
    }
    if schema["additionalProperties"].is_object() {
        validate_schema(&schema["additionalProperties"], &format!("{at}.additionalProperties"), errors);
    }
}
