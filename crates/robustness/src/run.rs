//! One simulated run: a cluster with servers, applications, clients and faults, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_devcluster::actors::{
    ActorOptions, Actors, Identities, Timing, custom_set_definitions, groups_of, install_leader_worker_sets,
};
use quorate_devcluster::apiserver::{self, Clock, Server, WorkloadApi};
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::agents::{Agents, Orders, SharedOrders};
use crate::apps::{App, Kind};
use crate::chaos::Chaos;
use crate::history::History;
use crate::http::Http;
use crate::life::{self, Life};
use crate::movers::Mover;
use crate::provocations::{self, FAULTS_AT_ONCE, Provocation, Provoker, Reserved, dedicated_apps};
use crate::recorder::Recorder;
use crate::requests::Disruptor;
use crate::servers::{OWN, Servers};
use crate::slow_hook::{self, SlowHook};
use crate::work;

/// The path of CustomResourceDefinitions.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The shape of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How long applications live and faults happen, in simulated time.
    pub life: Duration,
    /// How long the run goes on without faults, in simulated time.
    pub recovery: Duration,
    /// Whether it has all mixed applications instead of some of all kinds, and no provocations.
    pub mixed: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { life: Duration::from_secs(600), recovery: Duration::from_secs(420), mixed: false }
    }
}

