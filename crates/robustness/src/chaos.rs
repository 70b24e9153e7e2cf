//! The faults of a simulated run.

use std::sync::Arc;
use std::time::Duration;

use quorate_devcluster::apiserver::{Fault, FaultGuard, Faults, RequestFilter, Server, WatchFault};
use rand::Rng;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::apps::{App, Kind};
use crate::fleet::Fleet;
use crate::http::Http;
use crate::provocations::Reserved;
use crate::recorder::Recorder;
use crate::servers::OWN;

/// The kinds that every server reads.
const KINDS: &[&str] = &["pods", "pods", "disruptionbudgets", "namespaces", "nodes", "leases"];

/// The kinds that the decisions about an application rest on.
fn kinds_of(app: &App) -> &'static [&'static str] {
    match app.kind {
        Kind::Deployment => &["deployments", "deployments", "replicasets"],
        Kind::Target => &["deployments", "replicasets", "replicasets"],
        Kind::StatefulSet | Kind::LabelGroups => &["statefulsets", "statefulsets"],
        Kind::LeaderWorkerSet | Kind::TwoLeaderWorkerSets => &["leaderworkersets", "leaderworkersets"],
        Kind::Workload => &["workloads", "workloads"],
        Kind::Kruise => &["podunavailablebudgets", "podunavailablebudgets", "deployments"],
        Kind::Native => &["poddisruptionbudgets", "leaderworkersets"],
        Kind::PodGroups => &["podgroups", "podgroups", "statefulsets"],
        Kind::Jobs => &["jobs", "jobs"],
        Kind::JobGroups => &["jobs", "workloads"],
        Kind::BareGroups => &["workloads"],
        Kind::CustomSets => &["clonesets", "fleets"],
        Kind::WithBarePods | Kind::Singles => &["deployments", "replicasets", "statefulsets"],
        Kind::OwnerGroups => &["statefulsets", "clonesets"],
        Kind::Probed => &["leases", "leases", "nodes", "statefulsets", "deployments"],
    }
}

/// The groups that discovery may leave out.
const GROUPS: &[&str] = &[
    "leaderworkerset.x-k8s.io",
    "policy.kruise.io",
    "scheduling.quorate.dev",
    "scheduling.k8s.io",
    "batch",
    "apps.kruise.io",
    "example.com",
];

/// How long an administrator's change of the ledger is pardoned.
const PARDON: Duration = Duration::from_secs(150);

/// Injects faults at random.
pub struct Chaos<F> {
    /// The API server.
    pub api: Arc<Server>,
    /// The servers.
    pub servers: Arc<F>,
    /// An administrator.
    pub admin: Http,
    /// The applications.
    pub apps: Vec<App>,
    /// What happens is drawn from here.
    pub random: ChaCha8Rng,
    /// No fault lasts longer.
    pub longest: Duration,
    /// Two faults at a time at the most.
    pub active: Arc<tokio::sync::Semaphore>,
    /// The longest pause between two faults.
    pub pause: Duration,
    /// The applications that a provocation is about: their claims are left alone.
    pub reserved: Reserved,
    /// Whether servers are killed. For two minutes after that, no budget can be opened.
    pub kills: bool,
}

impl<F: Fleet> Chaos<F> {
    /// Injects faults until it is dropped.
    pub async fn run(mut self) {
        loop {
            let pause = self.pause.mul_f64(self.random.random::<f64>());
            tokio::time::sleep(Duration::from_millis(500) + pause).await;
            let Ok(permit) = self.active.clone().acquire_owned().await else { return };
            let from = self.servers.recorder().now();
            let lasts = Duration::from_millis(match self.random.random_range(0..4) {
                0 => self.random.random_range(100..2_000),
                1 => self.random.random_range(2_000..30_000),
                2 => self.random.random_range(30_000..90_000),
                _ => self.random.random_range(90_000..240_000),
            });
            let lasts = lasts.min(self.longest);
            let place = self.random.random_range(0..self.servers.count());
            let guards = self.inject(place, lasts).await;
            let servers = self.servers.clone();
            tokio::spawn(async move {
                tokio::time::sleep(lasts).await;
                drop(guards);
                servers.set_cut(place, false);
                if let Err(error) = servers.start(place).await {
                    tracing::warn!(%error, place, "the server does not start");
                }
                servers.recorder().fault(from);
                drop(permit);
            });
        }
    }

    fn faults(&self) -> &Faults {
        self.api.faults()
    }

    /// The requests of one server, or of all.
    fn of_server(&mut self, place: usize) -> RequestFilter {
        let user = self.servers.user(place).filter(|_| self.random.random_bool(0.6));
        match user {
            Some(user) => RequestFilter::any().user(&user),
            None => {
                let prefix = format!("system:serviceaccount:{OWN}:server-");
                RequestFilter::any().and(move |request| request.user.starts_with(&prefix))
            }
        }
    }

