//! Stories: sequences of events that chance alone seldom brings together.
//!
//! Each story prepares what one rule of the servers is there for: a fault that lasts longer than a view may be old, a change
//! behind it, and clients that disrupt the application all the while. The application of a story is left alone by
//! [`crate::life`]. All numbers in a story, and its application, are drawn from the seed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter, Server, WatchFault};
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::apps::{App, Kind, Manifest};
use crate::http::Http;
use crate::recorder::{Recorder, StoredPod};
use crate::servers::{OWN, Servers};
use crate::slow_hook::SlowHook;

/// The names of the applications that a story is about.
pub type Reserved = Arc<Mutex<BTreeSet<String>>>;

/// What a story is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// A workload is scaled up while no server can read its kind, and time goes by.
    StaleScale,
    /// All pods of one of several sources are gone for a long time.
    VanishedSource,
    /// The kind of a budget or of a group source is forbidden for a while.
    ForbiddenKind,
    /// Discovery omits the kind of a budget or of a group source for a while.
    HiddenKind,
    /// Pods are replaced by others of the same name behind a watch that is held, and clients require the new UIDs.
    Successors,
    /// Pods get owners that the servers have not seen.
    UnknownOwner,
    /// Groups that were surplus before become wanted behind a watch that is held.
    Surplus,
    /// Admitted requests wait in another webhook while a budget is created, and a server ends.
    Opening,
    /// A server starts while a budget is created.
    Newcomer,
    /// Requests by name wait in another webhook, and the name passes to another pod.
    SlowRequests,
    /// A budget covers other pods for a moment, and the same as before again, which one server does not see.
    Flip,
}

impl Story {
    /// All stories.
    pub const ALL: [Self; 11] = [
        Self::StaleScale,
        Self::VanishedSource,
        Self::ForbiddenKind,
        Self::HiddenKind,
        Self::Successors,
        Self::UnknownOwner,
        Self::Surplus,
        Self::Opening,
        Self::Newcomer,
        Self::SlowRequests,
        Self::Flip,
    ];

    /// The kinds of applications that it can be about.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::StaleScale => {
                &[Kind::Deployment, Kind::Target, Kind::StatefulSet, Kind::LeaderWorkerSet, Kind::Kruise]
            }
            Self::VanishedSource => &[Kind::TwoLeaderWorkerSets, Kind::Workload],
            Self::ForbiddenKind | Self::HiddenKind => &[Kind::Kruise],
            Self::Successors | Self::SlowRequests => {
                &[Kind::StatefulSet, Kind::LabelGroups, Kind::LeaderWorkerSet]
            }
            Self::UnknownOwner => &[Kind::Target],
            Self::Surplus => &[Kind::LeaderWorkerSet, Kind::Native],
            Self::Opening | Self::Newcomer | Self::Flip => {
                &[Kind::Deployment, Kind::StatefulSet, Kind::LabelGroups, Kind::LeaderWorkerSet]
            }
        }
    }
}

/// Makes stories happen.
#[derive(Clone)]
pub struct Storyteller {
    /// The API server.
    pub api: Arc<Server>,
    /// The servers.
    pub servers: Arc<Servers>,
    /// An administrator.
    pub admin: Http,
    /// The garbage collector, whose deletes always pass.
    pub collector: Http,
    /// A client.
    pub client: Http,
    /// Where it finds pods.
    pub recorder: Arc<Recorder>,
    /// Another webhook.
    pub slow_hook: SlowHook,
    /// The applications.
    pub apps: Vec<App>,
    /// The applications that a story is about.
    pub reserved: Reserved,
    /// The applications that no client disrupts for now.
    pub quiet: Reserved,
    /// What happens is drawn from here.
    pub random: ChaCha8Rng,
}

/// Marks an application as reserved, and the time as disturbed, while it lives.
struct Scene {
    reserved: Reserved,
    quiet: Reserved,
    app: String,
    recorder: Arc<Recorder>,
    from: Duration,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.reserved.lock().remove(&self.app);
        self.quiet.lock().remove(&self.app);
        self.recorder.fault(self.from);
    }
}

