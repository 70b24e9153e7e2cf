//! The scope of the watches: everything for a server; for the view of a user, possibly one namespace and not every
//! kind. Also the health of the watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::{ApiResource, Resource};
use parking_lot::Mutex;
use quorate_engine::basics::GroupKind;
use quorate_kit::watch::{Failing, Health, Interruptions, Progress, Source, Why};
use serde::de::DeserializeOwned;

/// How long to wait, before the first decision, for the first list of a kind that not every cluster has. The wait
/// starts when the kinds that every cluster has are listed: by then the API server knows the permissions of this
/// process.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncTimeout {
    /// If the API server answers 403 or 404; no limit for a kind of budgets.
    pub(super) refused: Option<Duration>,
    /// If it answers otherwise, or not at all; no limit if a budget might be left out.
    pub(super) failing: Option<Duration>,
}

/// The kinds of budgets.
const BUDGETS: [&str; 2] = ["DisruptionBudget", "PodUnavailableBudget"];

/// The state of the watch of a kind.
#[derive(Clone, Debug)]
pub(crate) struct WatchedKind {
    /// The kind, as `Kind.group`.
    pub(crate) kind: String,
    /// How long ago the watch last received something; `None` before its first list.
    pub(crate) age: Option<Duration>,
    /// Why the kind cannot be read now.
    pub(crate) failing: Option<Failing>,
}

/// What is watched. Clones share the refused kinds and the health of the watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchScope {
    /// The only namespace that is watched; `None` for all.
    namespace: Option<String>,
    /// Resources that are not watched.
    closed: BTreeSet<&'static str>,
    /// Resources that not every cluster has, and that may not be listed here.
    refused: Arc<Mutex<BTreeSet<String>>>,
    /// A view lists once, so it does not wait for refused kinds.
    once: bool,
    /// The health of the watches, by kind.
    healths: Arc<Mutex<BTreeMap<GroupKind, Health>>>,
    /// How often the watches lost the API server.
    interruptions: Interruptions,
}

impl WatchScope {
    /// The scope of a server: everything.
    pub(crate) fn everything() -> Self {
        Self::default()
    }

    /// How often the watches lost the API server.
    pub(crate) fn interruptions(&self) -> &Interruptions {
        &self.interruptions
    }

    /// The scope of a view: one namespace, or all of them, without some resources.
    pub(crate) fn without(closed: BTreeSet<&'static str>, namespace: Option<&str>) -> Self {
        Self { namespace: namespace.map(str::to_owned), closed, once: true, ..Self::default() }
    }

    /// Whether a resource that every cluster has is watched.
    pub(super) fn sees(&self, resource: &str) -> bool {
        !self.closed.contains(resource)
    }

    /// The objects of a namespaced kind within the scope.
    pub(super) fn source<K>(&self, client: &Client) -> Source<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
    {
        match &self.namespace {
            Some(namespace) => Source::namespaced(client.clone(), namespace),
            None => Source::all(client.clone()),
        }
    }

    /// The objects of a discovered kind within the scope.
    pub(super) fn found<K: DeserializeOwned + 'static>(
        &self,
        client: &Client,
        resource: &ApiResource,
    ) -> Source<K> {
        Source::found(client.clone(), resource, self.namespace.as_deref())
    }

    /// How long to wait for the first list of a kind that not every cluster has.
    pub(super) fn sync_timeout(&self, server: SyncTimeout) -> SyncTimeout {
        if self.once { SyncTimeout { refused: Some(Duration::ZERO), ..server } } else { server }
    }

    /// Registers the watch of a kind, and returns its health.
    pub(crate) fn health(&self, kind: &GroupKind) -> Health {
        let health = Health::counting(self.interruptions.clone());
        self.healths.lock().insert(kind.clone(), health.clone());
        health
    }

    /// Removes a kind that is not watched any more.
    pub(super) fn unwatched(&self, kind: &GroupKind) {
        self.healths.lock().remove(kind);
    }

    /// The health of all watches that have received something, except that of one kind.
    pub(super) fn others(&self, kind: &GroupKind) -> Vec<Health> {
        let healths = self.healths.lock();
        let others =
            healths.iter().filter(|(of, health)| *of != kind && health.progress().last_received.is_some());
        others.map(|(_, health)| health.clone()).collect()
    }

    /// Lists the budgets of every watched kind again, and waits until they are delivered. Leaves out a kind that may not be
    /// read: none of its budgets is known, and this process acknowledges none.
    pub(crate) async fn list_budgets_again(&self) {
        let is_budget = |kind: &GroupKind| BUDGETS.contains(&&*kind.kind);
        let healths: Vec<Health> = {
            let healths = self.healths.lock();
            healths.iter().filter(|(kind, _)| is_budget(kind)).map(|(_, health)| health.clone()).collect()
        };
        for health in healths {
            let refused = |progress: &Progress| {
                let why = progress.failing.as_ref().map(|failing| &failing.why);
                progress.listed == 0 && why.is_some_and(Why::is_refusal)
            };
            let mut progress = health.follow();
            tokio::select! {
                () = health.list_again() => {}
                _ = progress.wait_for(refused) => {}
            }
        }
    }

    /// All watched kinds.
    pub(crate) fn watched(&self) -> Vec<WatchedKind> {
        let healths = self.healths.lock();
        let watched = healths.iter().map(|(kind, health)| {
            let progress = health.progress();
            let age = progress.last_received.map(|at| at.elapsed());
            WatchedKind { kind: kind.to_string(), age, failing: progress.failing }
        });
        watched.collect()
    }

    /// Records that a discovered kind may not be listed.
    pub(super) fn refuse(&self, resource: &ApiResource) {
        self.refused.lock().insert(format!("{}.{}", resource.plural, resource.group));
    }

    /// The discovered resources that may not be listed.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().iter().cloned().collect()
    }
}
