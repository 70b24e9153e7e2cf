//! Namespaces, services and the kinds with few rules.

use serde_json::{Value, json};

use super::meta::immutable;
use crate::apiserver::api::Api;
use crate::apiserver::failure::FieldError;
use crate::apiserver::object::{self, as_map, default_field, map_mut};
use crate::apiserver::resource::Resource;

pub(crate) fn default(resource: &Resource, value: &mut Value) {
    match resource.kind.as_str() {
        "Service" => {
            let spec = map_mut(value, "spec");
            default_field(spec, "type", "ClusterIP");
            default_field(spec, "sessionAffinity", "None");
            for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                let port = as_map(port);
                default_field(port, "protocol", "TCP");
                if let Some(number) = port.get("port").cloned() {
                    default_field(port, "targetPort", number);
                }
            }
        }
        "Secret" => {
            default_field(as_map(value), "type", "Opaque");
            string_data(value);
        }
        "EndpointSlice" => {
            for port in value["ports"].as_array_mut().into_iter().flatten() {
                default_field(as_map(port), "protocol", "TCP");
            }
        }
        "Event" => {
            let event = as_map(value);
            // Typed clients always send these fields, even if they are empty.
            for field in ["source", "reportingComponent", "reportingInstance"] {
                let empty = if field == "source" { json!({}) } else { json!("") };
                default_field(event, field, empty);
            }
        }
        _ => {}
    }
}

/// Moves `stringData` to `data`: `stringData` is write-only and is not stored.
fn string_data(secret: &mut Value) {
    let Some(Value::Object(plain)) = as_map(secret).remove("stringData") else { return };
    let data = map_mut(secret, "data");
    for (key, text) in plain {
        let bytes = k8s_openapi::ByteString(text.as_str().unwrap_or_default().as_bytes().to_vec());
        if let Ok(encoded) = serde_json::to_value(bytes) {
            data.insert(key, encoded);
        }
    }
}

pub(crate) fn prepare_namespace(value: &mut Value) {
    let name = object::name(value).to_owned();
    value["status"] = json!({"phase": "Active"});
    value["spec"] = json!({"finalizers": ["kubernetes"]});
    let labels = as_map(object::meta_mut(value).entry("labels").or_insert_with(|| json!({})));
    labels.insert("kubernetes.io/metadata.name".into(), name.into());
}

pub(crate) fn prepare_create(api: &Api, resource: &Resource, value: &mut Value) {
    if resource.is("", "services") {
        value["status"] = json!({"loadBalancer": {}});
        assign_address(api, value);
    }
}

/// Assigns a cluster IP to a service. Nothing listens at that address.
fn assign_address(api: &Api, service: &mut Value) {
    let spec = map_mut(service, "spec");
    if spec.get("type") == Some(&json!("ExternalName"))
        || spec.get("clusterIP").is_some_and(|ip| !ip.is_null())
    {
        return;
    }
    let number = api.store.revision() % 65_000;
    let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
    spec.insert("clusterIP".into(), address.clone().into());
    spec.insert("clusterIPs".into(), json!([address]));
    default_field(spec, "ipFamilies", json!(["IPv4"]));
    default_field(spec, "ipFamilyPolicy", "SingleStack");
}

pub(crate) fn validate_update(kind: &str, old: &Value, new: &Value) -> Vec<FieldError> {
    match kind {
        "ConfigMap" | "Secret" if old["immutable"] == true => ["data", "binaryData", "immutable"]
            .iter()
            .filter(|field| old[**field] != new[**field])
            .map(|field| FieldError::forbidden(*field, "field is immutable when `immutable` is set"))
            .collect(),
        "Secret" => immutable(old, new, "type").into_iter().collect(),
        _ => Vec::new(),
    }
}
