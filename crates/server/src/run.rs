//! Runs one process, from its Lease to its end.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
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
use crate::watches::{self, WatchScope, WatchedKind};
use crate::webhooks::{self, Endpoint, ManagedBy};
use crate::{namespaces, released, twins};

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
    /// How long what is known of a kind is fresh after its watch last received something. A watch of a quiet kind
    /// receives something at least every 75 s. Only tests set less.
    pub fresh_for: Duration,
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
            fresh_for: quorate_engine::FRESH_FOR,
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
/// # Errors
/// The endpoint is not valid, the server cannot listen or get a certificate, or the API server rejects its Lease.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running> {
    // The client does not retry: the protocol must know at once that a write was rejected.
    let client = Client::try_from(bounded(options.kubernetes.clone())).context("cannot create a client")?;
    let (listener, address) = listen(options.listen).await?;
    let (admin_listener, admin) = listen(options.admin).await?;
    let endpoint = options.endpoint.clone().unwrap_or_else(|| Endpoint::Url(format!("https://{address}")));
    let mut process = Process::assemble(client, options, endpoint, stop).await?;
    let tls = process.certificates.serving().server_config()?;
    let (router, closing) = (process.router.clone(), process.closing.clone());
    let serving = tokio::spawn(https::serve(listener, tls, router, closing));
    let admin_router = admin::router(process.status.clone());
    process.tasks.spawn(admin::serve(admin_listener, admin_router, CancellationToken::new()));
    info!(%address, %admin, name = process.name, "serving");
    let task = process.run(async {
        let _ = serving.await;
    });
    Ok(Running { address, admin, task })
}

/// A running server that the caller reaches without a socket.
pub struct InProcess {
    /// The admission webhooks.
    pub router: Router,
    status: Arc<ServerStatus>,
    task: JoinHandle<Result<()>>,
}

impl InProcess {
    /// Why the server is not ready, as `/readyz` reports it.
    pub fn unready(&self) -> Option<String> {
        admin::ProcessStatus::unready(&*self.status)
    }

    /// Waits until the server ends.
    ///
    /// # Errors
    /// The server ended for another reason than `stop`.
    pub async fn ended(self) -> Result<()> {
        self.task.await.context("the server task failed")?
    }
}

/// Starts a server without a socket, for tests that simulate time: it uses `client`, and the caller passes reviews to
/// its router. It ignores the addresses in `options`, and needs an endpoint there.
///
/// # Errors
/// As [`start`].
pub async fn start_in_process(
    client: Client,
    options: Options,
    stop: CancellationToken,
) -> Result<InProcess> {
    let endpoint = options.endpoint.clone().context("no endpoint")?;
    let process = Process::assemble(client, options, endpoint, stop).await?;
    let (router, status) = (process.router.clone(), process.status.clone());
    Ok(InProcess { router, status, task: process.run(std::future::ready(())) })
}

/// A server, without its listeners.
struct Process {
    name: String,
    shutdown_delay: Duration,
    /// Begins the shutdown.
    stop: CancellationToken,
    /// Ends the listeners and the Lease.
    closing: CancellationToken,
    router: Router,
    status: Arc<ServerStatus>,
    certificates: Arc<Certificates>,
    election: Arc<Election>,
    held: watch::Sender<bool>,
    acknowledgements: watch::Receiver<Acknowledgement>,
    tasks: JoinSet<()>,
    twins: JoinHandle<()>,
    watches: JoinSet<()>,
}

impl Process {
    /// The order matters: first the Lease says that the process serves, then the budgets are listed, then it serves.
    /// Before the leader opens a budget, it waits for every process that could decide without knowing the budget, and it
    /// finds these processes by their Leases.
    async fn assemble(
        client: Client,
        options: Options,
        endpoint: Endpoint,
        stop: CancellationToken,
    ) -> Result<Self> {
        let names = endpoint.names(&options.namespace)?;
        let certificates =
            Certificates::get(client.clone(), &options.namespace, options.certificates, names).await?;
        let certificates = Arc::new(certificates);

        let name = replicas::unique_name();
        let expiry = options.claim_expiry;
        let leases =
            Arc::new(ReplicaLeases::new(client.clone(), options.namespace.clone(), name.clone(), expiry));
        leases.join().await?;

        let raw_budgets = Arc::new(RawBudgets::default());
        let metrics = Arc::new(Metrics::default());
        let events = Events::start(client.clone(), name.clone(), raw_budgets.clone());
        let calls =
            Arc::new(Calls::new(client.clone(), raw_budgets.clone(), leases.clone(), metrics.clone()));
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
        let fresh_for = options.fresh_for;
        let settings = Settings { expiry, recent_for: expiry, fresh_for, ..Settings::new(name.as_str()) };
        let replica = actor::start(settings, options.gates, calls.clone(), outbox);
        let (held, is_held) = watch::channel(false);
        let (inbox, twins) = twins::start(&client, events.clone(), is_held.clone());
        let scope = WatchScope::everything();
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

        let status = ServerStatus {
            ready: is_ready,
            stale: is_stale,
            scope,
            stopping: AtomicBool::new(false),
            leases: leases.clone(),
            replica: replica.clone(),
            metrics: metrics.clone(),
        };
        let status = Arc::new(status);
        let state =
            AdmissionState::new(replica, options.gates, events, metrics, kruise, move || leases.is_current());
        let state = state.with_owners(owners);
        let ending = status.clone();
        let router = admission::router(state, move || ending.stopping.load(Ordering::Relaxed));
        Ok(Self {
            name,
            shutdown_delay: options.shutdown_delay,
            stop,
            closing: CancellationToken::new(),
            router,
            status,
            certificates,
            election,
            held,
            acknowledgements,
            tasks,
            twins,
            watches,
        })
    }

    /// Keeps the Lease until the end; `served` completes when the listeners have ended.
    fn run(self, served: impl Future<Output = ()> + Send + 'static) -> JoinHandle<Result<()>> {
        let Self { shutdown_delay, stop, closing, status, election, held, acknowledgements, .. } = self;
        let (tasks, twins, watches) = (self.tasks, self.twins, self.watches);
        let electing = election.spawn(held, stop.clone());
        let (stopping, ending) = (status.clone(), closing.clone());
        tokio::spawn(async move {
            stop.cancelled().await;
            stopping.stopping.store(true, Ordering::Relaxed);
            info!(?shutdown_delay, "shutting down");
            tokio::time::sleep(shutdown_delay).await;
            ending.cancel();
        });
        tokio::spawn(async move {
            let (leases, replica) = (&status.leases, &status.replica);
            let outcome = leases
                .keep_renewed(acknowledgements, status.ready.clone(), replica, &status.scope, closing.clone())
                .await;
            closing.cancel();
            served.await;
            let _ = electing.await;
            leases.leave(replica.admitted_recently().await).await;
            drop(tasks);
            twins.abort();
            drop(watches);
            outcome
        })
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
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
    leases.announce_serving().await;
    scope.list_budgets_again().await;
    ready.send_replace(true);
    // The receivers take the end of the sender for the end of the process.
    ready.closed().await;
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
    ready: watch::Receiver<bool>,
    stale: watch::Receiver<Option<Duration>>,
    scope: WatchScope,
    stopping: AtomicBool,
    leases: Arc<ReplicaLeases>,
    replica: ReplicaHandle,
    metrics: Arc<Metrics>,
}

impl ServerStatus {
    /// The kinds that cannot be read now, and why, as the end of a sentence.
    fn unreadable(&self) -> String {
        let kind = |WatchedKind { kind, failing, .. }: &WatchedKind| {
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
        if !self.leases.has_served() {
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
