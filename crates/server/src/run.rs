//! Runs one process, from its first Lease to its end.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use kube::Client;
use parking_lot::RwLock;
use quorate_engine::Gates;
use quorate_engine::basics::Time;
use quorate_engine::ledger::Admission;
use quorate_kit::admin;
use quorate_kit::backoff::Backoff;
use quorate_kit::client::bounded;
use quorate_kit::https::{self, MaxConnections};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admission::{self, CurrentState};
use crate::certificates::{CertificateSource, Certificates, Rotation};
use crate::clients::{ClientCertificateFile, ClientCertificates};
use crate::kruise::ServePub;
use crate::life::{Lasting, Life, LifeStatus};
use crate::webhooks::{Endpoint, ManagedBy};

/// Longest wait before another attempt to start over.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Connections to the webhooks. An API server has one as a rule, and one more for each 128 requests at once.
const MAX_CONNECTIONS: MaxConnections = MaxConnections { total: 512, per_client: 64 };

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
    pub certificates: CertificateSource,
    /// The clients that may connect to the webhooks; all if this is `None`.
    pub clients: Option<ClientCertificates>,
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
            certificates: CertificateSource::Own(Rotation::default()),
            clients: None,
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
    /// Whether the server has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

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
    let process = Process::assemble(client, options, endpoint).await?;
    let clients = match &process.lasting.options.clients {
        Some(certificates) => Some(certificates.load().await?),
        None => None,
    };
    let trusted = clients.as_ref().map(ClientCertificateFile::clients);
    let tls = process.lasting.certificates.serving().server_config(trusted)?;
    let (router, closing) = (process.router(), CancellationToken::new());
    let serve = https::serve(listener, tls, router, MAX_CONNECTIONS, closing.clone());
    let serving = tokio::spawn(async move {
        let follow = async {
            match clients {
                Some(file) => file.follow().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = serve => {}
            () = follow => {}
        }
    });
    let admin_router = admin::router(process.status.clone());
    let ended = CancellationToken::new();
    let admin_server = tokio::spawn(admin::serve(admin_listener, admin_router, ended.clone()));
    info!(%address, %admin, name = process.life.name, "serving");
    let running = process.run(stop, closing, async {
        let _ = serving.await;
    });
    let task = tokio::spawn(async move {
        let outcome = running.await;
        ended.cancel();
        admin_server.abort();
        outcome.context("the server task failed")?
    });
    Ok(Running { address, admin, task })
}

/// A running server that the caller reaches without a socket.
pub struct InProcess {
    /// The admission webhooks.
    pub router: Router,
    status: Arc<CurrentStatus>,
    task: JoinHandle<Result<()>>,
}

impl InProcess {
    /// Why the server is not ready, as `/readyz` reports it.
    pub fn unready(&self) -> Option<String> {
        admin::ProcessStatus::unready(&*self.status)
    }

    /// Whether the server has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
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
    let process = Process::assemble(client, options, endpoint).await?;
    let (router, status) = (process.router(), process.status.clone());
    let task = process.run(stop, CancellationToken::new(), std::future::ready(()));
    Ok(InProcess { router, status, task })
}

/// A server, without its listeners.
struct Process {
    lasting: Arc<Lasting>,
    life: Life,
    admission: CurrentState,
    status: Arc<CurrentStatus>,
}

impl Process {
    async fn assemble(client: Client, options: Options, endpoint: Endpoint) -> Result<Self> {
        let names = endpoint.names(&options.namespace)?;
        let source = options.certificates.clone();
        let certificates = Certificates::get(client.clone(), &options.namespace, source, names).await?;
        let lasting = Arc::new(Lasting {
            client,
            options,
            endpoint,
            certificates: Arc::new(certificates),
            metrics: Arc::default(),
            stopping: AtomicBool::new(false),
        });
        let life = Life::begin(&lasting, None).await?;
        let admission = CurrentState::from(life.admission.clone());
        let status = Arc::new(CurrentStatus { life: RwLock::new(life.status.clone()) });
        Ok(Self { lasting, life, admission, status })
    }

    fn router(&self) -> Router {
        let lasting = self.lasting.clone();
        admission::router(self.admission.clone(), move || lasting.stopping.load(Ordering::Relaxed))
    }

    /// Lives until `stop`, and then for [`Options::shutdown_delay`]. Then it cancels `closing`, which ends the listeners;
    /// `served` completes when they have ended.
    fn run(
        self,
        stop: CancellationToken,
        closing: CancellationToken,
        served: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<Result<()>> {
        let Self { lasting, mut life, admission, status } = self;
        let (stopping, ending) = (lasting.clone(), closing.clone());
        tokio::spawn(async move {
            stop.cancelled().await;
            stopping.stopping.store(true, Ordering::Relaxed);
            let shutdown_delay = stopping.options.shutdown_delay;
            info!(?shutdown_delay, "shutting down");
            tokio::time::sleep(shutdown_delay).await;
            ending.cancel();
        });
        tokio::spawn(async move {
            tokio::pin!(served);
            loop {
                let Err((lost, recent)) = life.live(closing.clone(), served.as_mut()).await else {
                    return Ok(());
                };
                warn!(%lost, "this process must not go on with what it knows: it starts over");
                // Meanwhile the earlier life denies every request.
                let Some(next) = begin_again(&lasting, &closing, recent).await else {
                    served.await;
                    return Ok(());
                };
                info!(name = next.name, "started over");
                admission.replace(next.admission.clone());
                *status.life.write() = next.status.clone();
                life = next;
            }
        })
    }
}

/// Begins another life, as soon as the API server allows it; `None` if the process ends before that.
async fn begin_again(
    lasting: &Arc<Lasting>,
    closing: &CancellationToken,
    recent: Vec<(Time, Admission)>,
) -> Option<Life> {
    let mut backoff = Backoff::new(Duration::from_millis(100), MAX_BACKOFF);
    loop {
        let pause = tokio::select! {
            () = closing.cancelled() => return None,
            begun = Life::begin(lasting, Some(recent.clone())) => match begun {
                Ok(life) => return Some(life),
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot start over");
                    backoff.failed()
                }
            },
        };
        tokio::select! {
            () = closing.cancelled() => return None,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Readiness and metrics of the process: those of its present life.
struct CurrentStatus {
    life: RwLock<Arc<LifeStatus>>,
}

impl admin::ProcessStatus for CurrentStatus {
    fn unready(&self) -> Option<String> {
        let life = self.life.read().clone();
        life.unready()
    }

    async fn metrics(&self) -> String {
        let life = self.life.read().clone();
        life.metrics().await
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
