//! One process, from its Lease to its end.

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

use crate::admission::{self, Desk};
use crate::calls::Calls;
use crate::certificates::{Certificates, Pace, Source};
use crate::events::Events;
use crate::feed::{self, Reach};
use crate::keeper::{self, Keeper, Outbox};
use crate::members::{self, Acknowledgement, Members};
use crate::metrics::Metrics;
use crate::owners::Owners;
use crate::pubs::{self, ServePub};
use crate::status::Writer;
use crate::stored::Stored;
use crate::webhooks::{self, Place, Written};
use crate::{adoption, namespaces};

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server, and who we are there.
    pub kubernetes: kube::Config,
    /// Where to listen for the API server; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where to listen for those who run the process.
    pub admin: SocketAddr,
    /// Where the API server reaches us. Without it, where we listen.
    pub place: Option<Place>,
    /// The namespace of our own objects.
    pub namespace: String,
    /// Who tells the API server to ask us.
    pub webhooks: Written,
    /// Where certificates come from.
    pub certificates: Source,
    /// Which features are on.
    pub gates: Gates,
    /// Pods get the owners that their templates name.
    pub propagate_owner_references: bool,
    /// Whether to serve OpenKruise's budgets.
    pub serve_pub: ServePub,
    /// After how long what was admitted and did not happen counts again, and how long a new budget is told of it.
    /// Longer than the API server may take, and the same for all servers.
    pub claim_expiry: Duration,
    /// How long to serve on after the end was asked for: until nobody sends requests here any more.
    pub lingers: Duration,
}

impl Options {
    /// With everything as it is unless somebody says otherwise, for a server on free ports of this machine that the API
    /// server reaches where it listens.
    pub fn here(kubernetes: kube::Config, namespace: &str) -> Self {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            kubernetes,
            listen: anywhere,
            admin: anywhere,
            place: None,
            namespace: namespace.to_owned(),
            webhooks: Written::ByUs,
            certificates: Source::Own(Pace::default()),
            gates: Gates::default(),
            propagate_owner_references: false,
            serve_pub: ServePub::Auto,
            claim_expiry: Duration::from_secs(120),
            lingers: Duration::ZERO,
        }
    }
}

/// A server at work.
#[derive(Debug)]
pub struct Running {
    /// Where it listens for the API server.
    pub address: SocketAddr,
    /// Where it tells how it does.
    pub admin: SocketAddr,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end because it was told to.
    pub async fn ended(self) -> Result<()> {
        self.task.await.context("the server's task broke off")?
    }
}

