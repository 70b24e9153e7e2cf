//! One run in real time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_devcluster::actors::{Actors, install_leader_worker_sets};
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::User;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::attacker;
use super::chart::{self, Chart};
use super::outages::{self, Outages};
use super::servers::{Processes, Settings};
pub use super::site::Cluster;
use super::site::Site;
use super::truth::Truth;
use crate::apps::{App, Kind};
use crate::chaos::Chaos;
use crate::checker;
use crate::fleet::Fleet as _;
use crate::history::History;
use crate::http::Http;
use crate::life::{self, Life};
use crate::provocations::Reserved;
use crate::recorder::Recorder;
use crate::requests::Disruptor;
use crate::verdict::Verdict;

/// The number of servers.
const SERVERS: usize = 3;

/// The number of clients that disrupt pods.
const CLIENTS: usize = 6;

/// The namespaces of the applications.
const NAMESPACES: [&str; 2] = ["apps-0", "apps-1"];

/// Longest time until everything runs.
const START: Duration = Duration::from_secs(120);

/// Longest time until everything is well after the last fault. The checker does not accept more than 240 s.
const RECOVERY: Duration = Duration::from_secs(270);

/// What a run is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of the schedule.
    pub seed: u64,
    /// The cluster.
    pub cluster: Cluster,
    /// The shipped program.
    pub program: PathBuf,
    /// Rule of the servers to leave out. The program must be a test build.
    pub without: Option<String>,
    /// How long applications live and faults happen.
    pub life: Duration,
    /// Whether the run goes on for the whole time in which everything must become well. Otherwise it ends as soon as
    /// everything is.
    pub long: bool,
    /// Folder for the history and the logs of the run.
    pub keep: Option<PathBuf>,
}

