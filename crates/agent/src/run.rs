//! The lifecycle of one agent.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::Client;
use parking_lot::Mutex;
use quorate_api::slim;
use quorate_kit::client::bounded;
use quorate_kit::watch::{self, WatchEvent, WatchSource};
use quorate_kit::{Plain, admin};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::{Now, WallClock};
use crate::container_probe::ProbeResult;
use crate::heartbeat::{self, Heartbeat};
use crate::manager::{
    ConditionWrite, DueProbe, LEASE_DURATION, LeaseAction, PatchOutcome, ProbeId, ProbeManager, RENEW_EVERY,
};
use crate::metrics::Metrics;
use crate::patch::patch_condition;
use crate::pod_view::PodView;
use crate::prober::Prober;

/// Longest sleep of the main loop. A gap between two ticks that is much longer shows that the process was stopped.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Maximum number of concurrent condition writes.
const MAX_WRITES: usize = 16;

/// Maximum number of concurrent connections to pods, if the file descriptor limit allows that many.
const MAX_CONNECTIONS: usize = 4096;

/// File descriptors reserved for everything but connections to pods.
const RESERVED_FDS: u64 = 256;

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server, and the agent's credentials.
    pub kubernetes: kube::Config,
    /// The node whose pods are probed.
    pub node: String,
    /// The namespace of the agent's Lease.
    pub namespace: String,
    /// The socket of the container runtime. Without it, exec probes fail.
    pub cri_socket: Option<PathBuf>,
    /// Copy Ready into `Disruptable` on pods without a probe.
    pub mirror_ready: bool,
    /// Listen address of the admin port.
    pub admin: SocketAddr,
    /// Whether the feature `DisruptionProbe` is on. If not, the agent probes no pods.
    pub enabled: bool,
    /// The wall clock, which may jump.
    pub time_of_day: WallClock,
}

/// A running agent.
#[derive(Debug)]
pub struct Running {
    /// Address of the admin port.
    pub admin: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// Waits until the agent has stopped.
    ///
    /// # Errors
    /// The agent's task panicked or was aborted.
    pub async fn ended(self) -> Result<()> {
        self.task.await.context("the agent's task failed")
    }
}

/// Starts an agent; it stops when `stop` is cancelled.
///
/// # Errors
/// The client, the listener or the TLS configuration cannot be created.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running> {
    // The client does not retry: the ProbeManager retries a failed write, with the state at that time.
    let client = Client::try_from(bounded(options.kubernetes)).context("cannot create a client")?;
    let address = options.admin;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let admin = listener.local_addr()?;
    let connections = max_connections();
    let prober = Prober::new(connections, options.cri_socket)?;
    let status = Arc::new(AgentStatus::default());
    let serving = tokio::spawn(admin::serve(listener, admin::router(status.clone()), stop.clone()));
    info!(%admin, node = options.node, places = connections, "starting to probe");

    let (events, seen) = mpsc::channel(64);
    let watching = options.enabled.then(|| {
        let source = WatchSource::<slim::Pod>::all(client.clone())
            .read_by(PodView::read)
            .in_field(format!("spec.nodeName={}", options.node));
        watch::run(source, move |event| {
            let events = events.clone();
            async move {
                let _ = events.send(event).await;
            }
        })
    });
    if !options.enabled {
        info!("the feature DisruptionProbe is off: the agent probes no pods");
        status.state.lock().listed = true;
    }
    let clock = Clock::new(options.time_of_day);
    let agent = Agent {
        manager: ProbeManager::new(options.mirror_ready, clock.now()),
        clock,
        prober,
        heartbeat: Heartbeat::new(client.clone(), &options.namespace, &options.node),
        client,
        status,
        probing: JoinSet::new(),
        writing: JoinSet::new(),
        renewing: JoinSet::new(),
        renew_at: Duration::ZERO,
        leased: true,
    };
    let task = tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // Neither the watch nor the agent's loop ends by itself.
            () = async { if let Some(watching) = watching { watching.await; } std::future::pending().await } => {}
            () = agent.work(seen) => {}
        }
        // The Lease stays: the next agent on this node takes it over before it expires.
        let _ = serving.await;
    });
    Ok(Running { admin, task })
}

/// Number of connections that the file descriptor limit allows. Raises the soft limit to the hard limit first.
fn max_connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    let now = match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(_) => before,
    };
    let free = now.unwrap_or(u64::MAX).saturating_sub(RESERVED_FDS).max(8);
    usize::try_from(free).unwrap_or(MAX_CONNECTIONS).min(MAX_CONNECTIONS)
}

struct Clock {
    start: Instant,
    day: WallClock,
}

impl Clock {
    fn new(day: WallClock) -> Self {
        Self { start: Instant::now(), day }
    }

    fn now(&self) -> Now {
        Now { steady: self.start.elapsed(), wall: self.day.milliseconds() }
    }
}

/// All state of the agent, owned by one task.
struct Agent {
    manager: ProbeManager,
    clock: Clock,
    prober: Prober,
    heartbeat: Heartbeat,
    client: Client,
    status: Arc<AgentStatus>,
    probing: JoinSet<(ProbeId, ProbeResult)>,
    writing: JoinSet<(ConditionWrite, PatchOutcome)>,
    renewing: JoinSet<bool>,
    /// When the next Lease renewal is due.
    renew_at: Duration,
    /// A Lease of this node may exist, from this agent or a previous one.
    leased: bool,
}

