//! How far somebody sees: a server everything, a person at times one namespace and not every kind.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Client;
use kube::core::{ApiResource, Resource};
use parking_lot::Mutex;
use quorate_kit::watch::Source;
use serde::de::DeserializeOwned;

/// What may be listed. Clones note what was refused in the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    /// The only namespace that is looked at; without it, all.
    namespace: Option<String>,
    /// Resources that are not looked at.
    closed: BTreeSet<&'static str>,
    /// Kinds that not every cluster has, and that may not be listed here: by their resources.
    refused: Arc<Mutex<BTreeSet<String>>>,
}

impl Reach {
    /// Nothing is closed.
    pub(crate) fn everything() -> Self {
        Self::default()
    }

    /// One namespace, or all of them, without some resources.
    pub(crate) fn without(closed: BTreeSet<&'static str>, namespace: Option<&str>) -> Self {
        Self { namespace: namespace.map(str::to_owned), closed, refused: Arc::default() }
    }

    /// Whether a resource that every cluster has is looked at.
    pub(super) fn sees(&self, resource: &str) -> bool {
        !self.closed.contains(resource)
    }

    /// Objects of a kind that is in namespaces, as far as they are seen.
    pub(super) fn source<K>(&self, client: &Client) -> Source<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
    {
        match &self.namespace {
            Some(namespace) => Source::namespaced(client.clone(), namespace),
            None => Source::all(client.clone()),
        }
    }

    /// Objects of a kind that was found, as far as they are seen.
    pub(super) fn found<K: DeserializeOwned + 'static>(
        &self,
        client: &Client,
        resource: &ApiResource,
    ) -> Source<K> {
        Source::found(client.clone(), resource, self.namespace.as_deref()).optional()
    }

    /// A kind that was found may not be listed.
    pub(super) fn refuse(&self, resource: &ApiResource) {
        self.refused.lock().insert(format!("{}.{}", resource.plural, resource.group));
    }

    /// What was found and may not be listed.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().iter().cloned().collect()
    }
}