/// Makes a run, and judges it.
///
/// # Errors
/// The cluster does not come up, or cannot be recorded.
pub fn run(plan: &Plan) -> Result<Verdict> {
    let began = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (history, panics) = runtime.block_on(live(plan))?;
    if let Some(folder) = &plan.keep {
        let path = folder.join(format!("history-{}.jsonl", plan.seed));
        history.write(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let report = checker::check(&history);
    let stuck = report.stuck.iter().map(ToString::to_string);
    Ok(Verdict {
        seed: plan.seed,
        admissions: report.summary.admissions as u64,
        denials: report.summary.denials as u64,
        judged: report.summary.judged as u64,
        violations: report.violations.iter().map(ToString::to_string).collect(),
        stuck: stuck.chain(panics).collect(),
        fingerprint: history.fingerprint(),
        took: began.elapsed(),
    })
}

/// A run that has started.
struct Run {
    /// First, so that it ends before the cluster does.
    actors: Arc<Actors>,
    site: Arc<Site>,
    recorder: Arc<Recorder>,
    admin: Http,
    chart: Arc<Chart>,
    servers: Arc<Processes>,
    nodes: Vec<String>,
    apps: Vec<App>,
    random: ChaCha8Rng,
}

async fn live(plan: &Plan) -> Result<(History, Vec<String>)> {
    let recorder = Arc::new(Recorder::default());
    let site = Arc::new(Site::start(plan.cluster, recorder.clone()).await?);
    let truth = site.real().map(|plane| Truth::start(plane, recorder.clone())).transpose()?;
    let mut background = JoinSet::new();
    let mut run = Run::start(plan, site, recorder, &mut background).await?;
    run.faults(plan).await?;
    run.recover(plan).await?;
    background.shutdown().await;
    if let Some(folder) = &plan.keep {
        run.servers.keep_logs(&folder.join(format!("logs-{}", plan.seed)))?;
    }
    let panics = run.servers.end();
    let history = match truth {
        Some(truth) => truth.finish().await?,
        None => run.recorder.finish(),
    };
    Ok((history, panics))
}

impl Run {
    async fn start(
        plan: &Plan,
        site: Arc<Site>,
        recorder: Arc<Recorder>,
        background: &mut JoinSet<()>,
    ) -> Result<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
        let admin = site.http(&User::admin())?;
        install_leader_worker_sets(&site.client(&User::admin())?).await.context("LeaderWorkerSets")?;
        chart::served(&admin, "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets").await?;
        let chart = Arc::new(Chart::read()?);
        chart.install(&admin, site.real().is_some()).await?;
        let actors = Arc::new(site.actors()?);
        let nodes: Vec<String> =
            (0..random.random_range(4..8)).map(|number| format!("node-{number}")).collect();
        for node in &nodes {
            actors.nodes().add(node).await?;
        }
        for namespace in NAMESPACES {
            chart::create(
                &admin,
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            )
            .await?;
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": namespace}});
            chart::create(&admin, &account).await?;
        }
        let settings = Settings { program: plan.program.clone(), args: arguments(plan), count: SERVERS };
        let fork = ChaCha8Rng::seed_from_u64(random.random());
        let servers =
            Processes::new(site.clone(), recorder.clone(), admin.clone(), chart.clone(), settings, fork)?;
        let servers = Arc::new(servers);
        for place in 0..SERVERS {
            servers.start(place).await?;
        }
        background.spawn(servers.clone().publish());
        servers.until_ready(START).await?;
        let apps = applications(&mut random);
        let run = Self { site, recorder, admin, chart, servers, actors, nodes, apps, random };
        run.create().await;
        run.until_well(START).await;
        Ok(run)
    }

    /// Creates what is not there.
    async fn create(&self) {
        for app in &self.apps {
            life::create(&self.admin, &app.workloads).await;
            life::create(&self.admin, &app.budgets).await;
        }
    }

    fn fork(&mut self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.random.random())
    }

    fn client(&mut self, number: usize, pause: Duration) -> Result<Disruptor> {
        // On a real API server, clients need rights.
        let user = User::named(format!("client-{number}")).in_group("system:masters");
        let random = self.fork();
        let (http, recorder) = (self.site.http(&user)?, self.recorder.clone());
        Ok(Disruptor { http, recorder, random, pause, quiet: Reserved::default() })
    }

    /// Applications live, clients disrupt them, and faults happen.
    async fn faults(&mut self, plan: &Plan) -> Result<()> {
        let mut tasks = JoinSet::new();
        let life = Life {
            apps: self.apps.clone(),
            admin: self.admin.clone(),
            collector: self.site.http(&User::service_account("kube-system", "pod-garbage-collector"))?,
            actors: self.actors.clone(),
            recorder: self.recorder.clone(),
            random: self.fork(),
            nodes: self.nodes.clone(),
            reserved: Reserved::default(),
        };
        tasks.spawn(life.run(false));
        for number in 0..CLIENTS {
            tasks.spawn(self.client(number, Duration::from_millis(800))?.run());
        }
        tasks.spawn(attacker::attack(self.servers.clone(), self.fork()));
        let active = Arc::new(Semaphore::new(2));
        let longest = (plan.life / 4).clamp(Duration::from_secs(10), Duration::from_secs(120));
        let (random, apps) = (self.fork(), self.apps.clone());
        let (servers, admin) = (self.servers.clone(), self.admin.clone());
        match self.site.embedded() {
            Some(api) => {
                let api = api.clone();
                let chaos = Chaos {
                    api,
                    servers,
                    admin,
                    apps,
                    random,
                    longest,
                    active: active.clone(),
                    pause: Duration::from_secs(15),
                    reserved: Reserved::default(),
                    kills: true,
                };
                tasks.spawn(chaos.run());
            }
            None => {
                let (site, chart) = (self.site.clone(), self.chart.clone());
                let outages =
                    Outages { site, servers, admin, chart, apps, random, longest, active: active.clone() };
                tasks.spawn(outages.run());
            }
        }
        tokio::time::sleep(plan.life).await;
        tasks.shutdown().await;
        // A fault that has begun ends.
        drop(active.acquire_many(2).await?);
        Ok(())
    }

    /// All faults have ended, all servers run, and the applications are what they were meant to be.
    async fn recover(&mut self, plan: &Plan) -> Result<()> {
        let end = Instant::now() + RECOVERY;
        outages::bind(&self.admin, &self.chart).await;
        for place in 0..SERVERS {
            self.servers.start(place).await?;
        }
        for node in &self.nodes {
            let _ = self.actors.nodes().revive(node).await;
            self.admin
                .merge(&format!("/api/v1/nodes/{node}"), &json!({"spec": {"unschedulable": null}}))
                .await;
        }
        self.create().await;
        let mut calm = JoinSet::new();
        if plan.long {
            calm.spawn(self.client(CLIENTS, Duration::from_secs(4))?.run());
            tokio::time::sleep_until(end).await;
        } else {
            self.until_well(RECOVERY).await;
        }
        calm.shutdown().await;
        Ok(())
    }

    /// Waits until every budget is Enforced and has no claims, or until this time is over: then the checker says what
    /// is wrong.
    async fn until_well(&self, longest: Duration) {
        let end = Instant::now() + longest;
        while Instant::now() < end {
            if self.is_well().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        tracing::warn!("not every budget is Enforced and without claims");
    }

    async fn is_well(&self) -> bool {
        for namespace in NAMESPACES {
            for resource in [
                "policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets",
                "policy.kruise.io/v1alpha1/namespaces/{}/podunavailablebudgets",
            ] {
                let response = self.admin.get(&format!("/apis/{}", resource.replace("{}", namespace))).await;
                let Some(budgets) = response.body["items"].as_array() else { return false };
                if !budgets.iter().all(is_settled) {
                    return false;
                }
            }
        }
        true
    }
}

/// Whether a budget is Enforced and has no claims.
fn is_settled(budget: &Value) -> bool {
    let generation = &budget["metadata"]["generation"];
    let mut conditions = budget["status"]["conditions"].as_array().into_iter().flatten();
    let enforced = conditions.any(|condition| {
        condition["type"] == "Enforced"
            && condition["status"] == "True"
            && condition["observedGeneration"] == *generation
    });
    enforced && budget["status"]["claims"].as_object().is_none_or(|claims| claims.is_empty())
}

/// The arguments that differ from the chart's.
fn arguments(plan: &Plan) -> Vec<String> {
    let mut args = Vec::new();
    if !plan.long {
        // The shortest, because the run waits for it.
        args.push("--claim-expiry-seconds=40".to_owned());
    }
    args.extend(plan.without.as_ref().map(|rule| format!("--without={rule}")));
    args
}

/// An application of every kind that needs no simulation, in two namespaces.
fn applications(random: &mut ChaCha8Rng) -> Vec<App> {
    let mut apps = Vec::new();
    let kinds = Kind::ALL.into_iter().filter(|kind| !kind.is_only_simulated());
    for (number, kind) in kinds.enumerate() {
        let namespace = NAMESPACES[random.random_range(0..NAMESPACES.len())];
        apps.push(App::random(kind, namespace, &format!("app{number}"), WorkloadApi::Off, random));
    }
    apps
}
