//! One simulated run: a cluster with servers, applications, clients and faults, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_devcluster::actors::{
    ActorOptions, Actors, Identities, Timing, groups_of, install_leader_worker_sets,
};
use quorate_devcluster::apiserver::{self, Clock, Server};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::task::JoinSet;

use crate::apps::{App, Kind};
use crate::chaos::Chaos;
use crate::history::History;
use crate::http::Http;
use crate::life::{self, Life};
use crate::recorder::Recorder;
use crate::requests::Disruptor;
use crate::servers::{OWN, Servers};

/// The shape of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How long applications live and faults happen, in simulated time.
    pub life: Duration,
    /// How long the run goes on without faults, in simulated time.
    pub recovery: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self { life: Duration::from_secs(600), recovery: Duration::from_secs(420) }
    }
}

/// Simulates a run.
///
/// # Errors
/// The cluster does not come up.
pub async fn simulate(seed: u64, shape: Shape) -> Result<History> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let recorder = Arc::new(Recorder::default());
    let options = apiserver::Options {
        clock: Clock::system(),
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
        admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    }
    let timing = Timing { start: Duration::from_secs(2), termination: Duration::from_secs(1) };
    let actors = Arc::new(Actors::start(&identities, &ActorOptions { timing, ..ActorOptions::all() }));
    let nodes: Vec<String> = (0..random.random_range(3..7)).map(|number| format!("node-{number}")).collect();
    for node in &nodes {
        actors.nodes().add(node).await?;
    }
    for namespace in [OWN, "apps-0", "apps-1"] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        admin.post("/api/v1/namespaces", &object).await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        admin.post(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account).await;
    }

    let count = random.random_range(1..=3);
    let servers = Arc::new(Servers::new(api.clone(), recorder.clone(), admin.clone(), count));
    let mut background = JoinSet::new();
    background.spawn(servers.clone().publish());
    for place in 0..count {
        servers.start(place).await?;
    }
    let apps = applications(&mut random);
    for app in &apps {
        life::create(&admin, &app.workloads).await;
        life::create(&admin, &app.budgets).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;

    let mut fork = || ChaCha8Rng::seed_from_u64(random.random());
    let disruptor = |number: usize, pause: Duration, random: ChaCha8Rng| Disruptor {
        http: Http::new(api.local_client_as(&format!("client-{number}"), &["system:authenticated"])),
        recorder: recorder.clone(),
        random,
        pause,
    };
    let living = |random: ChaCha8Rng| Life {
        apps: apps.clone(),
        admin: admin.clone(),
        actors: actors.clone(),
        recorder: recorder.clone(),
        random,
        nodes: nodes.clone(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(living(fork()).run(false));
    for number in 0..4 {
        tasks.spawn(disruptor(number, Duration::from_millis(1500), fork()).run());
    }
    let chaos = Chaos {
        api: api.clone(),
        servers: servers.clone(),
        admin: admin.clone(),
        apps: apps.clone(),
        random: fork(),
        longest: Duration::from_secs(240),
        active: Arc::new(tokio::sync::Semaphore::new(2)),
    };
    let active = chaos.active.clone();
    tasks.spawn(chaos.run());
    tokio::time::sleep(shape.life).await;
    tasks.shutdown().await;

    // All faults end, all servers run, and the applications are what they were meant to be.
    let _ended = active.acquire_many(2).await?;
    for place in 0..count {
        servers.start(place).await?;
    }
    for node in &nodes {
        let _ = actors.nodes().revive(node).await;
        admin.merge(&format!("/api/v1/nodes/{node}"), &json!({"spec": {"unschedulable": null}})).await;
    }
    for app in &apps {
        life::create(&admin, &app.workloads).await;
        life::create(&admin, &app.budgets).await;
    }
    let mut calm = JoinSet::new();
    calm.spawn(disruptor(9, Duration::from_secs(8), fork()).run());
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

/// Some applications of different kinds, in two namespaces.
fn applications(random: &mut ChaCha8Rng) -> Vec<App> {
    let mut kinds = Kind::ALL.to_vec();
    let mut apps = Vec::new();
    for number in 0..random.random_range(3..=5) {
        let kind = kinds.swap_remove(random.random_range(0..kinds.len()));
        let namespace = format!("apps-{}", random.random_range(0..2));
        apps.push(App::random(kind, &namespace, &format!("app{number}"), random));
    }
    apps
}
