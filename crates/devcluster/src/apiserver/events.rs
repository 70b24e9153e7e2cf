//! Converts events between `v1`, the stored form, and `events.k8s.io/v1`.

use serde_json::{Map, Value};

use super::object::as_map;

const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts the stored form to `events.k8s.io/v1`.
pub(crate) fn to_events_v1(event: &mut Value) {
    let event = as_map(event);
    for (core, events) in RENAMED {
        rename(event, core, events);
    }
}

/// Converts `events.k8s.io/v1` to the stored form.
pub(crate) fn from_events_v1(event: &mut Value) {
    let event = as_map(event);
    for (core, events) in RENAMED {
        rename(event, events, core);
    }
}

fn rename(map: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = map.remove(from) {
        map.insert(to.to_owned(), value);
    }
}
