//! One life of a process: from its Lease until the process ends, or must not go on with what it knows.
//!
//! A process that must not go on starts over, with a new Lease and without its caches. It keeps its listeners, its
//! certificates and its metrics, and what it admitted recently.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;
use kube::Client;
use quorate_api::names::LEADER_LEASE;
use quorate_engine::SafetyRule;
use quorate_engine::basics::Time;
use quorate_engine::ledger::{Admission, Event, Settings};
use quorate_kit::admin;
use quorate_kit::election::Election;
use quorate_kit::watch::Failing;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::actor::{self, ActorOutputs, ReplicaHandle};
use crate::admission::AdmissionState;
use crate::calls::Calls;
use crate::certificates::Certificates;
use crate::events::Events;
use crate::kruise::{self, ServePub};
use crate::metrics::Metrics;
use crate::own_lease::Lost;
use crate::owners::Owners;
use crate::raw_budgets::RawBudgets;
use crate::replicas::{self, Acknowledgement, ReplicaLeases};
use crate::run::Options;
use crate::settings::ServerSettings;
use crate::status::Writer;
use crate::watches::{self, WatchScope, WatchedKind};
use crate::webhooks::{self, Endpoint};
use crate::{namespaces, released, twins};

/// What a process keeps when it starts over.
pub(crate) struct Lasting {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) endpoint: Endpoint,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) metrics: Arc<Metrics>,
    /// The process is shutting down.
    pub(crate) stopping: AtomicBool,
}

/// One life of a process.
pub(crate) struct Life {
    pub(crate) name: String,
    /// Answers reviews.
    pub(crate) admission: AdmissionState,
    pub(crate) status: Arc<LifeStatus>,
    election: Arc<Election>,
    held: watch::Sender<bool>,
    acknowledgements: watch::Receiver<Acknowledgement>,
    tasks: JoinSet<()>,
    twins: JoinHandle<()>,
    watches: JoinSet<()>,
}

impl Life {
    /// The order matters: first the Lease says that the process serves, then the budgets are listed, then it serves.
    /// Before the leader opens a budget, it waits for every process that could decide without knowing the budget, and it
    /// finds these processes by their Leases.
    ///
    /// `recent` is what an earlier life of this process admitted recently; `None` if it is its first life.
    ///
    /// # Errors
    /// The API server rejects the Lease.
    pub(crate) async fn begin(
        lasting: &Arc<Lasting>,
        recent: Option<Vec<(Time, Admission)>>,
    ) -> Result<Self> {
        let Lasting { client, options, endpoint, certificates, metrics, .. } = &**lasting;
        let (client, options, endpoint) = (client.clone(), options.clone(), endpoint.clone());
        let (certificates, metrics) = (certificates.clone(), metrics.clone());
        let name = replicas::unique_name();
        let expiry = options.claim_expiry;
        let scope = WatchScope::everything();
        let leases = ReplicaLeases::new(
            client.clone(),
            options.namespace.clone(),
            name.clone(),
            expiry,
            scope.interruptions().clone(),
        );
        let leases = Arc::new(if recent.is_some() { leases.without_notes() } else { leases });
        let settings = ServerSettings {
            gates: options.gates,
            serve_pub: options.serve_pub,
            fresh_for: options.fresh_for,
        };
        leases.join(settings).await?;

        let raw_budgets = Arc::new(RawBudgets::default());
        let events = Events::start(client.clone(), name.clone(), raw_budgets.clone());
        let calls =
            Arc::new(Calls::new(client.clone(), raw_budgets.clone(), leases.clone(), metrics.clone()));
        let (statuses, status_changes) = mpsc::unbounded_channel();
        let (acknowledged, acknowledgements) = watch::channel(Acknowledgement::default());
        let (synced, is_synced) = watch::channel(false);
        let (stale, is_stale) = watch::channel(None);
        let (enforcing, enforced) = watch::channel(BTreeSet::new());
        let outbox = ActorOutputs {
            statuses,
            acknowledged,
            synced,
            stale,
            enforcing,
            events: events.clone(),
            metrics: metrics.clone(),
        };
        let fresh_for = options.fresh_for;
        let settings = Settings { expiry, recent_for: expiry, fresh_for, ..Settings::new(name.as_str()) };
        let replica =
            actor::start(settings, options.gates, calls.clone(), outbox, recent.unwrap_or_default());
        let (held, is_held) = watch::channel(false);
        let (inbox, twins) = twins::start(&client, events.clone(), is_held.clone());
        let kruise = kruise::follow(client.clone(), options.serve_pub, &scope, None);
        let watches = watches::start(
            &client,
            &scope,
            &replica,
            &raw_budgets,
            &options.namespace,
            &inbox,
            kruise.clone(),
        );

        let election = Arc::new(Election::new(client.clone(), &options.namespace, LEADER_LEASE, &name));
        let writer = Writer {
            replica: replica.clone(),
            calls,
            raw_budgets,
            election: election.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.run(status_changes));
        tasks.spawn(namespaces::run(client.clone(), options.namespace.clone(), enforced, election.clone()));
        let (in_force, is_in_force) = watch::channel(false);
        let bundle = certificates.bundle();
        // With `always` or `never` the user has decided, so no Event is needed.
        if options.serve_pub == ServePub::Auto {
            tasks.spawn(kruise::report_changes(kruise.clone(), is_held.clone(), events.clone()));
        }
        tasks.spawn(released::run(client.clone(), kruise.clone(), is_held.clone()));
        let propagates = options.propagate_owner_references;
        let owners = propagates.then(|| Owners::new(client.clone(), events.clone()));
        let reconciler = webhooks::WebhookReconciler {
            client,
            written: options.webhooks,
            endpoint,
            namespace: options.namespace,
            owners: propagates,
        };
        tasks.spawn(reconciler.run(bundle, is_held, in_force));
        tasks.spawn(follow_leadership(replica.clone(), is_in_force));
        let (signer, renewed) = (election.clone(), certificates.clone());
        tasks.spawn(async move { renewed.run(&signer).await });

        let (ready, is_ready) = watch::channel(false);
        tasks.spawn(begin_serving(leases.clone(), scope.clone(), is_synced, ready));
        let following = leases.clone();
        tasks.spawn(async move { following.follow().await });

        let status = LifeStatus {
            ready: is_ready,
            stale: is_stale,
            scope,
            leases: leases.clone(),
            replica: replica.clone(),
            lasting: lasting.clone(),
        };
        let may_answer = move |deadline| -> BoxFuture<'static, bool> {
            let leases = leases.clone();
            Box::pin(async move { leases.may_answer(deadline).await })
        };
        let admission = AdmissionState::new(replica, options.gates, events, metrics, kruise, may_answer);
        Ok(Self {
            name,
            admission: admission.with_owners(owners),
            status: Arc::new(status),
            election,
            held,
            acknowledgements,
            tasks,
            twins,
            watches,
        })
    }

    /// Lives until `closing`, or until the process must not go on with what it knows: then it returns why, and what it
    /// admitted recently. `served` completes when no request is in progress any more.
    pub(crate) async fn live(
        self,
        closing: CancellationToken,
        served: impl Future<Output = ()>,
    ) -> Result<(), (Lost, Vec<(Time, Admission)>)> {
        let Self { status, election, held, acknowledgements, tasks, twins, watches, .. } = self;
        let ends = CancellationToken::new();
        let electing = tokio::spawn(elect(election, held, status.ready.clone(), ends.clone()));
        let (leases, replica) = (&status.leases, &status.replica);
        let outcome = leases
            .keep_renewed(acknowledgements, status.ready.clone(), replica, &status.scope, closing.clone())
            .await;
        if outcome.is_ok() {
            served.await;
        }
        ends.cancel();
        let _ = electing.await;
        let recent = replica.recent_admissions().await;
        leases.leave(replica.admitted_recently().await).await;
        drop(tasks);
        twins.abort();
        drop(watches);
        outcome.map_err(|lost| (lost, recent))
    }
}

