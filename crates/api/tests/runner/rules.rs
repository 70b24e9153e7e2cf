//! What an API server checks with a definition's schema, as far as that goes without one.
//!
//! Types, bounds and enums are checked by a JSON Schema library, the rules by a CEL library, and list types here. The
//! words of the messages are those of an API server for rules only.

use jsonschema::error::ValidationErrorKind as ErrorKind;
use serde_json::{Map, Value};

/// One reason to refuse an object.
#[derive(Debug)]
pub(crate) struct Problem {
    /// As an API server writes it: `spec.podGroups[0].name`.
    pub(crate) field: String,
    pub(crate) message: String,
    /// Whether a CEL rule said so.
    pub(crate) by_rule: bool,
}

/// All that is wrong with each of these objects. Nulls are dropped first, as an API server does.
pub(crate) fn problems(schema: &Value, objects: Vec<Value>) -> Vec<Vec<Problem>> {
    let validator = jsonschema::validator_for(schema).expect("a JSON Schema");
    objects
        .into_iter()
        .map(|mut object| {
            drop_nulls(&mut object);
            let (mut found, shape_is_right) = bounds(&validator, &object);
            if shape_is_right {
                walk(schema, &object, "", &mut found);
            }
            found
        })
        .collect()
}

/// What the schema finds without rules, and whether rules would be asked: an API server does not run them on values
/// of another type, unknown words, missing fields, or more than the cost of a rule was reckoned for.
fn bounds(validator: &jsonschema::Validator, object: &Value) -> (Vec<Problem>, bool) {
    let mut found = Vec::new();
    let mut shape_is_right = true;
    for error in validator.iter_errors(object) {
        let mut field =
            error.instance_path().as_str().split('/').skip(1).fold(String::new(), |field, step| {
                if step.parse::<usize>().is_ok() { format!("{field}[{step}]") } else { join(&field, step) }
            });
        if let ErrorKind::Required { property } = error.kind() {
            field = join(&field, property.as_str().unwrap_or_default());
        }
        shape_is_right &= !matches!(
            error.kind(),
            ErrorKind::Required { .. }
                | ErrorKind::Type { .. }
                | ErrorKind::Enum { .. }
                | ErrorKind::MaxItems { .. }
                | ErrorKind::MaxLength { .. }
        );
        found.push(Problem { field, message: error.to_string(), by_rule: false });
    }
    (found, shape_is_right)
}

/// Every CEL rule of a schema with its message.
pub(crate) fn rules(schema: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect(schema, &mut found);
    found
}

fn collect(schema: &Value, found: &mut Vec<(String, String)>) {
    match schema {
        Value::Object(fields) => {
            found.extend(own_rules(schema));
            fields.values().for_each(|value| collect(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}

fn own_rules(schema: &Value) -> Vec<(String, String)> {
    let text = |rule: &Value, key: &str| rule[key].as_str().expect("a rule with a message").to_owned();
    let rules = schema["x-kubernetes-validations"].as_array();
    rules.into_iter().flatten().map(|rule| (text(rule, "rule"), text(rule, "message"))).collect()
}

fn walk(schema: &Value, value: &Value, field: &str, found: &mut Vec<Problem>) {
    let mut problem = |field: &str, message: String, by_rule| {
        found.push(Problem { field: field.to_owned(), message, by_rule });
    };
    if schema["x-kubernetes-int-or-string"] == true && !value.is_string() && !value.is_i64() {
        problem(field, "must be of type integer,string".to_owned(), false);
        // A rule is not asked about a value of another type.
        return;
    }
    for (rule, message) in own_rules(schema) {
        if !holds(&rule, value) {
            problem(field, message, true);
        }
    }
    if let Some(items) = value.as_array() {
        let key = |item: &Value| match schema["x-kubernetes-list-map-keys"].as_array() {
            Some(keys) => keys.iter().map(|key| item[key.as_str().expect("a key")].clone()).collect(),
            None => item.clone(),
        };
        for (n, item) in items.iter().enumerate() {
            let unique = matches!(schema["x-kubernetes-list-type"].as_str(), Some("set" | "map"));
            if unique && items[..n].iter().any(|earlier| key(earlier) == key(item)) {
                found.push(Problem {
                    field: format!("{field}[{n}]"),
                    message: String::new(),
                    by_rule: false,
                });
            }
            walk(&schema["items"], item, &format!("{field}[{n}]"), found);
        }
    }
    for (name, value) in value.as_object().unwrap_or(&Map::new()) {
        let own = &schema["properties"][name];
        let schema = if own.is_null() { &schema["additionalProperties"] } else { own };
        walk(schema, value, &join(field, name), found);
    }
}

/// Whether a rule holds. One that fails to run does not, as on an API server.
fn holds(rule: &str, value: &Value) -> bool {
    let program = cel::Program::compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let mut context = cel::Context::default();
    context.add_variable("self", value).expect("a value");
    program.execute(&context) == Ok(cel::Value::Bool(true))
}

fn join(field: &str, name: &str) -> String {
    if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
