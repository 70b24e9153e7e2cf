//! The verbs get and list.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::api::{Api, Reply, metadata_only};
use super::failure::{Failure, Outcome};
use super::object::Key;
use super::request::{Call, Form};
use super::selector::{Fields, Labels};
use super::store::{Snapshot, StoredObject};
use super::table;

/// The objects of a resource that a request selects.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) labels: Labels,
    pub(crate) fields: Fields,
}

impl Selection {
    pub(crate) fn of(call: &Call) -> Outcome<Self> {
        let known = call.served.resource.selectable_fields(&call.served.version);
        let mut fields = call.query.text("fieldSelector").to_owned();
        // A watch on the path of one object is a watch with a field selector on its name.
        if !call.name.is_empty() {
            fields = format!("metadata.name={}", call.name);
        }
        Ok(Self {
            labels: Labels::parse(call.query.text("labelSelector"))?,
            fields: Fields::parse(&fields, &known)?,
        })
    }

    pub(crate) fn is_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(super::object::labels(object)) && self.fields.matches(object)
    }
}

/// The position at which a list continues.
struct Continue {
    revision: u64,
    after: Key,
}

impl Continue {
    fn token(&self) -> String {
        // Clients treat the token as opaque. Hexadecimal needs no escaping in a query.
        let text = format!("{}/{}/{}", self.revision, self.after.namespace, self.after.name);
        text.bytes().map(|b| format!("{b:02x}")).collect()
    }

    fn parse(token: &str) -> Option<Self> {
        let bytes: Option<Vec<u8>> = token
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let text = String::from_utf8(bytes?).ok()?;
        let mut parts = text.splitn(3, '/');
        Some(Self { revision: parts.next()?.parse().ok()?, after: Key::new(parts.next()?, parts.next()?) })
    }
}

/// Parses a resource version from a client.
pub(crate) fn parse_version(text: &str) -> Outcome<u64> {
    text.parse().map_err(|_| {
        Failure::bad_request(format!(
            "resourceVersion: Invalid value: {text:?}: must be a non-negative integer"
        ))
    })
}

impl Api {
    pub(crate) fn get(&self, call: &Call) -> Outcome<Reply> {
        self.check_not_from_the_future(call.query.text("resourceVersion"))?;
        let stored = self.current(call)?;
        Ok(self.reply(call, 200, &stored))
    }

    /// Rejects a resource version that is newer than the current one.
    pub(crate) fn check_not_from_the_future(&self, version: &str) -> Outcome<()> {
        if version.is_empty() {
            return Ok(());
        }
        let (wanted, current) = (parse_version(version)?, self.store.revision());
        if wanted > current {
            return Err(Failure::new(
                504,
                "Timeout",
                format!("Too large resource version: {wanted}, current: {current}"),
            )
            .cause("ResourceVersionTooLarge", "Too large resource version", "")
            .retry_after(1));
        }
        Ok(())
    }

    pub(crate) fn list(&self, call: &Call) -> Outcome<Reply> {
        let selection = Selection::of(call)?;
        let limit = call.query.number("limit")?.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let (snapshot, after) = self.snapshot(call, limit.is_some())?;
        let start = match &after {
            Some(after) => snapshot.objects.partition_point(|o| o.key <= *after),
            None => 0,
        };
        let mut chosen: Vec<&Arc<StoredObject>> = Vec::new();
        let mut rest = snapshot.objects[start..].iter();
        let mut next = None;
        for object in rest.by_ref() {
            if !selection.is_all() && !selection.matches(&object.value) {
                continue;
            }
            if limit.is_some_and(|limit| chosen.len() == limit) {
                next = chosen
                    .last()
                    .map(|last| Continue { revision: snapshot.revision, after: last.key.clone() });
                break;
            }
            chosen.push(object);
        }
        let mut meta = json!({"resourceVersion": snapshot.revision.to_string()});
        if let Some(next) = next {
            meta["continue"] = next.token().into();
            if selection.is_all() {
                meta["remainingItemCount"] = (rest.len() + 1).into();
            }
        }
        Ok(self.list_reply(call, &chosen, &meta))
    }