/// Simulates a run.
///
/// # Errors
/// The cluster does not come up.
pub async fn simulate(seed: u64, shape: Shape) -> Result<History> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let recorder = Arc::new(Recorder::default());
    let workload_api = if random.random_bool(0.5) { WorkloadApi::V1Alpha2 } else { WorkloadApi::V1Beta1 };
    let options = apiserver::Options {
        clock: Clock::system(),
        workload_api,
        observer: Some(recorder.clone()),
        // A real API server sends bookmarks about once a minute.
        bookmark_every: Duration::from_secs(random.random_range(10..60)),
        ..apiserver::Options::default()
    };
    let api = Arc::new(Server::start(options).await?);
    let client_of = api.clone();
    let identities = Identities::new(move |user| {
        let groups = groups_of(user);
        client_of.local_client_as(user, &groups.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let admin_client = api.local_client_as("admin", &["system:masters"]);
    let admin = Http::new(admin_client.clone());
    install_leader_worker_sets(&admin_client).await.context("LeaderWorkerSets")?;
    for definition in quorate_api::crds::all() {
        let definition = serde_json::to_value(&definition)?;
        admin.post(DEFINITIONS, &definition).await;
    }
    for definition in custom_set_definitions() {
        admin.post(DEFINITIONS, &definition).await;
    }
    let timing = Timing { start: Duration::from_secs(2), termination: Duration::from_secs(1) };
    let actors = Arc::new(Actors::start(
        &identities,
        &ActorOptions { timing, custom_sets: true, ..ActorOptions::all() },
    ));
    let nodes: Vec<String> = (0..random.random_range(3..7)).map(|number| format!("node-{number}")).collect();
    for node in &nodes {
        actors.nodes().add(node).await?;
    }
    let provocations = if shape.mixed { Vec::new() } else { provocations::of_seed(seed) };
    if !provocations.is_empty() {
        for node in dedicated_apps::NODES {
            actors.nodes().add_like(node, &dedicated_apps::node()).await?;
        }
    }
    for namespace in [OWN, "apps-0", "apps-1"].iter().chain(&dedicated_apps::NAMESPACES) {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        admin.post("/api/v1/namespaces", &object).await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        admin.post(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account).await;
    }

    let least = provocations.iter().map(|provocation| provocation.servers()).max().unwrap_or(1);
    let count = random.random_range(least..=3);
    let servers = Arc::new(Servers::new(api.clone(), recorder.clone(), admin.clone(), count));
    let mut background = JoinSet::new();
    background.spawn(servers.clone().publish());
    for place in 0..count {
        servers.start(place).await?;
    }
    let kinds = if shape.mixed { mixed() } else { some_kinds(&provocations, &mut random) };
    let apps = applications(kinds, workload_api, &mut random);
    let dedicated =
        if provocations.is_empty() { Vec::new() } else { dedicated_apps::apps(workload_api, &mut random) };
    let slow_hook = SlowHook::start(&api, &admin, random.random()).await;
    for app in apps.iter().chain(&dedicated) {
        life::create(&admin, &app.workloads).await;
        life::create(&admin, &app.budgets).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;

    let (reserved, quiet) = (Reserved::default(), Reserved::default());
    quiet.lock().extend(dedicated.iter().map(|app| app.name.clone()));
    let faults = Arc::new(Semaphore::new(FAULTS_AT_ONCE as usize));
    let mut fork = || ChaCha8Rng::seed_from_u64(random.random());
    let disruptor = |number: usize, pause: Duration, random: ChaCha8Rng| Disruptor {
        http: Http::new(api.local_client_as(&format!("client-{number}"), &["system:authenticated"])),
        recorder: recorder.clone(),
        random,
        pause,
        quiet: quiet.clone(),
    };
    let mover = |number: usize, pause: Duration, random: ChaCha8Rng| Mover {
        http: Http::new(api.local_client_as(&format!("client-mover-{number}"), &["system:authenticated"])),
        recorder: recorder.clone(),
        random,
        pause,
        reserved: reserved.clone(),
    };
    let collector = "system:serviceaccount:kube-system:pod-garbage-collector";
    let collector = Http::new(api.local_client_as(collector, &["system:serviceaccounts"]));
    let living = |random: ChaCha8Rng| Life {
        apps: apps.clone(),
        admin: admin.clone(),
        collector: collector.clone(),
        actors: actors.clone(),
        recorder: recorder.clone(),
        random,
        nodes: nodes.clone(),
        reserved: reserved.clone(),
    };
    let account = format!("system:serviceaccount:{OWN}:quorate-agent");
    let orders = SharedOrders::default();
    let agents = |random: ChaCha8Rng| Agents {
        http: Http::new(api.local_client_as(&account, &["system:serviceaccounts"])),
        recorder: recorder.clone(),
        random,
        nodes: nodes.clone(),
        dedicated_nodes: dedicated_apps::NODES.map(str::to_owned).into(),
        orders: orders.clone(),
    };
    let provoker = |number: usize, random: ChaCha8Rng| Provoker {
        api: api.clone(),
        servers: servers.clone(),
        actors: actors.clone(),
        admin: admin.clone(),
        collector: collector.clone(),
        client: Http::new(api.local_client_as(&format!("client-story-{number}"), &["system:authenticated"])),
        recorder: recorder.clone(),
        slow_hook: slow_hook.clone(),
        apps: apps.iter().chain(&dedicated).cloned().collect(),
        reserved: reserved.clone(),
        quiet: quiet.clone(),
        faults: faults.clone(),
        orders: orders.clone(),
        random,
    };
    background.spawn(work::keep_bare_pods(apps.clone(), admin.clone(), recorder.clone(), fork()));
    let mut tasks = JoinSet::new();
    tasks.spawn(living(fork()).run(false));
    tasks.spawn(agents(fork()).run(false));
    for number in 0..4 {
        tasks.spawn(disruptor(number, Duration::from_millis(1500), fork()).run());
    }
    tasks.spawn(mover(0, Duration::from_secs(8), fork()).run());
    let chaos = Chaos {
        api: api.clone(),
        servers: servers.clone(),
        admin: admin.clone(),
        apps: apps.clone(),
        random: fork(),
        // Provocations wait for the faults that have begun, and have faults of their own.
        longest: Duration::from_secs(if provocations.is_empty() { 240 } else { 40 }),
        active: faults.clone(),
        pause: Duration::from_secs(if provocations.is_empty() { 15 } else { 60 }),
        reserved: reserved.clone(),
        kills: provocations.is_empty(),
    };
    tasks.spawn(chaos.run());
    let (calm, others): (Vec<Provocation>, Vec<Provocation>) =
        provocations.into_iter().partition(|provocation| provocation.needs_calm());
    for (number, provocations) in
        [calm, others].into_iter().enumerate().filter(|(_, provocations)| !provocations.is_empty())
    {
        tasks.spawn(provoker(number, fork()).repeat(provocations));
    }
    tokio::time::sleep(shape.life).await;
    tasks.shutdown().await;

    // All faults end, all servers run, and the applications are what they were meant to be.
    let _ended = faults.acquire_many(FAULTS_AT_ONCE).await?;
    *orders.lock() = Orders::default();
    for place in 0..count {
        servers.start(place).await?;
    }
    for node in &nodes {
        let _ = actors.nodes().revive(node).await;
        admin.merge(&format!("/api/v1/nodes/{node}"), &json!({"spec": {"unschedulable": null}})).await;
    }
    for app in apps.iter().chain(&dedicated) {
        life::create(&admin, &app.workloads).await;
        life::create(&admin, &app.budgets).await;
    }
    work::fail_singles(&apps, &actors, &recorder);
    for pod in
        recorder.pods().iter().filter(|pod| dedicated_apps::NAMESPACES.contains(&pod.namespace.as_str()))
    {
        let _ = actors.kubelets().set_ready(&pod.namespace, &pod.name, true);
    }
    // The claims of one application must end by themselves: no client evicts its pods after this.
    let left_alone = dedicated.choose(&mut fork()).cloned();
    quiet.lock().retain(|name| left_alone.as_ref().is_some_and(|app| app.name == *name));
    let mut calm = JoinSet::new();
    calm.spawn(agents(fork()).run(true));
    calm.spawn(disruptor(9, Duration::from_secs(8), fork()).run());
    calm.spawn(mover(1, Duration::from_secs(20), fork()).run());
    if let Some(app) = left_alone {
        let client = Http::new(api.local_client_as("client-last", &["system:authenticated"]));
        calm.spawn(leave_claims(app, client, recorder.clone(), slow_hook.clone()));
    }
    tokio::time::sleep(shape.recovery).await;
    calm.shutdown().await;
    background.shutdown().await;
    for (place, why) in servers.unready().iter().enumerate() {
        if let Some(why) = why {
            tracing::warn!(place, why, "a server is not ready at the end");
        }
    }
    Ok(recorder.finish())
}

/// Evicts pods of an application until a budget has an unused claim: another webhook refuses the eviction.
async fn leave_claims(app: App, client: Http, recorder: Arc<Recorder>, hook: SlowHook) {
    // A budget may be closed for a while after a server was killed.
    for _ in 0..40 {
        let mut pods = recorder.pods();
        pods.retain(|pod| pod.namespace == app.namespace && pod.name.starts_with(&app.name));
        for pod in pods {
            let refused = hook.refuse(&pod.namespace, &pod.name);
            let answer = provocations::evict(&client, &pod, &json!({})).await;
            drop(refused);
            if answer.body["message"].as_str().is_some_and(|text| text.contains(slow_hook::NAME)) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// The kinds of all mixed applications.
fn mixed() -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.is_mixed()).collect()
}

/// Some kinds of applications: those that the provocations need, others, and some mixed ones.
fn some_kinds(provocations: &[Provocation], random: &mut ChaCha8Rng) -> Vec<Kind> {
    let mut mixed = mixed();
    let mut kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| !kind.is_mixed()).collect();
    kinds.shuffle(random);
    mixed.shuffle(random);
    let mut chosen: Vec<Kind> = Vec::new();
    for provocation in provocations.iter().filter(|provocation| !provocation.needs_dedicated_apps()) {
        if !provocation.kinds().iter().any(|kind| chosen.contains(kind)) {
            chosen.extend(provocation.kinds().choose(random));
        }
    }
    let count = random.random_range(3..=4).max(chosen.len());
    kinds.retain(|kind| !chosen.contains(kind));
    chosen.extend(kinds);
    chosen.truncate(count);
    chosen.extend(mixed.into_iter().take(2));
    chosen
}

/// Applications of these kinds, in two namespaces.
fn applications(kinds: Vec<Kind>, api: WorkloadApi, random: &mut ChaCha8Rng) -> Vec<App> {
    let mut apps = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        let namespace = format!("apps-{}", random.random_range(0..2));
        apps.push(App::random(kind, &namespace, &format!("app{number}"), api, random));
    }
    apps
}
