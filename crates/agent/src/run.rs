//! One agent, from its start to its end.

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
use quorate_kit::watch::{self, Event, Source};
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
    ConditionWrite, DueProbe, LEASE_DURATION, LeaseAction, ProbeId, ProbeManager, RENEW_EVERY, WriteOutcome,
};
use crate::metrics::Metrics;
use crate::patch::patch_condition;
use crate::pod_view::PodView;
use crate::prober::Prober;

/// The agent looks up at least this often: it is how it notices that it was stopped.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Conditions that are written at the same time.
const WRITES: usize = 16;

/// Connections to pods at the same time, where the system allows as many.
const PLACES: usize = 4096;

/// File descriptors for everything else.
const OTHERS: u64 = 256;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server, and who we are there.
    pub kubernetes: kube::Config,
    /// The node whose pods are probed.
    pub node: String,
    /// The namespace of our own objects.
    pub namespace: String,
    /// The socket of the container runtime. Without it no commands are run in containers.
    pub cri_socket: Option<PathBuf>,
    /// Copy Ready into `Disruptable` on pods without a probe.
    pub mirror_ready: bool,
    /// Where to listen for those who run the process.
    pub admin: SocketAddr,
    /// Whether anything is probed at all.
    pub enabled: bool,
    /// The clock that anybody may set.
    pub time_of_day: WallClock,
}

/// An agent at work.
#[derive(Debug)]
pub struct Running {
    /// Where it tells how it does.
    pub admin: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end because it was told to.
    pub async fn ended(self) -> Result<()> {
        self.task.await.context("the agent's task broke off")
    }
}

/// Starts an agent; it ends when `stop` is cancelled.
///
/// # Errors
/// It cannot listen.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running> {
    // What was not written is tried again by the ward, with what is known then.
    let client = Client::try_from(bounded(options.kubernetes)).context("cannot make a client")?;
    let address = options.admin;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let admin = listener.local_addr()?;
    let places = places();
    let prober = Prober::new(places, options.cri_socket)?;
    let status = Arc::new(AgentStatus::default());
    let serving = tokio::spawn(admin::serve(listener, admin::router(status.clone()), stop.clone()));
    info!(%admin, node = options.node, places, "probing");

    let (events, seen) = mpsc::channel(64);
    let watching = options.enabled.then(|| {
        let source = Source::<slim::Pod>::all(client.clone())
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
        info!("the feature DisruptionProbe is off: nothing is probed");
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
        asking: JoinSet::new(),
        writing: JoinSet::new(),
        beating: JoinSet::new(),
        beats_at: Duration::ZERO,
        leased: true,
    };
    let task = tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // Neither ends by itself.
            () = async { if let Some(watching) = watching { watching.await; } std::future::pending().await } => {}
            () = agent.work(seen) => {}
        }
        // The Lease stays: whoever comes next takes it over before it runs out.
        let _ = serving.await;
    });
    Ok(Running { admin, task })
}

/// As many places for connections as the system gives us file descriptors, after asking for all it may give.
fn places() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    let now = match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(_) => before,
    };
    let free = now.unwrap_or(u64::MAX).saturating_sub(OTHERS).max(8);
    usize::try_from(free).unwrap_or(PLACES).min(PLACES)
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

/// Everything that the agent does; one task owns it.
struct Agent {
    manager: ProbeManager,
    clock: Clock,
    prober: Prober,
    heartbeat: Heartbeat,
    client: Client,
    status: Arc<AgentStatus>,
    asking: JoinSet<(ProbeId, ProbeResult)>,
    writing: JoinSet<(ConditionWrite, WriteOutcome)>,
    beating: JoinSet<bool>,
    /// When the Lease is to be renewed next.
    beats_at: Duration,
    /// There may be a Lease of this node, by us or by one before us.
    leased: bool,
}

