//! `x-kubernetes-validations`: CEL rules for values and for changes of values.

use serde_json::{Map, Value};

use crate::apiserver::cel;
use crate::apiserver::failure::FieldError;

/// Reserved words of CEL. A field with such a name is written between double underscores.
const RESERVED: [&str; 20] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

/// Checks the rules of one schema node. A definition with a rule that does not compile is rejected.
pub(super) fn validate_rules(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        let text = rule["rule"].as_str().unwrap_or_default();
        if text.is_empty() {
            errors.push(FieldError::required(format!("{at}.rule"), "rule is not specified"));
        } else if let Err(why) = cel::compile(text) {
            errors.push(FieldError::invalid(format!("{at}.rule"), text, why));
        }
        if let Some(message) = rule["messageExpression"].as_str()
            && let Err(why) = cel::compile(message)
        {
            errors.push(FieldError::invalid(format!("{at}.messageExpression"), message, why));
        }
        if rule["optionalOldSelf"] == true {
            errors.push(FieldError::forbidden(
                format!("{at}.optionalOldSelf"),
                "this API server does not implement it",
            ));
        }
    }
}

/// Runs all rules on an object. With `old`, also runs the transition rules.
pub(super) fn check_root(schema: &Value, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check(schema, value, old, "", errors);
}

fn join(at: &str, field: &str) -> String {
    if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") }
}

fn check(schema: &Value, value: &Value, old: Option<&Value>, at: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() {
        return;
    }
    let rules = schema["x-kubernetes-validations"].as_array().filter(|rules| !rules.is_empty());
    if let Some(rules) = rules {
        let me = in_cel(schema, value);
        let before = old.map(|old| in_cel(schema, old));
        for rule in rules {
            check_rule(rule, schema, &me, before.as_ref(), at, errors);
        }
    }
    match value {
        Value::Object(map) => {
            for (field, inner) in map {
                let known = schema["properties"].get(field).or_else(|| schema.get("additionalProperties"));
                if let Some(known) = known.filter(|s| s.is_object()) {
                    check(known, inner, old.and_then(|o| o.get(field)), &join(at, field), errors);
                }
            }
        }
        Value::Array(list) if schema["items"].is_object() => {
            for (index, item) in list.iter().enumerate() {
                check(
                    &schema["items"],
                    item,
                    counterpart(schema, item, old),
                    &format!("{at}[{index}]"),
                    errors,
                );
            }
        }
        _ => {}
    }
}

/// The previous state of a list item. Only lists of type `map` have keys to find it.
fn counterpart<'a>(schema: &Value, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    if schema["x-kubernetes-list-type"] != "map" {
        return None;
    }
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array()?.iter().filter_map(Value::as_str).collect();
    old?.as_array()?.iter().find(|before| keys.iter().all(|key| before[*key] == item[*key]))
}

fn check_rule(
    rule: &Value,
    schema: &Value,
    me: &Value,
    before: Option<&Value>,
    at: &str,
    errors: &mut Vec<FieldError>,
) {
    let text = rule["rule"].as_str().unwrap_or_default();
    let about_change = mentions(text, "oldSelf");
    let mut variables = vec![("self", me)];
    match before {
        Some(before) => variables.push(("oldSelf", before)),
        None if about_change => return,
        None => {}
    }
    let outcome = cel::holds(text, &variables);
    let detail = match outcome {
        Ok(true) => return,
        Ok(false) => message(rule, text, &variables),
        Err(why) => format!("{why} evaluating rule: {}", message(rule, text, &variables)),
    };
    let field = match rule["fieldPath"].as_str() {
        Some(path) => join(at, path.trim_start_matches('.')),
        None => at.to_owned(),
    };
    let given = schema["type"].as_str().unwrap_or("object");
    errors.push(match rule["reason"].as_str() {
        Some("FieldValueForbidden") => FieldError::forbidden(field, detail),
        Some("FieldValueRequired") => FieldError::required(field, &detail),
        Some("FieldValueDuplicate") => FieldError::duplicate(field, given),
        _ => FieldError::invalid(field, given, detail),
    });
}

fn message(rule: &Value, text: &str, variables: &[(&str, &Value)]) -> String {
    let computed = rule["messageExpression"].as_str().and_then(|m| cel::text(m, variables).ok());
    computed
        .or_else(|| rule["message"].as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("failed rule: {}", text.trim()))
}

/// Whether the expression contains the name as a whole word.
fn mentions(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(word) && !text[at + name.len()..].starts_with(word))
}

/// The value with its declared fields renamed to valid CEL identifiers.
fn in_cel(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let declared = schema["properties"].as_object();
            let mut out = Map::new();
            for (field, inner) in map {
                let own = declared.and_then(|d| d.get(field));
                let known = own.or_else(|| schema.get("additionalProperties")).unwrap_or(&Value::Null);
                let name = if own.is_some() { escaped(field) } else { field.clone() };
                out.insert(name, in_cel(known, inner));
            }
            Value::Object(out)
        }
        Value::Array(list) => Value::Array(list.iter().map(|item| in_cel(&schema["items"], item)).collect()),
        plain => plain.clone(),
    }
}

fn escaped(field: &str) -> String {
    if RESERVED.contains(&field) {
        return format!("__{field}__");
    }
    field
        .replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use super::{check_root, mentions};
    use serde_json::{Value, json};

    fn errors(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = Vec::new();
        check_root(schema, value, old, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_check_values_and_changes() {
        let schema = json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}, "namespace": {"type": "string"}},
            "x-kubernetes-validations": [
                {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min above max", "fieldPath": ".min"},
                {"rule": "self.max >= oldSelf.max", "messageExpression": "'max fell from ' + string(oldSelf.max)"},
                {"rule": "!has(self.__namespace__) || self.__namespace__ != 'kube-system'"},
            ],
        }}});
        let object = |min: i64, max: i64| json!({"spec": {"min": min, "max": max}});
        assert!(errors(&schema, &object(1, 2), None).is_empty());
        assert_eq!(
            errors(&schema, &object(3, 2), None),
            ["spec.min: Invalid value: \"object\": min above max"]
        );
        assert_eq!(
            errors(&schema, &object(1, 2), Some(&object(1, 5))),
            ["spec: Invalid value: \"object\": max fell from 5"]
        );
        assert_eq!(errors(&schema, &json!({"spec": {"max": 1, "namespace": "kube-system"}}), None).len(), 1);
    }

    #[test]
    fn old_self_is_found_only_as_a_whole_word() {
        assert!(mentions("self == oldSelf.x", "oldSelf"));
        assert!(!mentions("self.myoldSelf", "oldSelf"));
    }
}