    /// The objects of a list, and the key after which it continues.
    fn snapshot(&self, call: &Call, limited: bool) -> Outcome<(Snapshot, Option<Key>)> {
        let table = &call.served.resource.table;
        let version = call.query.text("resourceVersion");
        let matching = call.query.text("resourceVersionMatch");
        if let Some(token) = call.query.get("continue").filter(|t| !t.is_empty()) {
            if !matching.is_empty() {
                return Err(Failure::bad_request(
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            let at = Continue::parse(token).ok_or_else(|| {
                Failure::bad_request("continue key is not valid: it was not made by this server")
            })?;
            let snapshot = self.store.list_at(table, &call.namespace, at.revision).map_err(|_| {
                Failure::expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
            })?;
            return Ok((snapshot, Some(at.after)));
        }
        if !matching.is_empty() && version.is_empty() {
            return Err(Failure::bad_request(
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        self.check_not_from_the_future(version)?;
        let exact = match matching {
            "Exact" => true,
            "NotOlderThan" => false,
            // With a limit and without resourceVersionMatch the version is exact, for compatibility with old clients.
            "" => limited && !matches!(version, "" | "0"),
            other => {
                return Err(Failure::bad_request(format!(
                    "resourceVersionMatch: Unsupported value: {other:?}"
                )));
            }
        };
        if exact {
            let wanted = parse_version(version)?;
            if wanted == 0 {
                return Err(Failure::bad_request(
                    "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            let snapshot = self.store.list_at(table, &call.namespace, wanted).map_err(|old| {
                Failure::expired(format!(
                    "The resourceVersion for the provided list is too old: {wanted} ({})",
                    old.floor
                ))
            })?;
            return Ok((snapshot, None));
        }
        Ok((self.store.list(table, &call.namespace), None))
    }

    fn list_reply(&self, call: &Call, chosen: &[&Arc<StoredObject>], meta: &Value) -> Reply {
        match call.form {
            Form::Object => {
                let head = format!(
                    "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{meta},\"items\":[",
                    json!(call.served.resource.list_kind),
                    json!(call.served.api_version()),
                );
                let size: usize = chosen.iter().map(|o| o.bytes.len() + 1).sum();
                let mut body = BytesMut::with_capacity(head.len() + size + 3);
                body.put_slice(head.as_bytes());
                for (at, object) in chosen.iter().enumerate() {
                    if at > 0 {
                        body.put_u8(b',');
                    }
                    body.put(call.served.bytes(object));
                }
                body.put_slice(b"]}");
                Reply::Body { code: 200, bytes: Bytes::from(body), warnings: Vec::new() }
            }
            Form::Table => {
                let values: Vec<Value> = chosen.iter().map(|o| call.served.present(o)).collect();
                let values: Vec<&Value> = values.iter().collect();
                Reply::json(
                    200,
                    &table::of_objects(&call.served, &values, meta, self.clock.now(), &call.query),
                )
            }
            Form::Metadata => {
                let items: Vec<Value> =
                    chosen.iter().map(|o| metadata_only(&o.value, "PartialObjectMetadata")).collect();
                Reply::json(
                    200,
                    &json!({
                        "kind": "PartialObjectMetadataList",
                        "apiVersion": "meta.k8s.io/v1",
                        "metadata": meta,
                        "items": items,
                    }),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Continue;
    use crate::apiserver::object::Key;

    #[test]
    fn a_continue_token_survives_the_round_trip() {
        let token = Continue { revision: 7, after: Key::new("ns", "a.b-c") }.token();
        let back = Continue::parse(&token).unwrap();
        assert_eq!((back.revision, back.after), (7, Key::new("ns", "a.b-c")));
        assert!(Continue::parse("zz").is_none());
        assert!(Continue::parse("31").is_none());
    }
}