fn reads(request: &quorate_devcluster::apiserver::RequestInfo<'_>) -> bool {
    matches!(request.verb, "list" | "watch" | "get")
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

impl Storyteller {
    /// Tells these stories one after another, again and again, until it is dropped.
    pub async fn run(mut self, mut stories: Vec<Story>) {
        loop {
            stories.shuffle(&mut self.random);
            for story in &stories {
                let pause = self.random.random_range(500..5_000);
                sleep(Duration::from_millis(pause)).await;
                let free: Vec<App> = {
                    let reserved = self.reserved.lock();
                    let suits =
                        |app: &&App| story.kinds().contains(&app.kind) && !reserved.contains(&app.name);
                    self.apps.iter().filter(suits).cloned().collect()
                };
                let Some(app) = free.choose(&mut self.random).cloned() else { continue };
                self.reserved.lock().insert(app.name.clone());
                let scene = Scene {
                    reserved: self.reserved.clone(),
                    quiet: self.quiet.clone(),
                    app: app.name.clone(),
                    recorder: self.recorder.clone(),
                    from: self.recorder.now(),
                };
                self.prepare(&app).await;
                tracing::debug!(?story, app = app.name, "a story begins");
                match story {
                    Story::StaleScale => self.stale_scale(&app).await,
                    Story::VanishedSource => self.vanished_source(&app).await,
                    Story::ForbiddenKind => self.forbidden_kind(&app).await,
                    Story::HiddenKind => self.hidden_kind(&app).await,
                    Story::Successors => self.successors(&app).await,
                    Story::UnknownOwner => self.unknown_owner(&app).await,
                    Story::Surplus => self.surplus(&app).await,
                    Story::Opening => self.opening(&app).await,
                    Story::Newcomer => self.newcomer(&app).await,
                    Story::SlowRequests => self.slow_requests(&app).await,
                    Story::Flip => self.flip(&app).await,
                }
                drop(scene);
            }
        }
    }

    /// Makes the application what it was meant to be, and waits for what life had begun with it.
    async fn prepare(&mut self, app: &App) {
        for manifest in app.workloads.iter().chain(&app.budgets) {
            let created = self.admin.post(&manifest.path, &manifest.object).await;
            if !created.is_success() {
                let spec = &manifest.object["spec"];
                self.admin.merge(&manifest.own_path(), &json!({"spec": spec})).await;
            }
        }
        sleep(seconds(22)).await;
        for manifest in app.budgets.iter().chain(&app.workloads) {
            let spec = &manifest.object["spec"];
            self.admin.merge(&manifest.own_path(), &json!({"spec": spec})).await;
        }
        sleep(seconds(3)).await;
    }

    /// The requests of all servers, or seldom of one.
    fn servers(&mut self) -> RequestFilter {
        let place = self.random.random_range(0..self.servers.count());
        let user = self.servers.user(place).filter(|_| self.random.random_bool(0.2));
        match user {
            Some(user) => RequestFilter::any().user(&user),
            None => of_place(""),
        }
    }

    fn hold(&mut self, resource: &str) -> FaultGuard {
        let which = self.servers().resource(resource);
        self.api.faults().watches(which, WatchFault::Hold)
    }

    fn pods(&self, namespace: &str, prefix: &str) -> Vec<StoredPod> {
        let mut pods = self.recorder.pods();
        pods.retain(|pod| pod.namespace == namespace && pod.name.starts_with(prefix));
        pods
    }

    /// Evicts some pods of the application at once, by name or by UID, and waits for the answers.
    async fn burst(&mut self, app: &App, most: usize, by_uid: bool) {
        let mut pods = self.pods(&app.namespace, &app.name);
        pods.shuffle(&mut self.random);
        let mut requests = JoinSet::new();
        for pod in pods.into_iter().take(most) {
            let client = self.client.clone();
            let options = if by_uid { json!({"preconditions": {"uid": pod.uid}}) } else { json!({}) };
            requests.spawn(async move { evict(&client, &pod, &options).await });
        }
        while requests.join_next().await.is_some() {}
    }

    /// Bursts for this long.
    async fn bursts(&mut self, app: &App, lasts: Duration, by_uid: bool) {
        let end = tokio::time::Instant::now() + lasts;
        while tokio::time::Instant::now() < end {
            self.burst(app, 5, by_uid).await;
            let pause = self.random.random_range(1_000..6_000);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn scale(&self, workload: &Manifest, replicas: u64) {
        self.admin.merge(&workload.own_path(), &json!({"spec": {"replicas": replicas}})).await;
    }

    async fn stale_scale(&mut self, app: &App) {
        let Some(workload) = app.workloads.first() else { return };
        let kind = workload.path.rsplit('/').next().unwrap_or_default().to_owned();
        let which = self.servers().resource(&kind);
        let fault = if self.random.random_bool(0.5) { Fault::Hang } else { Fault::Forbidden };
        let guard = self.api.faults().requests(which.clone().and(reads), fault);
        self.api.faults().cut_watches(which);
        sleep(seconds(2)).await;
        let replicas = workload.object["spec"]["replicas"].as_u64().unwrap_or(3);
        let more = replicas + self.random.random_range(3..6);
        for _ in 0..10 {
            self.scale(workload, more).await;
            sleep(seconds(10)).await;
        }
        self.bursts(app, seconds(60), false).await;
        drop(guard);
        self.scale(workload, replicas).await;
    }

    async fn vanished_source(&mut self, app: &App) {
        let part = if app.kind == Kind::Workload { ["ps", "worker", "eval"].as_slice() } else { &["a", "b"] };
        let part = part.choose(&mut self.random).copied().unwrap_or_default();
        let prefix = format!("{}-{part}-", app.name);
        // The quota of the namespace is used up.
        let creates = RequestFilter::any().verb("create").resource("pods").subresource("");
        let guard = self.api.faults().requests(creates.namespace(&app.namespace), Fault::Forbidden);
        // What is evicted now would not come back, so that nothing were left for when this is old enough to be judged.
        self.quiet.lock().insert(app.name.clone());
        for _ in 0..20 {
            for pod in self.pods(&app.namespace, &prefix) {
                self.collect(&pod).await;
            }
            sleep(seconds(5)).await;
        }
        self.quiet.lock().remove(&app.name);
        for _ in 0..12 {
            self.burst(app, 2, false).await;
            let pause = self.random.random_range(2..7);
            sleep(seconds(pause)).await;
        }
        drop(guard);
    }

    /// The same, with randomness of its own.
    fn fork(&mut self) -> Self {
        let mut fork = self.clone();
        fork.random = ChaCha8Rng::seed_from_u64(self.random.random());
        fork
    }

    async fn collect(&self, pod: &StoredPod) {
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}});
        self.collector.delete(&pod_path(pod), &options).await;
    }

    async fn forbidden_kind(&mut self, app: &App) {
        let which = self.servers().resource("podunavailablebudgets");
        let guard = self.api.faults().requests(which.clone().and(reads), Fault::Forbidden);
        self.api.faults().cut_watches(which);
        let lasts = self.random.random_range(50..120);
        self.bursts(app, seconds(lasts), false).await;
        drop(guard);
    }

    async fn hidden_kind(&mut self, app: &App) {
        let guard = self.api.faults().partial_discovery("policy.kruise.io", None);
        let lasts = self.random.random_range(50..120);
        self.bursts(app, seconds(lasts), false).await;
        drop(guard);
    }

    async fn successors(&mut self, app: &App) {
        let guard = self.hold("pods");
        for _ in 0..4 {
            let mut pods = self.pods(&app.namespace, &app.name);
            pods.shuffle(&mut self.random);
            for pod in pods.iter().take(3) {
                self.collect(pod).await;
            }
            sleep(seconds(9)).await;
            self.burst(app, 6, true).await;
        }
        drop(guard);
    }

    async fn unknown_owner(&mut self, app: &App) {
        let Some(workload) = app.workloads.first() else { return };
        let guard = self.hold("replicasets");
        let image = format!("{}:{}", app.name, self.random.random_range(0..1000));
        let template = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        self.admin.merge(&workload.own_path(), &json!({"spec": {"template": template}})).await;
        sleep(seconds(8)).await;
        self.bursts(app, seconds(40), false).await;
        drop(guard);
    }

    async fn surplus(&mut self, app: &App) {
        let Some(workload) = app.workloads.first() else { return };
        let guard = self.hold("leaderworkersets");
        let replicas = workload.object["spec"]["replicas"].as_u64().unwrap_or(3);
        self.scale(workload, replicas + 2).await;
        sleep(seconds(12)).await;
        self.bursts(app, seconds(60), false).await;
        drop(guard);
        self.scale(workload, replicas).await;
    }

    async fn opening(&mut self, app: &App) {
        let slow = self.slow_hook.slow(&app.namespace);
        for budget in &app.budgets {
            self.admin.delete(&budget.own_path(), &json!({})).await;
        }
        sleep(Duration::from_millis(1_500)).await;
        let mut first = self.fork();
        let of = app.clone();
        let mut waiting = JoinSet::new();
        waiting.spawn(async move { first.burst(&of, 4, false).await });
        let pause = self.random.random_range(20..2_000);
        sleep(Duration::from_millis(pause)).await;
        let place = self.random.random_range(0..self.servers.count());
        let behind = format!("{place}-");
        let held = of_place(&behind).resource("disruptionbudgets");
        let mut guard = None;
        match self.random.random_range(0..4) {
            0 => self.servers.kill(place),
            1 => self.servers.stop(place).await,
            2 => guard = Some(self.api.faults().watches(held, WatchFault::Hold)),
            _ => {}
        }
        for budget in &app.budgets {
            self.admin.post(&budget.path, &budget.object).await;
        }
        for _ in 0..15 {
            let pause = self.random.random_range(500..2_500);
            sleep(Duration::from_millis(pause)).await;
            let mut later = self.fork();
            let of = app.clone();
            waiting.spawn(async move { later.burst(&of, 1, false).await });
        }
        drop(guard);
        while waiting.join_next().await.is_some() {}
        drop(slow);
        let _ = self.servers.start(place).await;
    }

    async fn newcomer(&mut self, app: &App) {
        let place = self.random.random_range(0..self.servers.count());
        self.servers.stop(place).await;
        let of_new = of_place(&format!("{place}-"));
        let writes = of_new.clone().verb("patch").resource("leases");
        let delay = Duration::from_millis(self.random.random_range(500..4_000));
        let slow = self.api.faults().requests(writes, Fault::Delay(delay));
        if self.servers.start(place).await.is_err() {
            return;
        }
        for _ in 0..40 {
            if self.servers.unready().get(place).is_some_and(Option::is_none) {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        let held = self.api.faults().watches(of_new.resource("disruptionbudgets"), WatchFault::Hold);
        for budget in &app.budgets {
            self.admin.delete(&budget.own_path(), &json!({})).await;
            self.admin.post(&budget.path, &budget.object).await;
        }
        self.bursts(app, seconds(15), false).await;
        drop((slow, held));
        self.bursts(app, seconds(15), false).await;
    }

    async fn slow_requests(&mut self, app: &App) {
        let slow = self.slow_hook.slow(&app.namespace);
        let mut waiting = JoinSet::new();
        for _ in 0..12 {
            let mut one = self.fork();
            let of = app.clone();
            waiting.spawn(async move { one.burst(&of, 2, false).await });
            if self.random.random_bool(0.5)
                && let Some(pod) = self.pods(&app.namespace, &app.name).choose(&mut self.random).cloned()
            {
                let image = format!("{}:{}", app.name, self.random.random_range(0..1000));
                let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
                let client = self.client.clone();
                waiting.spawn(async move { drop(client.strategic(&pod_path(&pod), &patch).await) });
            }
            if self.random.random_bool(0.3)
                && let Some(pod) = self.pods(&app.namespace, &app.name).choose(&mut self.random)
            {
                self.collect(pod).await;
            }
            let pause = self.random.random_range(1..6);
            sleep(seconds(pause)).await;
        }
        while waiting.join_next().await.is_some() {}
        drop(slow);
    }

    async fn flip(&mut self, app: &App) {
        let place = self.random.random_range(0..self.servers.count());
        for _ in 0..3 {
            let patch = |selector: &Value| json!({"spec": {"selector": selector}});
            for budget in &app.budgets {
                let other = json!({"matchLabels": {"app": "other"}});
                self.admin.merge(&budget.own_path(), &patch(&other)).await;
            }
            let pause = self.random.random_range(10..500);
            sleep(Duration::from_millis(pause)).await;
            let which = of_place(&format!("{place}-")).resource("disruptionbudgets");
            let held = self.api.faults().watches(which, WatchFault::Hold);
            for budget in &app.budgets {
                self.admin.merge(&budget.own_path(), &patch(&budget.object["spec"]["selector"])).await;
            }
            self.bursts(app, seconds(12), false).await;
            drop(held);
            self.bursts(app, seconds(6), false).await;
        }
    }
}

/// The requests of the servers in the places whose names begin like this.
fn of_place(place: &str) -> RequestFilter {
    let prefix = format!("system:serviceaccount:{OWN}:server-{place}");
    RequestFilter::any().and(move |request| request.user.starts_with(&prefix))
}

fn pod_path(pod: &StoredPod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

async fn evict(client: &Http, pod: &StoredPod, options: &Value) {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options});
    client.post(&format!("{}/eviction", pod_path(pod)), &eviction).await;
}
