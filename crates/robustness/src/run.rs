//! One simulated run: a cluster with servers, applications, clients and faults, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_devcluster::actors::{
    ActorOptions, Actors, Identities, Timing, groups_of, install_leader_worker_sets,
};
use quorate_devcluster::apiserver::{self, Clock, Server};
use rand::seq::{IndexedRandom as _, SliceRandom as _};
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
use crate::slow_hook::SlowHook;
use crate::stories::{Reserved, Story, Storyteller};

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
    let stories = stories(seed);
    let apps = applications(&stories, &mut random);
    let slow_hook = SlowHook::start(&api, &admin, random.random()).await;
    for app in &apps {
        life::create(&admin, &app.workloads).await;
        life::create(&admin, &app.budgets).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;

    let (reserved, quiet) = (Reserved::default(), Reserved::default());
    let mut fork = || ChaCha8Rng::seed_from_u64(random.random());
    let disruptor = |number: usize, pause: Duration, random: ChaCha8Rng| Disruptor {
        http: Http::new(api.local_client_as(&format!("client-{number}"), &["system:authenticated"])),
        recorder: recorder.clone(),
        random,
        pause,
        quiet: quiet.clone(),
    };
    let living = |random: ChaCha8Rng| Life {
        apps: apps.clone(),
        admin: admin.clone(),
        actors: actors.clone(),
        recorder: recorder.clone(),
        random,
        nodes: nodes.clone(),
        reserved: reserved.clone(),
    };
    let collector = "system:serviceaccount:kube-system:pod-garbage-collector";
    let storyteller = |number: usize, random: ChaCha8Rng| Storyteller {
        api: api.clone(),
        servers: servers.clone(),
        admin: admin.clone(),
        collector: Http::new(api.local_client_as(collector, &["system:serviceaccounts"])),
        client: Http::new(api.local_client_as(&format!("client-story-{number}"), &["system:authenticated"])),
        recorder: recorder.clone(),
        slow_hook: slow_hook.clone(),
        apps: apps.clone(),
        reserved: reserved.clone(),
        quiet: quiet.clone(),
        random,
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
        // Two faults at once seldom leave a story what it needs.
        pause: Duration::from_secs(if stories.is_empty() { 15 } else { 90 }),
        reserved: reserved.clone(),
    };
    let active = chaos.active.clone();
    tasks.spawn(chaos.run());
    for number in 0..2.min(stories.len()) {
        tasks.spawn(storyteller(number, fork()).run(stories.clone()));
    }
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

/// The stories of a run. A third of the runs has none: faults come more often there.
pub fn stories(seed: u64) -> Vec<Story> {
    let random = &mut ChaCha8Rng::seed_from_u64(!seed);
    if random.random_bool(0.35) {
        return Vec::new();
    }
    let mut stories = Story::ALL.to_vec();
    stories.shuffle(random);
    stories.truncate(4);
    stories
}

/// Some applications of different kinds, in two namespaces: those that the stories need, and others.
fn applications(stories: &[Story], random: &mut ChaCha8Rng) -> Vec<App> {
    let mut kinds = Kind::ALL.to_vec();
    kinds.shuffle(random);
    let mut chosen: Vec<Kind> = Vec::new();
    for story in stories {
        if !story.kinds().iter().any(|kind| chosen.contains(kind)) {
            chosen.extend(story.kinds().choose(random));
        }
    }
    let count = random.random_range(3..=5).max(chosen.len());
    kinds.retain(|kind| !chosen.contains(kind));
    chosen.extend(kinds);
    chosen.truncate(count);
    let mut apps = Vec::new();
    for (number, kind) in chosen.into_iter().enumerate() {
        let namespace = format!("apps-{}", random.random_range(0..2));
        apps.push(App::random(kind, &namespace, &format!("app{number}"), random));
    }
    apps
}
