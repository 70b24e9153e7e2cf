//! ControllerRevisions: the history of a set's templates, so that pods of an older revision can be recreated.

use std::hash::Hasher;
use std::sync::Arc;

use kube::api::DeleteParams;
use kube::core::ApiResource;
use kube::{Client, Error, Resource, ResourceExt};
use serde_json::{Value, json};

use super::cache::{Key, ObjectCache};
use super::kinds::{ControllerRevision, controller_revisions};
use super::pods;
use super::request::{self, ErrorExt};

/// A short hash of JSON content. Its characters cannot form words.
pub(crate) fn hash(content: &Value) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hasher = std::hash::DefaultHasher::new();
    feed(content, &mut hasher);
    let mut number = hasher.finish();
    let mut text = String::new();
    for _ in 0..10 {
        let letter = usize::try_from(number % 27).unwrap_or(0);
        text.push(char::from(LETTERS[letter]));
        number /= 27;
    }
    text
}

/// Hashes a value. Skips nulls: the API treats null and absent fields alike.
fn feed(value: &Value, hasher: &mut impl Hasher) {
    match value {
        Value::Object(fields) => {
            hasher.write_u8(b'{');
            let mut fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_by_key(|(name, _)| *name);
            for (name, value) in fields {
                hasher.write(name.as_bytes());
                hasher.write_u8(b':');
                feed(value, hasher);
            }
            hasher.write_u8(b'}');
        }
        Value::Array(items) => {
            hasher.write_u8(b'[');
            for item in items {
                feed(item, hasher);
                hasher.write_u8(b',');
            }
            hasher.write_u8(b']');
        }
        other => hasher.write(other.to_string().as_bytes()),
    }
}

pub(crate) struct Revisions {
    pub(crate) client: Client,
    pub(crate) cache: Arc<ObjectCache<ControllerRevision>>,
    kind: ApiResource,
}

impl Revisions {
    pub(crate) fn new(client: Client, cache: Arc<ObjectCache<ControllerRevision>>) -> Self {
        Self { client, cache, kind: controller_revisions() }
    }

    /// The revisions of an owner, oldest first.
    pub(crate) fn of(&self, owner_uid: &str) -> Vec<Arc<ControllerRevision>> {
        let mut revisions = self.cache.owned_by(owner_uid);
        revisions.sort_by_key(|revision| revision.data["revision"].as_i64().unwrap_or(0));
        revisions
    }

    /// The content of the revision with this name.
    pub(crate) fn content(&self, namespace: &str, name: &str) -> Option<Value> {
        self.cache.get(&Key::new(namespace, name)).map(|revision| revision.data["data"].clone())
    }

    /// Ensures that this content is the newest revision, and returns the name of that revision.
    pub(crate) async fn newest<K: Resource>(
        &self,
        owner: &K,
        controller: &Value,
        labels: &Value,
        content: &Value,
    ) -> Result<String, Error> {
        let namespace = owner.namespace().unwrap_or_default();
        let name = format!("{}-{}", owner.name_any(), hash(content));
        let known = self.of(pods::uid(owner));
        let last = known.last().and_then(|revision| revision.data["revision"].as_i64()).unwrap_or(0);
        if known.last().is_some_and(|revision| revision.name_any() == name) {
            return Ok(name);
        }
        if known.iter().any(|revision| revision.name_any() == name) {
            // The template is an older one again: its revision becomes the newest.
            let key = Key::new(&namespace, &name);
            let patch = json!({"revision": last + 1});
            let written =
                request::merge::<ControllerRevision>(&self.client, &self.kind, &key, None, &patch).await?;
            self.cache.wrote(written);
            return Ok(name);
        }
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [controller]},
            "data": content, "revision": last + 1,
        });
        match request::create::<ControllerRevision>(&self.client, &self.kind, &namespace, &revision).await {
            Ok(made) => self.cache.wrote(made),
            // It is the owner's own revision from before the cache was filled, or one of a deleted owner with the same
            // name, which the garbage collector is about to remove.
            Err(error)
                if error.is_already_exists() && self.cache.get(&Key::new(&namespace, &name)).is_none() => {}
            Err(error) => return Err(error),
        }
        Ok(name)
    }

    /// Deletes the oldest unused revisions.
    pub(crate) async fn trim(&self, owner_uid: &str, in_use: &[&str], limit: usize) -> Result<(), Error> {
        let unused: Vec<_> = self
            .of(owner_uid)
            .into_iter()
            .filter(|revision| !in_use.contains(&revision.name_any().as_str()))
            .collect();
        let surplus = unused.len().saturating_sub(limit);
        for revision in &unused[..surplus] {
            let key = Key::of(revision.as_ref());
            match request::delete::<ControllerRevision>(
                &self.client,
                &self.kind,
                &key,
                &DeleteParams::default(),
            )
            .await
            {
                Ok(_) => self.cache.removed(&key, pods::uid(revision.as_ref())),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_order_and_nulls_do_not_change_a_hash() {
        assert_eq!(hash(&json!({"a": 1, "b": [2]})), hash(&json!({"b": [2], "c": null, "a": 1})));
        assert_ne!(hash(&json!({"a": 1})), hash(&json!({"a": 2})));
        assert_eq!(hash(&json!({})).len(), 10);
    }
}
