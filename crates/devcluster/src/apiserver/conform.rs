//! Converts bytes to an object of the right kind: decoding, types, unknown fields, defaults.

use serde_json::Value;

use super::api::Api;
use super::failure::{Failure, Outcome};
use super::object::{self, as_map};
use super::options::WorkloadApi;
use super::protobuf;
use super::request::Call;
use super::resource::ResourceRules;
use super::strategy;

/// How a client wants the server to handle unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    fn of(call: &Call) -> Outcome<Self> {
        match call.query.text("fieldValidation") {
            "Ignore" => Ok(Self::Ignore),
            "" | "Warn" => Ok(Self::Warn),
            "Strict" => Ok(Self::Strict),
            other => Err(Failure::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// Reads a JSON body.
pub(crate) fn parse_body(call: &Call) -> Outcome<Value> {
    let media = call.content_type.split(';').next().unwrap_or_default().trim();
    if media == protobuf::MEDIA_TYPE {
        return protobuf::object(&call.body).ok_or_else(|| {
            Failure::unsupported_media_type(
                media,
                "application/json for this object; only small ones are read as protobuf",
            )
        });
    }
    if !matches!(media, "" | "application/json" | "*/*") {
        return Err(Failure::unsupported_media_type(media, "application/json"));
    }
    parse_json(&call.body)
}

/// Reads JSON that must be an object.
pub(crate) fn parse_json(body: &[u8]) -> Outcome<Value> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|e| Failure::bad_request(format!("couldn't get version/kind; json parse error: {e}")))?;
    if !value.is_object() {
        return Err(Failure::bad_request("the body of the request is not a JSON object"));
    }
    Ok(value)
}

impl Api {
    /// Converts an object from a client to stored form: checks types, drops unknown fields, sets defaults.
    pub(crate) fn conform(&self, call: &Call, value: Value, warnings: &mut Vec<String>) -> Outcome<Value> {
        let served = &call.served;
        let mut value = check_kind(call, value)?;
        let validation = FieldValidation::of(call)?;
        value = served.store_form(value);
        numbers_to_quantities(&mut value, false);
        let mut unknown = Vec::new();
        match &served.resource.rules {
            ResourceRules::BuiltIn(builtin) => {
                if let Some(through_type) = builtin.through_type {
                    value =
                        self.through_type(builtin.kind, &served.version, &value, through_type, &mut unknown)?;
                }
                strategy::default(&served.resource, &mut value);
            }
            ResourceRules::Custom(custom) => {
                let meta: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta =
                    serde_json::from_value(value["metadata"].take()).map_err(|e| {
                        let kind = &served.resource.kind;
                        Failure::bad_request(format!(
                            "{kind} in version {:?} cannot be handled as a {kind}: metadata: {e}",
                            served.version
                        ))
                    })?;
                value["metadata"] = serde_json::to_value(meta).unwrap_or_default();
                custom.prune_and_default(&served.version, &mut value, &mut unknown);
            }
        }
        if !unknown.is_empty() {
            let text = unknown.iter().map(|f| format!("unknown field {f:?}")).collect::<Vec<_>>();
            match validation {
                FieldValidation::Ignore => {}
                FieldValidation::Warn => warnings.extend(text),
                FieldValidation::Strict => {
                    return Err(Failure::bad_request(format!(
                        "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                        served.resource.kind,
                        served.version,
                        served.resource.kind,
                        text.join(", ")
                    )));
                }
            }
        }
        Ok(value)
    }

    fn through_type(
        &self,
        kind: &str,
        version: &str,
        value: &Value,
        through_type: fn(Value) -> Result<Value, String>,
        unknown: &mut Vec<String>,
    ) -> Outcome<Value> {
        let mut clean = through_type(value.clone()).map_err(|e| {
            Failure::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {e}"))
        })?;
        // The types do not have these fields of newer releases. They are kept if that release is simulated.
        for path in self.newer_fields() {
            for root in ["", "/spec/template"] {
                keep_path(value, &mut clean, &format!("{root}{path}"));
            }
        }
        find_unknown(value, &clean, "", unknown);
        Ok(clean)
    }

    fn newer_fields(&self) -> &'static [&'static str] {
        match self.options.workload_api {
            WorkloadApi::Off => &[],
            WorkloadApi::V1Alpha1 => &["/spec/workloadRef"],
            WorkloadApi::V1Alpha2 | WorkloadApi::V1Beta1 => &["/spec/schedulingGroup"],
        }
    }
}

fn check_kind(call: &Call, mut value: Value) -> Outcome<Value> {
    let expected_version = call.served.api_version();
    let kind = call.served.resource.kind.clone();
    let found_version = value["apiVersion"].as_str().unwrap_or_default();
    let found_kind = value["kind"].as_str().unwrap_or_default();
    if !found_version.is_empty() && found_version != expected_version {
        return Err(Failure::bad_request(format!(
            "the API version in the data ({found_version}) does not match the expected API version ({expected_version})"
        )));
    }
    if !found_kind.is_empty() && found_kind != kind {
        return Err(Failure::bad_request(format!(
            "{found_kind} in version {found_version:?} cannot be handled as a {kind}: the request is for {}",
            call.served.resource.plural
        )));
    }
    let map = as_map(&mut value);
    map.insert("apiVersion".into(), expected_version.into());
    map.insert("kind".into(), kind.into());
    if !map.get("metadata").is_none_or(|m| m.is_object() || m.is_null()) {
        return Err(Failure::bad_request("metadata must be an object"));
    }
    object::tidy_meta(&mut value);
    Ok(value)
}

/// Copies the value at `path` (slash-separated) if its parent exists in both objects.
fn keep_path(from: &Value, to: &mut Value, path: &str) {
    let Some(found) = from.pointer(path).filter(|v| !v.is_null()) else { return };
    let Some((parent, field)) = path.rsplit_once('/') else { return };
    if let Some(Value::Object(parent)) = to.pointer_mut(parent) {
        parent.insert(field.to_owned(), found.clone());
    }
}

/// Collects the paths that are in `sent` but not in `known`. Ignores nulls and empty values.
fn find_unknown(sent: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => {
            for (field, value) in sent {
                let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                match known.get(field) {
                    Some(known) => find_unknown(value, known, &path, unknown),
                    None if is_empty(value) => {}
                    None if path == "metadata.managedFields" || path == "metadata.selfLink" => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(sent), Value::Array(known)) => {
            for (at, (sent, known)) in sent.iter().zip(known).enumerate() {
                find_unknown(sent, known, &format!("{path}[{at}]"), unknown);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// The real API server accepts `cpu: 1` as well as `cpu: "1"`.
fn numbers_to_quantities(value: &mut Value, in_quantities: bool) {
    match value {
        Value::Object(map) => {
            for (field, value) in map {
                if in_quantities && value.is_number() {
                    *value = value.to_string().into();
                } else {
                    let quantities = matches!(
                        field.as_str(),
                        "limits" | "requests" | "capacity" | "allocatable" | "hard" | "used" | "overhead"
                    );
                    numbers_to_quantities(value, quantities);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| numbers_to_quantities(item, false)),
        _ => {}
    }
}
