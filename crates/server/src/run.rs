//! Runs one process, from its Lease to its end.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use quorate_api::names::HOLDER;
use quorate_engine::Gates;
use quorate_engine::ledger::{Event, Settings};
use quorate_kit::client::bounded;
use quorate_kit::election::Election;
use quorate_kit::watch::Failing;
use quorate_kit::{admin, https};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::actor::{self, Outbox, ReplicaHandle};
use crate::admission::{self, AdmissionState};
use crate::calls::Calls;
use crate::certificates::{Certificates, Rotation, Source};
use crate::events::Events;
use crate::kruise::{self, ServePub};
use crate::metrics::Metrics;
use crate::owners::Owners;
use crate::raw_budgets::RawBudgets;
use crate::replicas::{self, Acknowledgement, ReplicaLeases};
use crate::status::Writer;
use crate::watches::{self, WatchScope};
use crate::webhooks::{self, Endpoint, ManagedBy};
use crate::{namespaces, twins};

/// How to run a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server, and the credentials of this process.
    pub kubernetes: kube::Config,
    /// Address of the admission webhooks; port 0 takes a free port.
    pub listen: SocketAddr,
    /// Address of `/healthz`, `/readyz` and `/metrics`; port 0 takes a free port.
    pub admin: SocketAddr,
    /// Where the API server reaches this process; by default the `listen` address.
    pub endpoint: Option<Endpoint>,
    /// Quorate's own namespace, where its Leases and its Secret are.
    pub namespace: String,
    /// Which component writes the webhook configurations.
    pub webhooks: ManagedBy,
    /// Source of the certificates.
    pub certificates: Source,
    /// Feature gates.
    pub gates: Gates,
    /// Whether pods get the owners that their templates name.
    pub propagate_owner_references: bool,
    /// Whether to serve OpenKruise's budgets.
    pub serve_pub: ServePub,
    /// Time until an unused admission expires, and for which an admission is added to a budget that is new. Longer than
    /// the API server may take to carry out an admitted request, and the same for all servers.
    pub claim_expiry: Duration,
    /// How long to keep serving after `stop`, until clients send no more requests to this process.
    pub shutdown_delay: Duration,
}

impl Options {
    /// The defaults, for a server on free ports of this machine that the API server reaches at its `listen` address.
    pub fn here(kubernetes: kube::Config, namespace: &str) -> Self {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            kubernetes,
            listen: anywhere,
            admin: anywhere,
            endpoint: None,
            namespace: namespace.to_owned(),
            webhooks: ManagedBy::Server,
            certificates: Source::Own(Rotation::default()),
            gates: Gates::default(),
            propagate_owner_references: false,
            serve_pub: ServePub::Auto,
            claim_expiry: Duration::from_secs(120),
            shutdown_delay: Duration::ZERO,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    /// Address of the admission webhooks.
    pub address: SocketAddr,
    /// Address of `/healthz`, `/readyz` and `/metrics`.
    pub admin: SocketAddr,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Waits until the server ends.
    ///
    /// # Errors
    /// The server ended for another reason than `stop`.
    pub async fn ended(self) -> Result<()> {
        self.task.await.context("the server task failed")?
    }
}

/// Starts a server. When `stop` is cancelled, it turns unready, serves for [`Options::shutdown_delay`], and ends.
///
/// The order matters: first the Lease, then the list of budgets. Before the leader opens a budget, it waits for every
/// process that could decide without knowing the budget, and it finds these processes by their Leases.
///
/// # Errors
/// The endpoint is not valid, the server cannot listen or get a certificate, or the API server rejects its Lease.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running> {
    // The client does not retry: the protocol must know at once that a write was rejected.
    let client = Client::try_from(bounded(options.kubernetes)).context("cannot create a client")?;
    let (listener, address) = listen(options.listen).await?;
    let (admin_listener, admin) = listen(options.admin).await?;
    let endpoint = options.endpoint.unwrap_or_else(|| Endpoint::Url(format!("https://{address}")));
    let names = endpoint.names(&options.namespace)?;
    let certificates =
        Certificates::get(client.clone(), &options.namespace, options.certificates, names).await?;

    let name = replicas::unique_name();
    let expiry = options.claim_expiry;
    let leases =
        Arc::new(ReplicaLeases::new(client.clone(), options.namespace.clone(), name.clone(), expiry));
    leases.join().await?;

