//! Validation with a structural schema, with the messages of Kubernetes.

use serde_json::Value;

use crate::apiserver::failure::FieldError;

/// Validates an object, except its metadata, which is checked elsewhere.
pub(super) fn validate_root(schema: &Value, value: &Value, errors: &mut Vec<FieldError>) {
    validate(schema, value, "", errors);
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() && n.as_f64().is_some_and(|f| f.fract() != 0.0) => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    let found = type_name(value);
    if schema["x-kubernetes-int-or-string"] == true {
        return matches!(found, "integer" | "string");
    }
    match schema["type"].as_str() {
        None | Some("") => true,
        Some("number") => matches!(found, "number" | "integer"),
        Some(wanted) => wanted == found,
    }
}

fn validate(schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if !has_type(schema, value) {
        let wanted = schema["type"].as_str().unwrap_or("integer or string");
        let found = type_name(value);
        errors.push(FieldError::type_invalid(
            at,
            found,
            format!("{at} in body must be of type {wanted}: {found:?}"),
        ));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let texts: Vec<String> =
            allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(at, value.clone(), &texts));
    }
    match value {
        Value::Number(_) => validate_number(schema, value, at, errors),
        Value::String(text) => validate_text(schema, text, at, errors),
        Value::Array(list) => validate_list(schema, list, at, errors),
        Value::Object(_) => validate_map(schema, value, at, errors),
        _ => {}
    }
    validate_combined(schema, value, at, errors);
}

fn validate_number(schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(number) = value.as_f64() else { return };
    let mut complain =
        |text: String| errors.push(FieldError::invalid(at, value.clone(), format!("{at} in body {text}")));
    if let Some(bound) = schema["minimum"].as_f64() {
        let strictly = schema["exclusiveMinimum"] == true;
        if number < bound || (strictly && number <= bound) {
            let or_equal = if strictly { "" } else { " or equal to" };
            complain(format!("should be greater than{or_equal} {}", schema["minimum"]));
        }
    }
    if let Some(bound) = schema["maximum"].as_f64() {
        let strictly = schema["exclusiveMaximum"] == true;
        if number > bound || (strictly && number >= bound) {
            let or_equal = if strictly { "" } else { " or equal to" };
            complain(format!("should be less than{or_equal} {}", schema["maximum"]));
        }
    }
    if let Some(step) = schema["multipleOf"].as_f64()
        && step > 0.0
        && (number / step).fract() != 0.0
    {
        complain(format!("should be a multiple of {}", schema["multipleOf"]));
    }
    let range = match schema["format"].as_str() {
        Some("int32") => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        _ => None,
    };
    if range.is_some_and(|(low, high)| number < low || number > high) {
        complain("must be of type int32".to_owned());
    }
}

fn validate_text(schema: &Value, text: &str, at: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count();
    let bound = |field: &str| schema[field].as_u64().and_then(|n| usize::try_from(n).ok());
    if let Some(min) = bound("minLength")
        && length < min
    {
        errors.push(FieldError::invalid(
            at,
            text,
            format!("{at} in body should be at least {min} chars long"),
        ));
    }
    if let Some(max) = bound("maxLength")
        && length > max
    {
        errors.push(FieldError::too_long(at, max));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && regex::Regex::new(pattern).is_ok_and(|regex| !regex.is_match(text))
    {
        errors.push(FieldError::invalid(at, text, format!("{at} in body should match '{pattern}'")));
    }
    if schema["format"] == "date-time" && text.parse::<jiff::Timestamp>().is_err() {
        errors.push(FieldError::invalid(
            at,
            text,
            format!("{at} in body must be of type date-time: {text:?}"),
        ));
    }
}

fn validate_list(schema: &Value, list: &[Value], at: &str, errors: &mut Vec<FieldError>) {
    let bound = |field: &str| schema[field].as_u64().and_then(|n| usize::try_from(n).ok());
    if let Some(min) = bound("minItems")
        && list.len() < min
    {
        errors.push(FieldError::invalid(
            at,
            list.len(),
            format!("{at} in body should have at least {min} items"),
        ));
    }
    if let Some(max) = bound("maxItems")
        && list.len() > max
    {
        errors.push(FieldError::too_many(at, list.len(), max));
    }
    if schema["items"].is_object() {
        for (index, item) in list.iter().enumerate() {
            validate(&schema["items"], item, &format!("{at}[{index}]"), errors);
        }
    }
    let keys: Option<Vec<&str>> = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => Some(Vec::new()),
        Some("map") => Some(
            schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect(),
        ),
        _ => None,
    };
    let Some(keys) = keys else { return };
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let identity = if keys.is_empty() {
            item.clone()
        } else {
            keys.iter().map(|k| ((*k).to_owned(), item[*k].clone())).collect::<serde_json::Map<_, _>>().into()
        };
        if seen.contains(&identity) {
            errors.push(FieldError::duplicate(format!("{at}[{index}]"), identity.clone()));
        }
        seen.push(identity);
    }
}

