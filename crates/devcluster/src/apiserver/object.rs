//! Reads and writes the metadata of an untyped JSON object.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Namespace and name; the namespace of a cluster-scoped object is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// A string in the metadata; empty if absent.
pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    meta_str(object, "name")
}

pub(crate) fn namespace(object: &Value) -> &str {
    meta_str(object, "namespace")
}

pub(crate) fn uid(object: &Value) -> &str {
    meta_str(object, "uid")
}

pub(crate) fn resource_version(object: &Value) -> &str {
    meta_str(object, "resourceVersion")
}

pub(crate) fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or_default()
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"]
        .as_array()
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

pub(crate) fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object["metadata"]["labels"].as_object()
}

/// The labels as plain text, for evaluating a `LabelSelector`.
pub(crate) fn label_map(object: &Value) -> BTreeMap<&str, &str> {
    labels(object)
        .map(|map| map.iter().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))).collect())
        .unwrap_or_default()
}

/// The metadata as a map. Creates the map if it is missing or not a map.
pub(crate) fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    map_mut(object, "metadata")
}

/// The map under `field`. Creates the map if it is missing or not a map. Also turns `object` into a map if necessary.
pub(crate) fn map_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = as_map(object).entry(field.to_owned()).or_insert(Value::Null);
    as_map(slot)
}

/// The value as a map. Any value that is not a map is dropped.
pub(crate) fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made a map just above"),
    }
}

pub(crate) fn set_meta(object: &mut Value, field: &str, value: impl Into<Value>) {
    meta_mut(object).insert(field.to_owned(), value.into());
}

pub(crate) fn unset_meta(object: &mut Value, field: &str) {
    meta_mut(object).remove(field);
}

/// Sets `field` to `value` unless it already has a value.
pub(crate) fn default_field(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), value.into());
    }
}

/// Copies `field` from `from` to `to`. Removes it from `to` if `from` does not have it.
pub(crate) fn carry(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => {
            as_map(to).insert(field.to_owned(), value.clone());
        }
        None => {
            as_map(to).remove(field);
        }
    }
}

/// Copies one metadata field from `from` to `to`. Removes it from `to` if `from` does not have it.
pub(crate) fn carry_meta(from: &Value, to: &mut Value, field: &str) {
    match from["metadata"].get(field) {
        Some(value) => {
            meta_mut(to).insert(field.to_owned(), value.clone());
        }
        None => {
            meta_mut(to).remove(field);
        }
    }
}

/// The condition of this type in `status.conditions`.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

/// Drops nulls and empty maps at the top level of the metadata: they have no meaning.
pub(crate) fn tidy_meta(object: &mut Value) {
    let meta = meta_mut(object);
    meta.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    });
}
