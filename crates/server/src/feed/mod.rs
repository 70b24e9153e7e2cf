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
mod gate;
mod heartbeats;
mod reach;
mod references;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::Client;
use quorate_api::names::{AGENT, COMPONENT};
use quorate_api::slim;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::Front;
use quorate_engine::ledger::Event;
use quorate_intake::objects;
use quorate_kit::watch::{self, Source};
use tokio::task::JoinSet;

use crate::adoption;
use crate::clock;
use crate::keeper::Keeper;
use crate::pubs::ServedHere;
use crate::stored::Stored;
use discovery::Discovery;
use gate::{Gate, Ticket};
use heartbeats::Heartbeats;
pub(crate) use reach::Reach;
use references::References;

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
    reach: &Reach,
    keeper: &Keeper,
    stored: &Arc<Stored>,
    own: &str,
    adoption: &adoption::Inbox,
    kruise: ServedHere,
) -> JoinSet<()> {
    let excluded: Arc<[String]> = [EXCLUDED.to_owned(), own.to_owned()].into();
    let references = Arc::new(References::default());
    let gate = Gate::new();
    // Before any other: nobody may believe to be the last.
    let undiscovered = gate.ticket();
    let mut feeds =
        Feeds { keeper: keeper.clone(), reach: reach.clone(), gate: gate.clone(), tasks: JoinSet::new() };
    let all = || client.clone();

    let known = references.clone();
    let pods = reach.source::<slim::Pod>(client).read_by(rows::read_pod);
    feeds.add("Pod", pods, move |event| rows::pods(event, &known));
    let (known, shelf, inbox) = (references.clone(), stored.clone(), adoption.clone());
    feeds.add("DisruptionBudget.policy.quorate.dev", reach.source(client), move |event| {
        rows::budgets(Front::DisruptionBudget, event, &shelf, &known, Some(&inbox))
    });
    if reach.sees(NAMESPACES) {
        let read =
            rows::reading(move |object: &slim::Namespace| objects::namespace(&object.metadata, &excluded));
        feeds.add("Namespace", Source::<slim::Namespace>::all(all()).read_by(read), rows::namespaces);
    }
    if reach.sees(NODES) {
        let nodes = Source::<slim::Node>::all(all()).read_by(rows::reading(objects::node));
        feeds.add("Node", nodes, rows::nodes);
    }
    if reach.sees(LEASES) {
        let agents = Source::namespaced(all(), own).selected_by(format!("{COMPONENT}={AGENT}"));
        let mut heartbeats = Heartbeats::default();
        feeds.add("Lease.coordination.k8s.io", agents, move |event| heartbeats.take(event, clock::now()));
    }
    if reach.sees(NATIVE) {
        let native = reach.source::<slim::PodDisruptionBudget>(client);
        let inbox = adoption.clone();
        let native = native.read_by(rows::reading(rows::read_native));
        feeds.add("PodDisruptionBudget.policy", native, move |event| rows::native_budgets(event, &inbox));
    }
    if reach.sees(REPLICA_SETS) {
        let sets = reach.source::<slim::ReplicaSet>(client).read_by(rows::reading(objects::replica_set));
        feeds.add(
            "ReplicaSet.apps",
            sets,
            rows::controllers(GroupKind::new("apps", "ReplicaSet"), &references),
        );
    }
    if reach.sees(STATEFUL_SETS) {
        let sets = reach.source::<slim::StatefulSet>(client).read_by(rows::reading(objects::stateful_set));
        feeds.add(
            "StatefulSet.apps",
            sets,
            rows::controllers(GroupKind::new("apps", "StatefulSet"), &references),
        );
    }
    if reach.sees(DEPLOYMENTS) {
        let deployments = reach.source::<slim::Deployment>(client);
        let deployments = deployments.read_by(rows::reading(objects::deployment));
        feeds.add(
            "Deployment.apps",
            deployments,
            rows::controllers(GroupKind::new("apps", "Deployment"), &references),
        );
    }

    let discovery = Discovery::new(
        client.clone(),
        reach.clone(),
        keeper.clone(),
        references,
        gate.clone(),
        stored.clone(),
        kruise,
    );
    feeds.tasks.spawn(discovery.run(undiscovered));
    feeds.tasks.spawn(gate.tell(keeper.clone()));
    feeds.tasks
}

struct Feeds {
    keeper: Keeper,
    reach: Reach,
    gate: Gate,
    tasks: JoinSet<()>,
}

impl Feeds {
    fn add<K: Send + 'static>(
        &mut self,
        kind: &str,
        source: Source<K>,
        translate: impl FnMut(watch::Event<K>) -> Vec<Event> + Send + 'static,
    ) {
        let (keeper, ticket) = (self.keeper.clone(), self.gate.ticket());
        let source = source.reporting_to(self.reach.health(kind));
        self.tasks.spawn(async move {
            feed(source, keeper, Some(ticket), translate).await;
        });
    }
}

/// Tells the keeper what a watch shows, for ever. The ticket is given up once the first list has been told.
async fn feed<K>(
    source: Source<K>,
    keeper: Keeper,
    mut ticket: Option<Ticket>,
    mut translate: impl FnMut(watch::Event<K>) -> Vec<Event>,
) {
    watch::run(source, |event| {
        let seen = matches!(event, watch::Event::Listed(_)).then(|| ticket.take());
        let (keeper, events) = (keeper.clone(), translate(event));
        async move {
            for event in events {
                keeper.tell(event).await;
            }
            drop(seen);
        }
    })
    .await;
}