    async fn inject(&mut self, place: usize, lasts: Duration) -> Vec<FaultGuard> {
        let which = self.of_server(place);
        let kinds: Vec<&str> = self.apps.iter().flat_map(kinds_of).chain(KINDS).copied().collect();
        let kind = kinds.choose(&mut self.random).copied().unwrap_or("pods");
        tracing::debug!(place, kind, ?lasts, "a fault begins");
        match self.random.random_range(0..104) {
            0..14 => vec![self.faults().watches(which.resource(kind), WatchFault::Hold)],
            14..18 => {
                let delay = Duration::from_millis(self.random.random_range(10..20_000));
                vec![self.faults().watches(which.resource(kind), WatchFault::Delay(delay))]
            }
            18..34 => {
                let which = which.resource(kind);
                let reads = which.clone().and(|request| matches!(request.verb, "list" | "watch" | "get"));
                let fault = match self.random.random_range(0..3) {
                    0 => Fault::Hang,
                    _ => Fault::Forbidden,
                };
                let guard = self.faults().requests(reads, fault);
                self.faults().cut_watches(which);
                vec![guard]
            }
            34..50 => {
                let writes = which.writes().and(|request| request.resource.ends_with("budgets"));
                let fault = self.request_fault();
                vec![self.faults().requests(writes, fault).times(self.random.random_range(1..20))]
            }
            50..55 => {
                let fault = self.request_fault();
                vec![self.faults().requests(which, fault).times(self.random.random_range(1..40))]
            }
            55..61 => {
                let group = GROUPS.choose(&mut self.random).copied().unwrap_or_default();
                vec![self.faults().partial_discovery(group, None)]
            }
            61..65 => {
                self.faults().compact();
                Vec::new()
            }
            65..69 => {
                self.faults().expire_watches(RequestFilter::any());
                Vec::new()
            }
            69..73 => {
                // The API server restarts: for a moment it answers nothing, and then it does not know its roles yet.
                let all = RequestFilter::any().and(|request| request.user.contains(OWN));
                let refused = self.faults().requests(all, Fault::Forbidden);
                self.faults().cut_watches(RequestFilter::any());
                vec![refused]
            }
            73..80 => {
                self.servers.set_cut(place, true);
                Vec::new()
            }
            80..87 if self.kills => {
                self.servers.kill(place);
                Vec::new()
            }
            80..91 => {
                self.servers.stop(place).await;
                Vec::new()
            }
            91..94 => {
                let step = self.random.random_range(-3_600_000_000_000..3_600_000_000_000);
                self.servers.step_time_of_day(step);
                Vec::new()
            }
            94..98 => {
                self.forge(place);
                Vec::new()
            }
            98..102 => {
                // Of one kind, as from an aggregated API server, or of all.
                let which = if self.random.random_bool(0.5) { which.resource(kind) } else { which };
                vec![self.faults().watches(which, WatchFault::NoBookmarks)]
            }
            _ => {
                let app = self.apps.choose(&mut self.random);
                if let Some(app) = app.filter(|app| !self.reserved.lock().contains(&app.name)) {
                    overwrite_claims(&self.admin, self.servers.recorder(), app).await;
                }
                Vec::new()
            }
        }
    }

    fn request_fault(&mut self) -> Fault {
        let faults = [
            Fault::Conflict,
            Fault::TooManyRequests { retry_after: Some(1) },
            Fault::InternalError,
            Fault::Unavailable,
            Fault::Timeout,
            Fault::Delay(Duration::from_millis(self.random.random_range(5..6_000))),
            Fault::LoseReply,
            Fault::LoseReply,
            Fault::Disconnect,
            Fault::Hang,
        ];
        faults.choose(&mut self.random).cloned().unwrap_or(Fault::Conflict)
    }

    /// Sends reviews that no API server has sent.
    fn forge(&mut self, place: usize) {
        for (path, review) in forged_reviews(&mut self.random, self.servers.recorder()) {
            self.servers.send_review(place, path, &review);
        }
    }
}

/// Reviews that no API server has sent, each with its path: of pods that do not exist, and of existing pods with other
/// contents.
pub(crate) fn forged_reviews(random: &mut ChaCha8Rng, recorder: &Recorder) -> Vec<(&'static str, Value)> {
    let mut pods = recorder.pods();
    pods.retain(|pod| pod.namespace.starts_with("apps-"));
    let mut reviews = Vec::new();
    for _ in 0..random.random_range(1..20) {
        let Some(pod) = pods.choose(random) else { return reviews };
        let mut object = Value::clone(&pod.object);
        let meta = &mut object["metadata"];
        // As if it were newer than all that is stored.
        meta["resourceVersion"] = json!("999999999");
        if random.random_bool(0.5) {
            meta["name"] = json!(format!("{}-forged", pod.name));
            meta["uid"] = json!(format!("forged-{}", random.random::<u32>()));
        }
        let name = meta["name"].as_str().unwrap_or_default().to_owned();
        object["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let evicts = random.random_bool(0.5);
        let (path, operation, body) = if evicts {
            let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": name, "namespace": pod.namespace}});
            ("/evictions?timeout=5s", "CREATE", json!({"object": eviction, "subResource": "eviction"}))
        } else {
            ("/pods?timeout=5s", "DELETE", json!({"oldObject": object}))
        };
        let mut request = json!({
            "uid": "forged", "operation": operation, "namespace": pod.namespace, "name": name,
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "mallory"},
        });
        if let (Some(request), Value::Object(body)) = (request.as_object_mut(), body) {
            request.extend(body);
        }
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        reviews.push((path, review));
    }
    reviews
}

/// An administrator removes all claims of a budget: then the truth itself is gone, and the budget is pardoned.
pub(crate) async fn overwrite_claims(admin: &Http, recorder: &Recorder, app: &App) {
    for budget in app.budgets.iter().filter(|budget| budget.object["kind"] == "DisruptionBudget") {
        let name = budget.object["metadata"]["name"].as_str().unwrap_or_default();
        recorder.pardon(&app.namespace, name, PARDON);
        let path = format!("{}/status", budget.own_path());
        admin.merge(&path, &json!({"status": {"claims": null}})).await;
    }
}