    let raw_budgets = Arc::new(RawBudgets::default());
    let metrics = Arc::new(Metrics::default());
    let events = Events::start(client.clone(), name.clone(), raw_budgets.clone());
    let calls = Arc::new(Calls::new(client.clone(), raw_budgets.clone(), leases.clone(), metrics.clone()));
    let (statuses, status_changes) = mpsc::unbounded_channel();
    let (acknowledged, acknowledgements) = watch::channel(Acknowledgement::default());
    let (synced, is_synced) = watch::channel(false);
    let (stale, is_stale) = watch::channel(None);
    let (enforcing, enforced) = watch::channel(BTreeSet::new());
    let outbox = Outbox {
        statuses,
        acknowledged,
        synced,
        stale,
        enforcing,
        events: events.clone(),
        metrics: metrics.clone(),
    };
    let settings = Settings { expiry, recent_for: expiry, ..Settings::new(name.as_str()) };
    let replica = actor::start(settings, options.gates, calls.clone(), outbox);
    let (held, is_held) = watch::channel(false);
    let (twins, reconciling) = twins::start(&client, events.clone(), is_held.clone());
    let scope = WatchScope::everything();
    let kruise = kruise::follow(client.clone(), options.serve_pub, &scope, None);
    let watches =
        watches::start(&client, &scope, &replica, &raw_budgets, &options.namespace, &twins, kruise.clone());

    let election = Arc::new(Election::new(client.clone(), &options.namespace, HOLDER, &name));
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
    let propagates = options.propagate_owner_references;
    let owners = propagates.then(|| Owners::new(client.clone(), events.clone()));
    let reconciler = webhooks::WebhookReconciler {
        client: client.clone(),
        written: options.webhooks,
        endpoint,
        namespace: options.namespace,
        owners: propagates,
    };
    tasks.spawn(reconciler.run(bundle, is_held, in_force));
    tasks.spawn(follow_leadership(replica.clone(), is_in_force));

    let stopping = Arc::new(AtomicBool::new(false));
    let status = ServerStatus {
        synced: is_synced,
        stale: is_stale,
        scope,
        stopping: stopping.clone(),
        leases: leases.clone(),
        replica: replica.clone(),
        metrics: metrics.clone(),
    };
    let current = leases.clone();
    let state = AdmissionState::new(replica.clone(), options.gates, events, metrics, kruise, move || {
        current.is_current()
    });
    let state = state.with_owners(owners);
    let closing = CancellationToken::new();
    let tls = certificates.serving().server_config()?;
    let is_stopping = stopping.clone();
    let router = admission::router(state, move || is_stopping.load(Ordering::Relaxed));
    let serving = tokio::spawn(https::serve(listener, tls, router, closing.clone()));
    tasks.spawn(admin::serve(admin_listener, admin::router(Arc::new(status)), CancellationToken::new()));
    let signer = election.clone();
    tasks.spawn(async move { certificates.run(&signer).await });
    info!(%address, %admin, name, "serving");

    let electing = election.spawn(held, stop.clone());
    let (shutdown_delay, ending) = (options.shutdown_delay, closing.clone());
    tokio::spawn(async move {
        stop.cancelled().await;
        stopping.store(true, Ordering::Relaxed);
        info!(?shutdown_delay, "shutting down");
        tokio::time::sleep(shutdown_delay).await;
        ending.cancel();
    });
    let task = tokio::spawn(async move {
        let outcome = leases.keep_renewed(acknowledgements, &replica, closing.clone()).await;
        closing.cancel();
        let _ = serving.await;
        let _ = electing.await;
        leases.leave(replica.admitted_nothing_recently().await).await;
        drop(tasks);
        reconciling.abort();
        drop(watches);
        outcome
    });
    Ok(Running { address, admin, task })
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
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

/// Readiness and metrics of the process.
struct ServerStatus {
    synced: watch::Receiver<bool>,
    stale: watch::Receiver<Option<Duration>>,
    scope: WatchScope,
    stopping: Arc<AtomicBool>,
    leases: Arc<ReplicaLeases>,
    replica: ReplicaHandle,
    metrics: Arc<Metrics>,
}

impl ServerStatus {
    /// The kinds that cannot be read now, and why, as the end of a sentence.
    fn unreadable(&self) -> String {
        let kind = |(kind, failing): &(String, Option<Failing>)| {
            let Failing { since, why } = failing.as_ref()?;
            Some(format!("; {kind} unreadable for {} s: {why}", since.elapsed().as_secs()))
        };
        self.scope.watched().iter().filter_map(kind).collect()
    }
}

impl admin::ProcessStatus for ServerStatus {
    fn unready(&self) -> Option<String> {
        if self.stopping.load(Ordering::Relaxed) {
            return Some("shutting down".to_owned());
        }
        if !*self.synced.borrow() {
            return Some(format!("the initial sync is not complete{}", self.unreadable()));
        }
        if !self.leases.is_current() {
            return Some("the Lease is not renewed".to_owned());
        }
        let silence = (*self.stale.borrow())?.as_secs();
        Some(format!("pods are stale: no watch event for {silence} s{}", self.unreadable()))
    }

    async fn metrics(&self) -> String {
        self.metrics.show(self.replica.gauges().await, &self.scope.watched())
    }
}
