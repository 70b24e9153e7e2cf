//! Lists and watches as they come over the wire.

use kube::Error;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Event;

/// An object that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{identity}: {why}")]
pub struct Unreadable {
    /// Which one, as far as that can be told.
    pub identity: Identity,
    /// Why not.
    pub why: String,
}

/// What identifies an object; empty where it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
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

/// An empty list may come as `null`.
fn nothing_is_empty<'de, D: serde::Deserializer<'de>>(items: D) -> Result<Vec<&'de RawValue>, D::Error> {
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
    /// Something happened, and the version the watch has come to by it.
    Change { event: Event<K>, at: Option<String> },
    /// The API server ends the watch.
    Error { code: u16, message: String },
}

impl<K: DeserializeOwned> Line<K> {
    /// Reads a line; `None` where it says nothing, or nothing that is known here. A line that is no JSON is an error:
    /// the connection broke off in the middle of it, and what follows is lost.
    pub(super) fn read(line: &str) -> Result<Option<Self>, Error> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let RawLine { kind, object } = serde_json::from_str(line).map_err(Error::SerdeError)?;
        let at = || Some(identity(object).resource_version).filter(|version| !version.is_empty());
        let event = match kind {
            "ADDED" | "MODIFIED" => decode(object).map_or_else(Event::Unreadable, Event::Applied),
            "DELETED" => decode(object).map_or_else(Event::Unreadable, Event::Deleted),
            "BOOKMARK" => match at() {
                Some(version) => Event::Bookmark(version),
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
pub(super) fn decode<K: DeserializeOwned>(raw: &RawValue) -> Result<K, Unreadable> {
    serde_json::from_str(raw.get())
        .map_err(|error| Unreadable { identity: identity(raw), why: error.to_string() })
}

fn identity(raw: &RawValue) -> Identity {
    serde_json::from_str::<Identified>(raw.get()).map(|object| object.metadata).unwrap_or_default()
}
