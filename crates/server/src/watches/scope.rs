//! How far somebody sees: a server everything, a person at times one namespace and not every kind; and how what is seen
//! is doing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::{ApiResource, Resource};
use parking_lot::Mutex;
use quorate_kit::watch::{Failing, Health, Source};
use serde::de::DeserializeOwned;

/// How long the first list of a kind that not every cluster has is waited for before the first decision, once the kinds
/// that every cluster has are there: rights that those are read with are known to the API server by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Where the API server answers 403 or 404.
    pub(super) refused: Duration,
    /// Where it answers otherwise, or not at all; without bound where that would leave a budget out.
    pub(super) failing: Option<Duration>,
}

/// What may be listed. Clones note what was refused, and show how the watches do, in the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchScope {
    /// The only namespace that is looked at; without it, all.
    namespace: Option<String>,
    /// Resources that are not looked at.
    closed: BTreeSet<&'static str>,
    /// Kinds that not every cluster has, and that may not be listed here: by their resources.
    refused: Arc<Mutex<BTreeSet<String>>>,
    /// Who looks only once does not wait for what is refused.
    once: bool,
    /// How the watches do, by kind.
    healths: Arc<Mutex<BTreeMap<String, Health>>>,
}

impl WatchScope {
    /// Nothing is closed.
    pub(crate) fn everything() -> Self {
        Self::default()
    }

    /// One namespace, or all of them, without some resources.
    pub(crate) fn without(closed: BTreeSet<&'static str>, namespace: Option<&str>) -> Self {
        Self { namespace: namespace.map(str::to_owned), closed, once: true, ..Self::default() }
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
        Source::found(client.clone(), resource, self.namespace.as_deref())
    }

    /// How long a kind that not every cluster has is waited for at first.
    pub(super) fn patience(&self, server: Patience) -> Patience {
        if self.once { Patience { refused: Duration::ZERO, ..server } } else { server }
    }

    /// Where the watch of a kind shows how it does.
    pub(crate) fn health(&self, kind: &str) -> Health {
        let health = Health::default();
        self.healths.lock().insert(kind.to_owned(), health.clone());
        health
    }

    /// A kind is not watched any more.
    pub(super) fn unwatched(&self, kind: &str) {
        self.healths.lock().remove(kind);
    }

    /// How all watches do that have shown something, but for that of one kind.
    pub(super) fn others(&self, kind: &str) -> Vec<Health> {
        let healths = self.healths.lock();
        let others = healths.iter().filter(|(of, health)| *of != kind && health.progress().heard.is_some());
        others.map(|(_, health)| health.clone()).collect()
    }

    /// All kinds that are watched, and why one cannot be read now.
    pub(crate) fn watched(&self) -> Vec<(String, Option<Failing>)> {
        let healths = self.healths.lock();
        healths.iter().map(|(kind, health)| (kind.clone(), health.progress().failing)).collect()
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