fn join(at: &str, field: &str) -> String {
    if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") }
}

fn validate_map(schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = value.as_object() else { return };
    for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(field) {
            errors.push(FieldError::required(join(at, field), ""));
        }
    }
    let bound = |field: &str| schema[field].as_u64().and_then(|n| usize::try_from(n).ok());
    if let Some(max) = bound("maxProperties")
        && map.len() > max
    {
        errors.push(FieldError::too_many(at, map.len(), max));
    }
    if let Some(min) = bound("minProperties")
        && map.len() < min
    {
        errors.push(FieldError::invalid(
            at,
            map.len(),
            format!("{at} in body should have at least {min} properties"),
        ));
    }
    for (field, inner) in map {
        if at.is_empty() && field == "metadata" {
            continue;
        }
        let known = schema["properties"].get(field).or_else(|| schema.get("additionalProperties"));
        if let Some(known) = known.filter(|s| s.is_object()) {
            validate(known, inner, &join(at, field), errors);
        }
    }
}

fn validate_combined(schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let fits = |inner: &Value| {
        let mut trouble = Vec::new();
        validate(inner, value, at, &mut trouble);
        trouble.is_empty()
    };
    for inner in schema["allOf"].as_array().into_iter().flatten() {
        validate(inner, value, at, errors);
    }
    if let Some(any) = schema["anyOf"].as_array()
        && !any.is_empty()
        && !any.iter().any(fits)
    {
        errors.push(FieldError::invalid(
            at,
            type_name(value),
            format!("{at} in body must validate at least one schema (anyOf)"),
        ));
    }
    if let Some(one) = schema["oneOf"].as_array()
        && !one.is_empty()
    {
        let count = one.iter().filter(|inner| fits(inner)).count();
        if count != 1 {
            let found = if count == 0 {
                "Found none valid".to_owned()
            } else {
                format!("Found {count} valid alternatives")
            };
            errors.push(FieldError::invalid(
                at,
                type_name(value),
                format!("{at} in body must validate one and only one schema (oneOf). {found}"),
            ));
        }
    }
    if schema["not"].is_object() && fits(&schema["not"]) {
        errors.push(FieldError::invalid(
            at,
            type_name(value),
            format!("{at} in body must not validate the schema (not)"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::validate_root;
    use serde_json::{Value, json};

    fn errors(schema: &Value, value: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate_root(schema, value, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn errors_have_the_messages_of_kubernetes() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "integer", "minimum": 1},
            "b": {"type": "string", "enum": ["x", "y"]},
            "c": {"x-kubernetes-int-or-string": true},
            "d": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": {"type": "object"}},
        }}}});
        let spec = |spec: Value| json!({"metadata": {"name": 1}, "spec": spec});
        assert!(
            errors(
                &schema,
                &spec(json!({"a": 1, "b": "x", "c": "50%", "d": [{"type": "A"}, {"type": "B"}]}))
            )
            .is_empty()
        );
        assert_eq!(errors(&schema, &spec(json!({}))), ["spec.a: Required value"]);
        assert_eq!(
            errors(&schema, &spec(json!({"a": "1"}))),
            ["spec.a: Invalid value: \"string\": spec.a in body must be of type integer: \"string\""]
        );
        assert_eq!(
            errors(&schema, &spec(json!({"a": 0}))),
            ["spec.a: Invalid value: 0: spec.a in body should be greater than or equal to 1"]
        );
        assert_eq!(
            errors(&schema, &spec(json!({"a": 1, "b": "z"}))),
            ["spec.b: Unsupported value: \"z\": supported values: \"x\", \"y\""]
        );
        assert_eq!(
            errors(&schema, &spec(json!({"a": 1, "d": [{"type": "A"}, {"type": "A"}]}))),
            ["spec.d[1]: Duplicate value: {\"type\":\"A\"}"]
        );
        assert_eq!(errors(&schema, &spec(json!({"a": 1, "c": true}))).len(), 1);
    }

    #[test]
    fn one_of_accepts_exactly_one_branch() {
        let schema = json!({"type": "object", "properties": {"s": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}});
        assert!(errors(&schema, &json!({"s": {"a": 1}})).is_empty());
        assert_eq!(errors(&schema, &json!({"s": {"a": 1, "b": 1}})).len(), 1);
        assert_eq!(errors(&schema, &json!({"s": {}})).len(), 1);
    }
}
