//! How a label selector looks in the schema.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A label value, empty or not.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A label selector, replaced as a whole by server-side apply: half of one person's selector joined with half of
/// another's covers pods that neither meant.
///
/// The bounds are far above what anyone writes; they keep the estimated cost of the rules low.
pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
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
                "description": "Further requirements; all of them must hold.",
                "type": "array",
                "maxItems": 128,
                "x-kubernetes-list-type": "atomic",
                "items": requirement(),
            },
        },
    })
}

fn requirement() -> Schema {
    json_schema!({
        "description": "A requirement on one label.",
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {
                "description": "The key of the label.",
                "type": "string",
                "minLength": 1,
                "maxLength": 317,
            },
            "operator": {
                "description": "How the label is compared with the values.",
                "type": "string",
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "The values; at least one for In and NotIn, none for Exists and DoesNotExist.",
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