impl Agent {
    async fn work(mut self, mut seen: mpsc::Receiver<WatchEvent<PodView>>) {
        loop {
            let now = self.clock.now();
            self.manager.tick(now);
            for due in self.manager.due(now) {
                self.probe(due);
            }
            for write in self.manager.writes(MAX_WRITES.saturating_sub(self.writing.len()), now) {
                self.write(write);
            }
            self.renew_lease(now);
            let wake = self.manager.next().unwrap_or(Duration::MAX).min(now.steady + MAX_SLEEP);
            let wake = tokio::time::Instant::from_std(self.clock.start + wake);
            tokio::select! {
                Some(event) = seen.recv() => {
                    let now = self.clock.now();
                    self.manager.tick(now);
                    self.take(event, now);
                    self.show();
                }
                Some(Ok((id, answer))) = self.probing.join_next() => {
                    let now = self.clock.now();
                    self.manager.tick(now);
                    self.manager.answer(id, answer, now);
                }
                Some(Ok((write, wrote))) = self.writing.join_next() => {
                    let now = self.clock.now();
                    self.manager.tick(now);
                    self.manager.wrote(write, wrote, now);
                }
                Some(Ok(renewed)) = self.renewing.join_next() => self.lease_renewed(renewed),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn take(&mut self, event: WatchEvent<PodView>, now: Now) {
        match event {
            WatchEvent::Listed(listed) => {
                listed.unreadable.iter().for_each(|why| warn!(%why, "cannot read a pod"));
                let unreadable: BTreeSet<String> =
                    listed.unreadable.into_iter().map(|why| why.identity.uid).collect();
                self.manager.list(listed.objects, &unreadable, now);
            }
            WatchEvent::Applied(pod) => self.manager.observe(pod, now),
            WatchEvent::Deleted(pod) => self.manager.forget(&pod.uid),
            WatchEvent::Unreadable(why) if why.deleted => self.manager.forget(&why.identity.uid),
            // The agent keeps probing the last readable version of the pod.
            WatchEvent::Unreadable(why) => warn!(%why, "cannot read a pod"),
            WatchEvent::Bookmark(_) => {}
        }
    }

    fn probe(&mut self, due: DueProbe) {
        let (prober, status) = (self.prober.clone(), self.status.clone());
        self.probing.spawn(async move {
            let start = Instant::now();
            let answer = prober.probe(&due.request, due.hangs).await;
            status.metrics.probed(due.kind, &answer, start.elapsed());
            (due.id, answer)
        });
    }

    fn write(&mut self, write: ConditionWrite) {
        let (client, status) = (self.client.clone(), self.status.clone());
        self.writing.spawn(async move {
            let wrote = patch_condition(client, &write).await;
            status.metrics.wrote(wrote);
            (write, wrote)
        });
    }

    /// Renews the Lease if that is due, or deletes it if no pod is probed.
    fn renew_lease(&mut self, now: Now) {
        if now.steady < self.renew_at || !self.renewing.is_empty() || !self.manager.is_listed() {
            return;
        }
        let heartbeat = self.heartbeat.clone();
        match self.manager.lease_action(now) {
            LeaseAction::Renew(began) => {
                self.leased = true;
                self.renew_at = now.steady + RENEW_EVERY;
                self.renewing.spawn(async move {
                    match tokio::time::timeout(heartbeat::TIMEOUT, heartbeat.renew(began, now.wall)).await {
                        Ok(Ok(())) => return true,
                        Ok(Err(error)) => warn!(error = %Plain(&error), "cannot renew the Lease"),
                        Err(_) => warn!("cannot renew the Lease: no answer"),
                    }
                    false
                });
            }
            LeaseAction::Hold => self.renew_at = now.steady + MAX_SLEEP / 4,
            LeaseAction::Idle if self.leased => {
                self.leased = false;
                self.status.state.lock().renewed = None;
                self.renewing.spawn(async move {
                    let ended = tokio::time::timeout(heartbeat::TIMEOUT, heartbeat.end()).await;
                    if let Ok(Err(error)) = ended {
                        // It expires by itself.
                        info!(error = %Plain(&error), "cannot delete the Lease");
                    }
                    false
                });
            }
            LeaseAction::Idle => {}
        }
    }

    fn lease_renewed(&mut self, renewed: bool) {
        if renewed {
            self.status.state.lock().renewed = Some(Instant::now());
        } else if self.leased {
            self.renew_at = self.clock.now().steady + MAX_SLEEP;
        }
    }

    fn show(&self) {
        let probed = self.manager.probed();
        self.status.metrics.pods(probed);
        let mut state = self.status.state.lock();
        state.listed |= self.manager.is_listed();
        state.probes = probed > 0;
    }
}

/// Readiness and metrics for the admin port.
#[derive(Default)]
struct AgentStatus {
    metrics: Metrics,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listed: bool,
    probes: bool,
    renewed: Option<Instant>,
}

impl admin::ProcessStatus for AgentStatus {
    fn unready(&self) -> Option<String> {
        let state = self.state.lock();
        let why = if !state.listed {
            "the pods of the node are not listed yet"
        } else if state.probes && state.renewed.is_none_or(|at| at.elapsed() > LEASE_DURATION) {
            "the Lease is not renewed"
        } else {
            return None;
        };
        Some(why.to_owned())
    }

    async fn metrics(&self) -> String {
        let renewed = self.state.lock().renewed;
        self.metrics.show(renewed.map_or(Duration::ZERO, |at| at.elapsed()))
    }
}