/// After the initial sync: first the Lease says that this process serves, then the budgets are listed once more, then the
/// process serves. A process that never gets that far keeps no budget from being opened.
async fn begin_serving(
    leases: Arc<ReplicaLeases>,
    scope: WatchScope,
    mut synced: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
) {
    if synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    if SafetyRule::ServesOnceAnnounced.is_left_out() {
        ready.send_replace(true);
    }
    leases.announce_serving().await;
    scope.list_budgets_again().await;
    ready.send_replace(true);
    // The receivers take the end of the sender for the end of the process.
    ready.closed().await;
}

/// Takes part in the election once this process serves. A leader that does not know all budgets would remove the label of
/// namespaces where budgets enforce, and open no budget.
async fn elect(
    election: Arc<Election>,
    held: watch::Sender<bool>,
    mut ready: watch::Receiver<bool>,
    ends: CancellationToken,
) {
    tokio::select! {
        () = ends.cancelled() => return,
        ready = ready.wait_for(|ready| *ready) => if ready.is_err() { return },
    }
    let _ = election.spawn(held, ends).await;
}

/// Makes the replica the leader while this process holds the lease and the webhooks are in force.
async fn follow_leadership(replica: ReplicaHandle, mut in_force: watch::Receiver<bool>) {
    let mut is_leader = false;
    loop {
        let holds = *in_force.borrow_and_update();
        if holds != is_leader {
            is_leader = holds;
            replica.send(Event::Leader(holds)).await;
        }
        if in_force.changed().await.is_err() {
            return;
        }
    }
}

/// Readiness and metrics of one life.
pub(crate) struct LifeStatus {
    ready: watch::Receiver<bool>,
    stale: watch::Receiver<Option<Duration>>,
    scope: WatchScope,
    leases: Arc<ReplicaLeases>,
    replica: ReplicaHandle,
    lasting: Arc<Lasting>,
}

impl LifeStatus {
    /// The kinds that cannot be read now, and why, as the end of a sentence.
    fn unreadable(&self) -> String {
        let kind = |WatchedKind { kind, failing, .. }: &WatchedKind| {
            let Failing { since, why } = failing.as_ref()?;
            Some(format!("; {kind} unreadable for {} s: {why}", since.elapsed().as_secs()))
        };
        self.scope.watched().iter().filter_map(kind).collect()
    }
}

impl admin::ProcessStatus for LifeStatus {
    fn unready(&self) -> Option<String> {
        if self.lasting.stopping.load(Ordering::Relaxed) {
            return Some("shutting down".to_owned());
        }
        if !self.leases.has_served() {
            let awaited = self.scope.awaited().map(|why| format!("; {why}")).unwrap_or_default();
            return Some(format!("the initial sync is not complete{awaited}{}", self.unreadable()));
        }
        if !self.leases.is_current() {
            return Some("the Lease is not renewed".to_owned());
        }
        let silence = (*self.stale.borrow())?.as_secs();
        Some(format!("pods are stale: no watch event for {silence} s{}", self.unreadable()))
    }

    async fn metrics(&self) -> String {
        self.lasting.metrics.show(self.replica.gauges().await, &self.scope.watched())
    }
}
