//! Watches, translated into facts.
//!
//! - Kinds that every cluster has are watched from the start: one section each in [`start`].
//! - [`discovery`] finds the other kinds, those that make groups and those that objects refer to, and watches them
//!   while they are served.
//! - [`translate`]: how a list of a kind becomes a snapshot, and a change an input. Only the fact of an object is kept,
//!   and it is made while the object is decoded. On the way, `References` gets the kinds that objects refer to,
//!   `RawBudgets` the fields of budgets that writes need, and the inbox of `twins` the objects that twins are made of.
//!
//! An object that cannot be read counts as absent, which makes the engine more careful. A pod is the exception: an
//! absent pod settles its claims, so a pod that cannot be read stays, as a pod that is not healthy.

mod discovery;
mod heartbeats;
mod initial_sync;
mod references;
mod scope;
#[cfg(test)]
mod tests;
mod translate;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use quorate_api::names::{AGENT, COMPONENT};
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Time};
use quorate_engine::facts::BudgetKind;
use quorate_engine::ledger::Event;
use quorate_engine::workload_kind::{DEPLOYMENT, REPLICA_SET, STATEFUL_SET};
use quorate_intake::objects;
use quorate_kit::watch::{self, WatchSource};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::actor::ReplicaHandle;
use crate::clock;
use crate::kruise::ServedHere;
use crate::raw_budgets::RawBudgets;
use crate::twins;
use discovery::Discovery;
use heartbeats::Heartbeats;
use initial_sync::{InitialSync, PendingList};
use references::References;
pub(crate) use scope::{WatchScope, WatchedKind};

/// The namespace that the webhooks exclude, besides Quorate's own.
pub(crate) const EXCLUDED: &str = "kube-system";

// Resources that every cluster has, and that a view can do without.
pub(crate) const NAMESPACES: &str = "namespaces";
pub(crate) const NODES: &str = "nodes";
pub(crate) const LEASES: &str = "leases.coordination.k8s.io";
pub(crate) const NATIVE: &str = "poddisruptionbudgets.policy";
pub(crate) const REPLICA_SETS: &str = "replicasets.apps";
pub(crate) const STATEFUL_SETS: &str = "statefulsets.apps";
pub(crate) const DEPLOYMENTS: &str = "deployments.apps";

/// Starts all watches within `scope`. They end when the set is dropped.
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
    // Before all others, so that the initial sync cannot complete before discovery is done.
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
    watches.add(GroupKind::new("", "Pod"), pods, move |event| translate::pods(event, &known));
    let (known, raw, inbox) = (references.clone(), raw_budgets.clone(), twins.clone());
    watches.add(
        GroupKind::new("policy.quorate.dev", "DisruptionBudget"),
        scope.source(client),
        move |event| translate::budgets(BudgetKind::DisruptionBudget, event, &raw, &known, Some(&inbox)),
    );
    if scope.sees(NAMESPACES) {
        let read = translate::reading(move |object: &slim::Namespace| {
            objects::namespace(&object.metadata, &excluded)
        });
        watches.add(
            GroupKind::new("", "Namespace"),
            WatchSource::<slim::Namespace>::all(all()).read_by(read),
            translate::namespaces,
        );
    }
    if scope.sees(NODES) {
        let nodes = WatchSource::<slim::Node>::all(all()).read_by(translate::reading(objects::node));
        watches.add(GroupKind::new("", "Node"), nodes, translate::nodes);
    }
    if scope.sees(LEASES) {
        let agents = WatchSource::namespaced(all(), own).selected_by(format!("{COMPONENT}={AGENT}"));
        let mut heartbeats = Heartbeats::default();
        watches.add(GroupKind::new("coordination.k8s.io", "Lease"), agents, move |event| {
            heartbeats.take(event, clock::now())
        });
    }
    if scope.sees(NATIVE) {
        let native = scope.source::<slim::PodDisruptionBudget>(client);
        let inbox = twins.clone();
        let native = native.read_by(translate::reading(translate::read_native));
        watches.add(GroupKind::new("policy", "PodDisruptionBudget"), native, move |event| {
            translate::native_budgets(event, &inbox)
        });
    }
    if scope.sees(REPLICA_SETS) {
        let sets = scope.source::<slim::ReplicaSet>(client).read_by(translate::reading(objects::replica_set));
        let kind = REPLICA_SET.group_kind();
        watches.add(kind.clone(), sets, translate::controllers(kind, &references));
    }
    if scope.sees(STATEFUL_SETS) {
        let sets =
            scope.source::<slim::StatefulSet>(client).read_by(translate::reading(objects::stateful_set));
        let kind = STATEFUL_SET.group_kind();
        watches.add(kind.clone(), sets, translate::controllers(kind, &references));
    }
    if scope.sees(DEPLOYMENTS) {
        let deployments = scope.source::<slim::Deployment>(client);
        let deployments = deployments.read_by(translate::reading(objects::deployment));
        let kind = DEPLOYMENT.group_kind();
        watches.add(kind.clone(), deployments, translate::controllers(kind, &references));
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
    watches.tasks.spawn(initial_sync.report_to(replica.clone()));
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
        kind: GroupKind,
        source: WatchSource<K>,
        translate: impl FnMut(watch::WatchEvent<K>) -> Vec<Event> + Send + 'static,
    ) {
        let (replica, pending_list) = (self.replica.clone(), self.initial_sync.pending_list());
        let source = source.reporting_to(self.scope.health(&kind));
        self.tasks.spawn(async move {
            forward(kind, source, replica, Some(pending_list), translate).await;
        });
    }
}

/// Interval at which the actor hears that a watch receives something. Lists are always reported.
const HEARD_INTERVAL: Duration = Duration::from_secs(1);

/// Sends what a watch shows to the actor, and when it received it; never returns. The pending list is dropped once the
/// first list is sent.
async fn forward<K>(
    kind: GroupKind,
    source: WatchSource<K>,
    replica: ReplicaHandle,
    mut pending_list: Option<PendingList>,
    mut translate: impl FnMut(watch::WatchEvent<K>) -> Vec<Event>,
) {
    let mut reported: Option<Instant> = None;
    watch::run(source, |event| {
        let requested = match &event {
            watch::WatchEvent::Listed(listed) => Some(listed.requested),
            _ => None,
        };
        let seen = requested.map(|_| pending_list.take());
        let received = requested.unwrap_or_else(Instant::now);
        let is_due = reported.is_none_or(|reported| received.duration_since(reported) >= HEARD_INTERVAL);
        let mut events = translate(event);
        // A list that cannot be used makes nothing known.
        let is_usable = requested.is_none() || !events.is_empty();
        if is_usable && (is_due || requested.is_some()) {
            reported = Some(received);
            let ago = i64::try_from(received.elapsed().as_millis()).unwrap_or(i64::MAX);
            events.push(Event::Heard(kind.clone(), Time(clock::now().0.saturating_sub(ago))));
        }
        let replica = replica.clone();
        async move {
            for event in events {
                replica.send(event).await;
            }
            drop(seen);
        }
    })
    .await;
}
