//! Watches to facts.
//!
//! - Kinds that every cluster has are watched from the start: one row each in [`start`].
//! - [`discovery`] finds the others, those that make groups and those that somebody refers to, and watches them while they
//!   are served.
//! - [`rows`]: how a list of a kind becomes a snapshot, and a change an input. What is kept of an object is its fact, made
//!   as it is decoded; nothing is held here.
//!
//! An object that cannot be read counts as not there, which makes the engine more careful. A pod is the exception: one that
//! is gone settles what was admitted, so it stays, as one that is not healthy.

mod discovery;
mod heartbeats;
mod initial_sync;
mod references;
mod scope;
#[cfg(test)]
mod tests;
mod translate;

use std::sync::Arc;

use kube::Client;
use quorate_api::names::{AGENT, COMPONENT};
use quorate_api::slim;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::BudgetKind;
use quorate_engine::ledger::Event;
use quorate_intake::objects;
use quorate_kit::watch::{self, Source};
use tokio::task::JoinSet;

use crate::actor::ReplicaHandle;
use crate::clock;
use crate::kruise::ServedHere;
use crate::raw_budgets::RawBudgets;
use crate::twins;
use discovery::Discovery;
use heartbeats::Heartbeats;
use initial_sync::{InitialSync, PendingList};
use references::References;
pub(crate) use scope::WatchScope;

/// Namespaces that the webhooks do not look at, besides Quorate's own.
pub(crate) const EXCLUDED: &str = "kube-system";

// The resources that every cluster has, and that somebody who only looks may do without.
pub(crate) const NAMESPACES: &str = "namespaces";
pub(crate) const NODES: &str = "nodes";
pub(crate) const LEASES: &str = "leases.coordination.k8s.io";
pub(crate) const NATIVE: &str = "poddisruptionbudgets.policy";
pub(crate) const REPLICA_SETS: &str = "replicasets.apps";
pub(crate) const STATEFUL_SETS: &str = "statefulsets.apps";
pub(crate) const DEPLOYMENTS: &str = "deployments.apps";

/// Starts all watches, of what is within reach; they end when the set is dropped.
pub(crate) fn start(
    client: &Client,
    scope: &WatchScope,
    replica: &ReplicaHandle,
    raw_budgets: &Arc<RawBudgets>,
    own: &str,
    twins: &twins::Inbox,
    kruise: ServedHere,
) -> JoinSet<()> {
    let excluded: Arc<[String]> = [EXCLUDED.to_owned(), own.to_owned()].into();
    let references = Arc::new(References::default());
    let initial_sync = InitialSync::new();
    // Before any other: nobody may believe to be the last.
    let undiscovered = initial_sync.pending_list();
    let mut watches = Watches {
        replica: replica.clone(),
        scope: scope.clone(),
        initial_sync: initial_sync.clone(),
        tasks: JoinSet::new(),
    };
    let all = || client.clone();

    let known = references.clone();
    let pods = scope.source::<slim::Pod>(client).read_by(translate::read_pod);
    watches.add("Pod", pods, move |event| translate::pods(event, &known));
    let (known, shelf, inbox) = (references.clone(), raw_budgets.clone(), twins.clone());
    watches.add("DisruptionBudget.policy.quorate.dev", scope.source(client), move |event| {
        translate::budgets(BudgetKind::DisruptionBudget, event, &shelf, &known, Some(&inbox))
    });
    if scope.sees(NAMESPACES) {
        let read = translate::reading(move |object: &slim::Namespace| {
            objects::namespace(&object.metadata, &excluded)
        });
        watches.add("Namespace", Source::<slim::Namespace>::all(all()).read_by(read), translate::namespaces);
    }
    if scope.sees(NODES) {
        let nodes = Source::<slim::Node>::all(all()).read_by(translate::reading(objects::node));
        watches.add("Node", nodes, translate::nodes);
    }
    if scope.sees(LEASES) {
        let agents = Source::namespaced(all(), own).selected_by(format!("{COMPONENT}={AGENT}"));
        let mut heartbeats = Heartbeats::default();
        watches.add("Lease.coordination.k8s.io", agents, move |event| heartbeats.take(event, clock::now()));
    }
    if scope.sees(NATIVE) {
        let native = scope.source::<slim::PodDisruptionBudget>(client);
        let inbox = twins.clone();
        let native = native.read_by(translate::reading(translate::read_native));
        watches
            .add("PodDisruptionBudget.policy", native, move |event| translate::native_budgets(event, &inbox));
    }
    if scope.sees(REPLICA_SETS) {
        let sets = scope.source::<slim::ReplicaSet>(client).read_by(translate::reading(objects::replica_set));
        watches.add(
            "ReplicaSet.apps",
            sets,
            translate::controllers(GroupKind::new("apps", "ReplicaSet"), &references),
        );
    }
    if scope.sees(STATEFUL_SETS) {
        let sets =
            scope.source::<slim::StatefulSet>(client).read_by(translate::reading(objects::stateful_set));
        watches.add(
            "StatefulSet.apps",
            sets,
            translate::controllers(GroupKind::new("apps", "StatefulSet"), &references),
        );
    }
    if scope.sees(DEPLOYMENTS) {
        let deployments = scope.source::<slim::Deployment>(client);
        let deployments = deployments.read_by(translate::reading(objects::deployment));
        watches.add(
            "Deployment.apps",
            deployments,
            translate::controllers(GroupKind::new("apps", "Deployment"), &references),
        );
    }

    let discovery = Discovery::new(
        client.clone(),
        scope.clone(),
        replica.clone(),
        references,
        initial_sync.clone(),
        raw_budgets.clone(),
        kruise,
    );
    watches.tasks.spawn(discovery.run(undiscovered));
    watches.tasks.spawn(initial_sync.tell(replica.clone()));
    watches.tasks
}

struct Watches {
    replica: ReplicaHandle,
    scope: WatchScope,
    initial_sync: InitialSync,
    tasks: JoinSet<()>,
}

impl Watches {
    fn add<K: Send + 'static>(
        &mut self,
        kind: &str,
        source: Source<K>,
        translate: impl FnMut(watch::Event<K>) -> Vec<Event> + Send + 'static,
    ) {
        let (replica, pending_list) = (self.replica.clone(), self.initial_sync.pending_list());
        let source = source.reporting_to(self.scope.health(kind));
        self.tasks.spawn(async move {
            forward(source, replica, Some(pending_list), translate).await;
        });
    }
}

/// Tells the keeper what a watch shows, for ever. The ticket is given up once the first list has been told.
async fn forward<K>(
    source: Source<K>,
    replica: ReplicaHandle,
    mut pending_list: Option<PendingList>,
    mut translate: impl FnMut(watch::Event<K>) -> Vec<Event>,
) {
    watch::run(source, |event| {
        let seen = matches!(event, watch::Event::Listed(_)).then(|| pending_list.take());
        let (replica, events) = (replica.clone(), translate(event));
        async move {
            for event in events {
                replica.send(event).await;
            }
            drop(seen);
        }
    })
    .await;
}