impl Agent {
    async fn work(mut self, mut seen: mpsc::Receiver<Event<PodView>>) {
        loop {
            let now = self.clock.now();
            self.manager.tick(now);
            for ask in self.manager.due(now) {
                self.ask(ask);
            }
            for write in self.manager.writes(WRITES.saturating_sub(self.writing.len()), now) {
                self.write(write);
            }
            self.beat(now);
            let wake = self.manager.next().unwrap_or(Duration::MAX).min(now.steady + LOOK_UP);
            let wake = tokio::time::Instant::from_std(self.clock.start + wake);
            tokio::select! {
                Some(event) = seen.recv() => {
                    let now = self.clock.now();
                    self.manager.tick(now);
                    self.take(event, now);
                    self.show();
                }
                Some(Ok((id, answer))) = self.asking.join_next() => {
                    let now = self.clock.now();
                    self.manager.tick(now);
                    self.manager.answer(id, answer, now);
                }
                Some(Ok((write, wrote))) = self.writing.join_next() => {
                    let now = self.clock.now();
                    self.manager.tick(now);
                    self.manager.wrote(write, wrote, now);
                }
                Some(Ok(renewed)) = self.beating.join_next() => self.beaten(renewed),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn take(&mut self, event: Event<PodView>, now: Now) {
        match event {
            Event::Listed(listed) => {
                listed.unreadable.iter().for_each(|why| warn!(%why, "a pod cannot be read"));
                let unreadable: BTreeSet<String> =
                    listed.unreadable.into_iter().map(|why| why.identity.uid).collect();
                self.manager.list(listed.objects, &unreadable, now);
            }
            Event::Applied(pod) => self.manager.observe(pod, now),
            Event::Deleted(pod) => self.manager.forget(&pod.uid),
            Event::Unreadable(why) if why.deleted => self.manager.forget(&why.identity.uid),
            // It goes on being probed as it was last seen.
            Event::Unreadable(why) => warn!(%why, "a pod cannot be read"),
            Event::Bookmark(_) => {}
        }
    }

    fn ask(&mut self, ask: DueProbe) {
        let (prober, status) = (self.prober.clone(), self.status.clone());
        self.asking.spawn(async move {
            let start = Instant::now();
            let answer = prober.ask(&ask.request, ask.hangs).await;
            status.metrics.probed(ask.kind, &answer, start.elapsed());
            (ask.id, answer)
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

    /// Renews the Lease if it is time, or takes it away.
    fn beat(&mut self, now: Now) {
        if now.steady < self.beats_at || !self.beating.is_empty() || !self.manager.is_listed() {
            return;
        }
        let heartbeat = self.heartbeat.clone();
        match self.manager.beat(now) {
            LeaseAction::Renew(began) => {
                self.leased = true;
                self.beats_at = now.steady + RENEW_EVERY;
                self.beating.spawn(async move {
                    match tokio::time::timeout(heartbeat::PATIENCE, heartbeat.renew(began, now.wall)).await {
                        Ok(Ok(())) => return true,
                        Ok(Err(error)) => warn!(error = %Plain(&error), "cannot renew the Lease"),
                        Err(_) => warn!("cannot renew the Lease: no answer"),
                    }
                    false
                });
            }
            LeaseAction::Hold => self.beats_at = now.steady + LOOK_UP / 4,
            LeaseAction::Idle if self.leased => {
                self.leased = false;
                self.status.state.lock().renewed = None;
                self.beating.spawn(async move {
                    let ended = tokio::time::timeout(heartbeat::PATIENCE, heartbeat.end()).await;
                    if let Ok(Err(error)) = ended {
                        // It runs out by itself.
                        info!(error = %Plain(&error), "cannot take the Lease away");
                    }
                    false
                });
            }
            LeaseAction::Idle => {}
        }
    }

    fn beaten(&mut self, renewed: bool) {
        if renewed {
            self.status.state.lock().renewed = Some(Instant::now());
        } else if self.leased {
            self.beats_at = self.clock.now().steady + LOOK_UP;
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

/// How the process shows itself to those who run it.
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
            "the pods of the node were not seen yet"
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
