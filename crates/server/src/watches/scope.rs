//! The scope of the watches: everything for a server; for the view of a user, possibly one namespace and not every
//! kind. Also the health of the watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::{ApiResource, Resource};
use parking_lot::Mutex;
use quorate_engine::basics::GroupKind;
use quorate_kit::watch::{Failing, Health, Interruptions, WatchSource, Why};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

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

/// The kinds of budgets, as group and kind.
const BUDGETS: [(&str, &str); 2] =
    [("policy.quorate.dev", "DisruptionBudget"), ("policy.kruise.io", "PodUnavailableBudget")];

/// The kinds that show which kinds of budgets there are, and which of them this process serves.
const SERVED: [(&str, &str); 2] = [
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
];

/// Timeout of a list that is requested in between. After it, the watch may be another one.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Why the initial sync cannot complete, besides kinds that cannot be read.
    awaited: Arc<Mutex<Option<&'static str>>>,
    rounds: Arc<Rounds>,
}

/// Rounds of discovery that are requested in between.
#[derive(Debug, Default)]
struct Rounds {
    wanted: Notify,
    /// The number of requested rounds that are done.
    done: watch::Sender<u64>,
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
    pub(super) fn source<K>(&self, client: &Client) -> WatchSource<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
    {
        match &self.namespace {
            Some(namespace) => WatchSource::namespaced(client.clone(), namespace),
            None => WatchSource::all(client.clone()),
        }
    }

    /// The objects of a discovered kind within the scope.
    pub(super) fn found<K: DeserializeOwned + 'static>(
        &self,
        client: &Client,
        resource: &ApiResource,
    ) -> WatchSource<K> {
        WatchSource::found(client.clone(), resource, self.namespace.as_deref())
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

    /// The health of the watches of all other kinds that are served and have been received. A kind that is not served cannot
    /// be listed, and the budgets that depend on it deny in any case.
    pub(super) fn others(&self, kind: &GroupKind) -> Vec<Health> {
        let healths = self.healths.lock();
        let is_served = |health: &Health| {
            let progress = health.progress();
            let is_missing = progress.failing.is_some_and(|failing| failing.why == Why::NotServed);
            progress.last_received.is_some() && !is_missing
        };
        let others = healths.iter().filter(|(of, health)| *of != kind && is_served(health));
        others.map(|(_, health)| health.clone()).collect()
    }

    /// Lists all budgets again that this process serves, and waits until they are delivered. First it reads again which
    /// kinds of budgets those are: a watch may lag.
    pub(crate) async fn list_budgets_again(&self) {
        for (group, kind) in SERVED {
            self.list_again(&GroupKind::new(group, kind), false).await;
        }
        let mut done = self.rounds.done.subscribe();
        let before = *done.borrow_and_update();
        self.rounds.wanted.notify_one();
        // This cannot fail: `self` keeps the sender alive.
        let _ = done.wait_for(|done| *done > before).await;
        for (group, kind) in BUDGETS {
            self.list_again(&GroupKind::new(group, kind), true).await;
        }
    }

    /// Lists a kind again, for as long as it is watched. A kind that was never listed is left out unless it is `required`.
    async fn list_again(&self, kind: &GroupKind, required: bool) {
        let health = || self.healths.lock().get(kind).cloned();
        while let Some(health) = health().filter(|health| required || health.progress().listed > 0) {
            if tokio::time::timeout(LIST_TIMEOUT, health.list_again()).await.is_ok() {
                return;
            }
        }
    }

    /// Waits until another round of discovery is requested.
    pub(super) async fn round_wanted(&self) {
        self.rounds.wanted.notified().await;
    }

    /// A requested round of discovery is done.
    pub(super) fn round_done(&self) {
        self.rounds.done.send_modify(|done| *done += 1);
    }

    /// Why the initial sync cannot complete, besides kinds that cannot be read.
    pub(crate) fn awaited(&self) -> Option<&'static str> {
        *self.awaited.lock()
    }

    /// Sets why the initial sync cannot complete.
    pub(super) fn set_awaited(&self, why: Option<&'static str>) {
        *self.awaited.lock() = why;
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
