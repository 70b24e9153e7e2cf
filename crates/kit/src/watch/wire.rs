//! The wire format of lists and watches.

use kube::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Read, WatchEvent};

/// An object that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{identity}: {why}")]
pub struct UnreadableObject {
    /// The object, as far as its identity can be read.
    pub identity: Identity,
    /// Why it cannot be decoded.
    pub why: String,
    /// The object was deleted; this was its last state.
    pub deleted: bool,
}

/// The identity of an object. A field that cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// Its namespace.
    #[serde(deserialize_with = "text_if_any")]
    pub namespace: String,
    /// Its name.
    #[serde(deserialize_with = "text_if_any")]
    pub name: String,
    /// Its UID.
    #[serde(deserialize_with = "text_if_any")]
    pub uid: String,
    /// Its resource version.
    #[serde(deserialize_with = "text_if_any")]
    pub resource_version: String,
}

/// A field that is not a string is read as empty, so that it does not hide the other fields.
fn text_if_any<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(value)? {
        Value::String(text) => text,
        _ => String::new(),
    })
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Deserialize)]
struct Identified {
    #[serde(default)]
    metadata: Identity,
}

/// One page of a list.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    pub(super) metadata: PageMeta,
    #[serde(borrow, default, deserialize_with = "nothing_is_empty")]
    pub(super) items: Vec<&'a RawValue>,
}

/// An empty list may be `null` in JSON.
fn nothing_is_empty<'de, D: Deserializer<'de>>(items: D) -> Result<Vec<&'de RawValue>, D::Error> {
    Option::deserialize(items).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMeta {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure {
    code: u16,
    message: String,
}

/// One line of a watch.
pub(super) enum Line<K> {
    /// An event, and the version that the watch has reached with it.
    Change { event: WatchEvent<K>, at: Option<String> },
    /// The API server ended the watch.
    Error { code: u16, message: String },
}

impl<K> Line<K> {
    /// Reads a line; `None` if it is empty or of an unknown type. A line that is not JSON is an error: the connection
    /// broke in the middle of the line, and the rest is lost.
    pub(super) fn read(line: &str, as_kept: &Read<K>) -> Result<Option<Self>, Error> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let RawLine { kind, object } = serde_json::from_str(line).map_err(Error::SerdeError)?;
        let at = || Some(identity(object).resource_version).filter(|version| !version.is_empty());
        let event = match kind {
            "ADDED" | "MODIFIED" => match read(object, as_kept) {
                Ok(object) => WatchEvent::Applied(object),
                Err(unreadable) => WatchEvent::Unreadable(*unreadable),
            },
            "DELETED" => match read(object, as_kept) {
                Ok(object) => WatchEvent::Deleted(object),
                Err(unreadable) => WatchEvent::Unreadable(UnreadableObject { deleted: true, ..*unreadable }),
            },
            "BOOKMARK" => match at() {
                Some(version) => WatchEvent::Bookmark(version),
                None => return Ok(None),
            },
            "ERROR" => {
                let Failure { code, message } = serde_json::from_str(object.get()).unwrap_or_default();
                return Ok(Some(Self::Error { code, message }));
            }
            _ => return Ok(None),
        };
        Ok(Some(Self::Change { at: at(), event }))
    }
}

/// Decodes one object.
pub(super) fn read<K>(raw: &RawValue, as_kept: &Read<K>) -> Result<K, Box<UnreadableObject>> {
    as_kept(raw.get())
        .map_err(|why| Box::new(UnreadableObject { identity: identity(raw), why, deleted: false }))
}

fn identity(raw: &RawValue) -> Identity {
    serde_json::from_str::<Identified>(raw.get()).map(|object| object.metadata).unwrap_or_default()
}