/// Starts a server. When `stop` is cancelled it turns unready, serves on for a while, and ends.
///
/// The order matters. First the Lease, then a list of the budgets: whoever opens a budget waits for every process that
/// could decide without knowing it, and finds them by their Leases.
///
/// # Errors
/// It cannot listen, or the API server does not take its Lease.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running> {
    // Whether a write was refused is for the protocol to know, at once.
    let client = Client::try_from(bounded(options.kubernetes)).context("cannot make a client")?;
    let (listener, address) = listen(options.listen).await?;
    let (admin_listener, admin) = listen(options.admin).await?;
    let place = options.place.unwrap_or_else(|| Place::Url(format!("https://{address}")));
    let names = place.names(&options.namespace)?;
    let certificates =
        Certificates::get(client.clone(), &options.namespace, options.certificates, names).await?;

    let name = members::unique_name();
    let expiry = options.claim_expiry;
    let members = Arc::new(Members::new(client.clone(), options.namespace.clone(), name.clone(), expiry));
    members.join().await?;

    let stored = Arc::new(Stored::default());
    let metrics = Arc::new(Metrics::default());
    let events = Events::start(client.clone(), name.clone(), stored.clone());
    let calls = Arc::new(Calls::new(client.clone(), stored.clone(), members.clone(), metrics.clone()));
    let (statuses, news) = mpsc::unbounded_channel();
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
    let settings = Settings { expiry, memory: expiry, ..Settings::new(name.as_str()) };
    let keeper = keeper::start(settings, options.gates, calls.clone(), outbox);
    let (held, is_held) = watch::channel(false);
    let (twins, adoption) = adoption::start(&client, is_held.clone());
    let reach = Reach::everything();
    let kruise = pubs::follow(client.clone(), options.serve_pub, &reach, None);
    let watches = feed::start(&client, &reach, &keeper, &stored, &options.namespace, &twins, kruise.clone());

    let election = Arc::new(Election::new(client.clone(), &options.namespace, HOLDER, &name));
    let writer = Writer {
        keeper: keeper.clone(),
        calls,
        stored,
        election: election.clone(),
        events: events.clone(),
        metrics: metrics.clone(),
    };
    let mut chores = JoinSet::new();
    chores.spawn(writer.run(news));
    chores.spawn(namespaces::keep(client.clone(), options.namespace.clone(), enforced, election.clone()));
    let (in_force, is_in_force) = watch::channel(false);
    let bundle = certificates.bundle();
    // Whoever decided it need not be told.
    if options.serve_pub == ServePub::Auto {
        chores.spawn(pubs::tell(kruise.clone(), is_held.clone(), events.clone()));
    }
    let propagates = options.propagate_owner_references;
    let owners = propagates.then(|| Owners::new(client.clone(), events.clone()));
    let asking = webhooks::Asking {
        client: client.clone(),
        written: options.webhooks,
        place,
        namespace: options.namespace,
        owners: propagates,
    };
    chores.spawn(asking.keep(bundle, is_held, in_force));
    chores.spawn(tell_holder(keeper.clone(), is_in_force));

    let stopping = Arc::new(AtomicBool::new(false));
    let face = Face {
        synced: is_synced,
        stale: is_stale,
        reach,
        stopping: stopping.clone(),
        members: members.clone(),
        keeper: keeper.clone(),
        metrics: metrics.clone(),
    };
    let current = members.clone();
    let desk =
        Desk::new(keeper.clone(), options.gates, events, metrics, kruise, move || current.is_current());
    let desk = desk.with_owners(owners);
    let closing = CancellationToken::new();
    let tls = certificates.shown().server_config()?;
    let told = stopping.clone();
    let router = admission::router(desk, move || told.load(Ordering::Relaxed));
    let serving = tokio::spawn(https::serve(listener, tls, router, closing.clone()));
    chores.spawn(admin::serve(admin_listener, admin::router(Arc::new(face)), CancellationToken::new()));
    let signer = election.clone();
    chores.spawn(async move { certificates.keep(&signer).await });
    info!(%address, %admin, name, "serving");

    let candidacy = election.stand(held, stop.clone());
    let (lingers, ending) = (options.lingers, closing.clone());
    tokio::spawn(async move {
        stop.cancelled().await;
        stopping.store(true, Ordering::Relaxed);
        info!(?lingers, "told to end");
        tokio::time::sleep(lingers).await;
        ending.cancel();
    });
    let task = tokio::spawn(async move {
        let outcome = members.stay(acknowledgements, &keeper, closing.clone()).await;
        closing.cancel();
        let _ = serving.await;
        let _ = candidacy.await;
        members.leave(keeper.remembers_nothing().await).await;
        drop(chores);
        adoption.abort();
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

/// The replica tends the budgets while this process is the holder and the API server asks us.
async fn tell_holder(keeper: Keeper, mut in_force: watch::Receiver<bool>) {
    let mut told = false;
    loop {
        let holds = *in_force.borrow_and_update();
        if holds != told {
            told = holds;
            keeper.tell(Event::Holder(holds)).await;
        }
        if in_force.changed().await.is_err() {
            return;
        }
    }
}

/// How the process shows itself to those who run it.
struct Face {
    synced: watch::Receiver<bool>,
    stale: watch::Receiver<Option<Duration>>,
    reach: Reach,
    stopping: Arc<AtomicBool>,
    members: Arc<Members>,
    keeper: Keeper,
    metrics: Arc<Metrics>,
}

impl Face {
    /// Which kinds cannot be read now, and why, for the end of a sentence.
    fn unreadable(&self) -> String {
        let kind = |(kind, failing): &(String, Option<Failing>)| {
            let Failing { since, why } = failing.as_ref()?;
            Some(format!("; {kind} cannot be read for {} s: {why}", since.elapsed().as_secs()))
        };
        self.reach.watched().iter().filter_map(kind).collect()
    }
}

impl admin::Shows for Face {
    fn unready(&self) -> Option<String> {
        if self.stopping.load(Ordering::Relaxed) {
            return Some("ending".to_owned());
        }
        if !*self.synced.borrow() {
            return Some(format!("not everything was seen yet{}", self.unreadable()));
        }
        if !self.members.is_current() {
            return Some("the Lease is not renewed".to_owned());
        }
        let silence = (*self.stale.borrow())?.as_secs();
        Some(format!("pods are stale: nothing was heard of them for {silence} s{}", self.unreadable()))
    }

    async fn metrics(&self) -> String {
        self.metrics.show(self.keeper.read().await, &self.reach.watched())
    }
}
