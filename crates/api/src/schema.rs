//! Parts of the CRD schemas that cannot be derived from a type.
//!
//! Any CEL library can run the rules. Each mistake gets exactly one message, and the message says how to correct it.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// A label value, empty or not.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A number from 0 up, or a percentage from 0% to 100%.
///
/// One rule rather than `pattern` and `minimum`, because each of their messages would explain only half.
/// `self == string(self)` is true for a string: `"5"` in quotes is neither a number nor a percentage.
pub(crate) fn amount(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "self == string(self) ? string(self).matches('^(100|[0-9]{1,2})%$') \
                     : string(self).matches('^[0-9]{1,9}$')",
            "message": "must be a whole number from 0 to 999999999, or a percentage from \"0%\" to \"100%\"",
        }],
    })
}

/// `v1`, or `group/v1`. A schema cannot check whether such an API exists.
pub(crate) fn api_version_rules() -> Value {
    json!([{
        "rule": "self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$')",
        "message": "must be a version such as v1, or a group and a version such as apps/v1",
    }])
}

/// The syntax and the length of a label key.
pub(crate) fn label_key_rules() -> Value {
    json!([
        {
            "rule": "self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                     [A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",
            "message": "must be a label key: a name of letters, digits, '-', '_' and '.', with a domain and '/' \
                        before it where there is one, such as example.com/group",
        },
        {
            "rule": "!self.matches('^[^/]{254,}/|[^/]{64}$')",
            "message": "is too long for a label key: at most 253 characters before the '/' and 63 after it",
        },
    ])
}

/// A label selector. Server-side apply replaces it as a whole: a merge of two users' selectors would cover pods that
/// neither user meant.
///
/// The bounds are far above practical selectors. They keep the estimated cost of the rules low.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "Labels a pod must have, with their values.",
                "type": "object",
                "maxProperties": 128,
                "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
            },
            "matchExpressions": {
                "description": "Label requirements. A pod must meet all of them.",
                "type": "array",
                "maxItems": 128,
                "x-kubernetes-list-type": "atomic",
                "items": label_requirement(),
            },
        },
    })
}

/// A label selector that names at least one label.
pub(crate) fn some_labels(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = label_selector(generator);
    schema.insert(
        "x-kubernetes-validations".to_owned(),
        json!([{
            "rule": "(has(self.matchLabels) && size(self.matchLabels) > 0) \
                     || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
            "message": "is empty and would cover every pod of the namespace: name at least one label",
        }]),
    );
    schema
}

fn label_requirement() -> Schema {
    json_schema!({
        "description": "A requirement on one label.",
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {
                "description": "The key of the label.",
                "type": "string",
                "maxLength": 317,
                "x-kubernetes-validations": label_key_rules(),
            },
            "operator": {
                "description": "How the label is compared with the values.",
                "type": "string",
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "The values: at least one for In and NotIn, none for Exists and DoesNotExist.",
                "type": "array",
                "maxItems": 1024,
                "x-kubernetes-list-type": "atomic",
                "items": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
                "message": "operators In and NotIn need at least one of values",
            },
            {
                "rule": "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
                "message": "operators Exists and DoesNotExist take no values: remove them, or use In or NotIn",
            },
        ],
    })
}

/// Times by pod name. The map is atomic; otherwise managedFields would list every pod.
pub(crate) fn times_by_pod(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": { "type": "string", "format": "date-time" },
    })
}

/// Conditions, merged by type: each writer owns the conditions it writes.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "One aspect of the budget's current state.",
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "description": "The type of the condition.", "type": "string", "maxLength": 316 },
                "status": {
                    "description": "Whether the condition holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": { "description": "Reason in one word.", "type": "string", "minLength": 1, "maxLength": 1024 },
                "message": { "description": "Reason and remedy.", "type": "string", "maxLength": 32768 },
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "description": "The generation of the spec that the condition describes.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
            },
        },
    })
}
