//! From raw objects to the few fields that the checker needs.
//!
//! Nothing here counts or judges. Fields that are missing or malformed are left out, as an API server's reader would do.

mod budget;
mod pod;
mod selector;
mod source;

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

pub(super) use budget::{Amount, Budget, Grouping, Operation, Spec};
pub(super) use pod::{Disruption, LWS_NAME, Pod};
pub(super) use source::{Detail, LWS_GROUP, Source};

/// The labels of an object.
pub(super) type Labels = BTreeMap<String, String>;

/// An object, by its UID. Numbers are cheaper to compare than UIDs.
pub(super) type Id = u32;

/// The numbers of all UIDs that were seen. No object has the number 0.
#[derive(Debug, Default)]
pub(super) struct Ids {
    known: HashMap<String, Id>,
}

impl Ids {
    /// The number of a UID.
    pub(super) fn of(&mut self, uid: &str) -> Id {
        let next = Id::try_from(self.known.len() + 1).unwrap_or(Id::MAX);
        *self.known.entry(uid.to_owned()).or_insert(next)
    }
}

/// A reference to an owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owner {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) id: Id,
    pub(super) controller: bool,
}

/// The metadata of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meta {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) id: Id,
    pub(super) generation: i64,
    pub(super) deleting: bool,
    pub(super) labels: Labels,
    pub(super) owners: Vec<Owner>,
}

impl Meta {
    /// Reads the metadata of an object.
    pub(super) fn read(object: &Value, ids: &mut Ids) -> Self {
        let meta = &object["metadata"];
        let namespace = text(&meta["namespace"]);
        let name = text(&meta["name"]);
        let uid = match meta["uid"].as_str() {
            Some(uid) => uid.to_owned(),
            None => format!("{}/{namespace}/{name}", text(&object["kind"])),
        };
        let owners = list(&meta["ownerReferences"])
            .iter()
            .map(|owner| Owner {
                group: api_group(&text(&owner["apiVersion"])).to_owned(),
                kind: text(&owner["kind"]),
                name: text(&owner["name"]),
                id: ids.of(&text(&owner["uid"])),
                controller: owner["controller"].as_bool().unwrap_or(false),
            })
            .collect();
        Self {
            id: ids.of(&uid),
            generation: meta["generation"].as_i64().unwrap_or(0),
            deleting: !meta["deletionTimestamp"].is_null(),
            labels: labels(&meta["labels"]),
            namespace,
            name,
            owners,
        }
    }

    /// The owner that controls the object.
    pub(super) fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }
}

/// A time of an object, without fractions of a second. Such texts sort as the times do.
pub(super) fn whole_second(value: &Value) -> String {
    let time = value.as_str().unwrap_or_default();
    time.get(..19).unwrap_or(time).to_owned()
}

/// The group of an API version: `apps` of `apps/v1`, nothing of `v1`.
pub(super) fn api_group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// The status of a condition.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind)
}

/// Whether a condition is True or False. Unknown is neither.
pub(super) fn condition_status(object: &Value, kind: &str) -> Option<bool> {
    match condition(object, kind)?["status"].as_str() {
        Some("True") => Some(true),
        Some("False") => Some(false),
        _ => None,
    }
}

fn labels(value: &Value) -> Labels {
    value
        .as_object()
        .map(|labels| labels.iter().map(|(key, value)| (key.clone(), text(value))).collect())
        .unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}
