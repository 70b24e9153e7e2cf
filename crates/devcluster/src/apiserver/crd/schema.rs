//! Pruning and defaulting with a structural schema.

use serde_json::{Map, Value};

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Prunes an object. Keeps the fields that every object has, whatever the schema says.
pub(super) fn prune_root(schema: &Value, value: &mut Value, unknown: &mut Vec<String>) {
    prune(schema, value, "", true, unknown);
}

fn prune(schema: &Value, value: &mut Value, at: &str, resource: bool, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => prune_map(schema, map, at, resource, unknown),
        Value::Array(list) => {
            let items = &schema["items"];
            if items.is_object() {
                for (index, item) in list.iter_mut().enumerate() {
                    let embedded = items["x-kubernetes-embedded-resource"] == true;
                    prune(items, item, &format!("{at}[{index}]"), embedded, unknown);
                }
            }
        }
        _ => {}
    }
}

fn prune_map(
    schema: &Value,
    map: &mut Map<String, Value>,
    at: &str,
    resource: bool,
    unknown: &mut Vec<String>,
) {
    let properties = schema["properties"].as_object();
    let additional = &schema["additionalProperties"];
    let keep_all = preserves(schema) || additional == true;
    let path = |field: &str| if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") };
    map.retain(|field, value| {
        if resource && matches!(field.as_str(), "apiVersion" | "kind" | "metadata") {
            return true;
        }
        let known =
            properties.and_then(|p| p.get(field)).or_else(|| additional.is_object().then_some(additional));
        match known {
            Some(inner) => {
                let embedded = inner["x-kubernetes-embedded-resource"] == true;
                prune(inner, value, &path(field), embedded, unknown);
                true
            }
            None if keep_all => true,
            None => {
                unknown.push(path(field));
                false
            }
        }
    });
}

/// Sets missing fields that have a default. A null that the schema does not allow counts as missing. Without a default,
/// it is removed from a field or a map; in a list it stays, and validation rejects it.
pub(super) fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(wanted) = default_of(inner) {
                    map.entry(field).or_insert_with(|| wanted.clone());
                }
            }
            map.retain(|field, value| {
                let inner = schema["properties"].get(field).unwrap_or(&schema["additionalProperties"]);
                default_entry(inner, value);
                !(inner.is_object() && is_missing(inner, value))
            });
        }
        Value::Array(list) => list.iter_mut().for_each(|item| default_entry(&schema["items"], item)),
        _ => {}
    }
}

fn default_entry(schema: &Value, entry: &mut Value) {
    if let Some(wanted) = default_of(schema)
        && is_missing(schema, entry)
    {
        *entry = wanted.clone();
    }
    default(schema, entry);
}

fn is_missing(schema: &Value, value: &Value) -> bool {
    value.is_null() && schema["nullable"] != true
}

fn default_of(schema: &Value) -> Option<&Value> {
    schema.get("default").filter(|wanted| !wanted.is_null())
}

#[cfg(test)]
mod tests {
    use super::{default, prune_root};
    use serde_json::json;

    #[test]
    fn unknown_fields_are_pruned_unless_preserved() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "known": {"type": "string"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"deep": {"type": "object", "properties": {}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "integer"}}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
            }},
        }});
        let mut value = json!({"apiVersion": "x", "metadata": {"name": "a"}, "spec": {
            "known": "k", "gone": 1,
            "free": {"anything": 1, "deep": {"gone": 1}},
            "map": {"any": {"a": 1, "gone": 2}},
            "list": [{"a": 1, "gone": 2}],
        }});
        let mut unknown = Vec::new();
        prune_root(&schema, &mut value, &mut unknown);
        assert_eq!(
            value["spec"],
            json!({
                "known": "k", "free": {"anything": 1, "deep": {}}, "map": {"any": {"a": 1}}, "list": [{"a": 1}],
            })
        );
        unknown.sort();
        assert_eq!(unknown, ["spec.free.deep.gone", "spec.gone", "spec.list[0].gone", "spec.map.any.gone"]);
    }

    #[test]
    fn defaults_are_set_inside_defaults_and_lists() {
        let schema = json!({"properties": {
            "spec": {"default": {}, "properties": {"n": {"default": 3}, "null": {"nullable": true, "default": 1}}},
            "list": {"items": {"properties": {"x": {"default": "y"}}}},
        }});
        let mut value = json!({"list": [{}], "spec": {"null": null}});
        default(&schema, &mut value);
        assert_eq!(value, json!({"list": [{"x": "y"}], "spec": {"n": 3, "null": null}}));
        let mut empty = json!({});
        default(&schema, &mut empty);
        assert_eq!(empty["spec"], json!({"n": 3, "null": 1}));
    }

    #[test]
    fn a_null_counts_as_missing_if_the_schema_does_not_allow_it() {
        let schema = json!({"properties": {
            "field": {"type": "string"}, "filled": {"type": "integer", "default": 3},
            "list": {"items": {"type": "string"}}, "map": {"additionalProperties": {"type": "string"}},
            "free": {"x-kubernetes-preserve-unknown-fields": true},
        }});
        let mut value =
            json!({"field": null, "filled": null, "list": [null], "map": {"a": null}, "free": {"b": null}});
        default(&schema, &mut value);
        assert_eq!(value, json!({"filled": 3, "list": [null], "map": {}, "free": {"b": null}}));
    }
}
