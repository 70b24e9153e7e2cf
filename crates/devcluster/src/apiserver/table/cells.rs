//! Table cells that many kinds share.

use jiff::Timestamp;
use serde_json::Value;

const NONE: &str = "<none>";

pub(crate) fn name(object: &Value) -> Value {
    object["metadata"]["name"].clone()
}

pub(crate) fn age(object: &Value, now: Timestamp) -> Value {
    since(&object["metadata"]["creationTimestamp"], now)
}

/// The age of a timestamp.
pub(crate) fn since(at: &Value, now: Timestamp) -> Value {
    match at.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(at) => human(now.duration_since(at).as_secs()).into(),
        None => "<unknown>".into(),
    }
}

/// A duration as `kubectl` prints it: at most two units, and fewer for longer durations.
pub(crate) fn human(seconds: i64) -> String {
    let with = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 | 0 => "0s".to_owned(),
        s if s < 120 => format!("{s}s"),
        s if s < 600 => with(s / 60, "m", s % 60, "s"),
        s if s < 3 * 3600 => format!("{}m", s / 60),
        s if s < 8 * 3600 => with(s / 3600, "h", s % 3600 / 60, "m"),
        s if s < 48 * 3600 => format!("{}h", s / 3600),
        s if s < 192 * 3600 => with(s / 86_400, "d", s % 86_400 / 3600, "h"),
        s if s < 365 * 2 * 86_400 => format!("{}d", s / 86_400),
        s if s < 365 * 8 * 86_400 => with(s / (365 * 86_400), "y", s / 86_400 % 365, "d"),
        s => format!("{}y", s / (365 * 86_400)),
    }
}

/// Text, or `<none>` if empty.
pub(crate) fn text_or_none(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => NONE.into(),
    }
}

/// A number, or zero if absent.
pub(crate) fn number(value: &Value) -> Value {
    value.as_i64().unwrap_or(0).into()
}

/// The names and images of the containers in a pod template.
pub(crate) fn containers(spec: &Value) -> (Value, Value) {
    let list = |field: &str| {
        let all: Vec<&str> =
            spec["containers"].as_array().into_iter().flatten().filter_map(|c| c[field].as_str()).collect();
        Value::from(all.join(","))
    };
    (list("name"), list("image"))
}

/// A label selector in one line.
pub(crate) fn selector(selector: &Value) -> Value {
    if let Some(map) = selector.as_object()
        && !map.contains_key("matchLabels")
        && !map.contains_key("matchExpressions")
    {
        let plain: Vec<String> =
            map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
        return if plain.is_empty() { NONE.into() } else { plain.join(",").into() };
    }
    match crate::apiserver::selector::Labels::from_object(selector) {
        Ok(labels) if !labels.is_empty() => labels.text().into(),
        _ => NONE.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn durations_are_printed_as_kubectl_does() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600, "9h"),
            (49 * 3600, "2d1h"),
            (10 * 86_400, "10d"),
            (-5, "<invalid>"),
        ] {
            assert_eq!(human(seconds), text);
        }
    }
}
