//! The agents of a simulated run, one on each node.
//!
//! A real agent probes over the network, which a simulated run does not have. So what a probe answers is drawn at random,
//! and this is an imitation of the rest: it writes the condition `Disruptable` and renews the Lease of its node as
//! `quorate agent` does, and in the same order. A condition from before an agent began does not count, so an agent replaces
//! the conditions before it renews the Lease. Agents die, and others take their places.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use quorate_api::names::{AGENT, COMPONENT, DISRUPTABLE, DISRUPTION_PROBE_PREFIX};
use rand::{Rng, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::http::Http;
use crate::recorder::{Recorder, StoredPod};
use crate::servers::OWN;

/// How often an agent looks at its pods.
const TICK: Duration = Duration::from_secs(1);

/// How long a Lease lasts, and how often it is renewed.
const LEASE_SECONDS: u64 = 40;
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How long a new agent waits for new results before it takes the Lease.
const HANDOVER: Duration = Duration::from_secs(10);

/// Steps of the time of day, in milliseconds, after which an agent begins anew.
const STEPS: std::ops::RangeInclusive<i64> = -1_000..=20_000;

/// What a provocation wants of the agents.
#[derive(Debug, Default)]
pub struct Orders {
    /// The nodes whose agents are dead.
    pub dead: BTreeSet<String>,
    /// The applications whose probes do not answer.
    pub mute: BTreeSet<String>,
}

/// The orders of all provocations.
pub type SharedOrders = Arc<Mutex<Orders>>;

/// All agents of a run.
pub struct Agents {
    /// Sends requests as the account of the agents.
    pub http: Http,
    /// Where they find their pods.
    pub recorder: Arc<Recorder>,
    /// What happens is drawn from here.
    pub random: ChaCha8Rng,
    /// The names of the nodes whose agents die at random, and whose probes say no at random.
    pub nodes: Vec<String>,
    /// The names of the nodes on which only provocations make that happen.
    pub dedicated_nodes: Vec<String>,
    /// What provocations want.
    pub orders: SharedOrders,
}

/// How much happens at random on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Agents die, and probes say no for minutes.
    Wild,
    /// Probes seldom say no.
    Calm,
    /// Nothing but what provocations want.
    Still,
}

impl Agents {
    /// Runs until it is dropped. `calm`: no agent dies, and probes seldom say no.
    pub async fn run(mut self, calm: bool) {
        let mut places = JoinSet::new();
        let mood = if calm { Mood::Calm } else { Mood::Wild };
        let dedicated = std::mem::take(&mut self.dedicated_nodes).into_iter().map(|node| (node, Mood::Still));
        let nodes = std::mem::take(&mut self.nodes).into_iter().map(|node| (node, mood));
        for (node, mood) in nodes.chain(dedicated) {
            let random = ChaCha8Rng::seed_from_u64(self.random.random());
            let (http, recorder, orders) = (self.http.clone(), self.recorder.clone(), self.orders.clone());
            places.spawn(serve(http, recorder, node, orders, mood, random));
        }
        while places.join_next().await.is_some() {}
    }
}

/// The agents of one node, one after another.
async fn serve(
    http: Http,
    recorder: Arc<Recorder>,
    node: String,
    orders: SharedOrders,
    mood: Mood,
    mut random: ChaCha8Rng,
) {
    let mut says_no = BTreeMap::new();
    let is_dead = || orders.lock().dead.contains(&node);
    loop {
        let mut agent = Agent::begin(&http, &recorder, &node, &orders, mood);
        let lives = Duration::from_secs(random.random_range(30..400));
        let dies_at = Instant::now() + lives;
        while !is_dead() && (mood != Mood::Wild || Instant::now() < dies_at) {
            sleep(TICK).await;
            agent.work(&mut says_no, &mut random).await;
        }
        if mood == Mood::Wild {
            let gone = if random.random_bool(0.5) { 3..40 } else { 60..320 };
            sleep(Duration::from_secs(random.random_range(gone))).await;
        }
        while is_dead() {
            sleep(TICK).await;
        }
    }
}

/// One agent.
struct Agent<'a> {
    http: &'a Http,
    recorder: &'a Recorder,
    node: &'a str,
    orders: &'a SharedOrders,
    mood: Mood,
    /// When it began: by the steady clock, and in seconds since 1970.
    began: Instant,
    began_second: i64,
    /// The time of day when the steady clock began, in milliseconds.
    offset: i64,
    renew_at: Instant,
    /// Whether there may be a Lease of the node.
    leased: bool,
    /// The pods that it probes, by UID.
    pods: BTreeMap<String, Probed>,
}

/// A pod that an agent probes.
struct Probed {
    /// The containers that the probe is about.
    container: String,
    /// When it answers for the first time.
    answers_at: Instant,
    /// Whether the pod had a condition when the agent began.
    inherited: bool,
    /// Whether the agent has written its condition.
    written: bool,
}

/// What a condition says: status, reason and message.
type Outcome = (&'static str, &'static str, &'static str);

const YES: Outcome = ("True", "ProbeSucceeded", "");
const NO: Outcome = ("False", "ProbeFailed", "main: 503 Service Unavailable");
const STOPPED: Outcome = ("False", "ContainerNotRunning", "main: the container is not running");
const PENDING: Outcome = ("False", "ProbePending", "main has not answered since it started");

/// Until when the probes of pods say no, by UID.
type SaysNo = BTreeMap<String, Instant>;

/// The time of day, in milliseconds, less the steady clock.
fn offset(start: Instant) -> i64 {
    let steady = i64::try_from(start.elapsed().as_millis()).unwrap_or(0);
    Timestamp::now().as_millisecond() - steady
}

/// A time of an object, in seconds since 1970.
fn second(value: &Value) -> Option<i64> {
    value.as_str()?.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

fn stamp(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap_or_default())
}

fn condition(pod: &StoredPod) -> Option<&Value> {
    let mut conditions = pod.object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == DISRUPTABLE)
}

/// Whether an agent probes the pod.
fn is_probed(pod: &StoredPod) -> bool {
    let annotations = pod.object["metadata"]["annotations"].as_object();
    annotations.is_some_and(|all| all.keys().any(|key| key.starts_with(DISRUPTION_PROBE_PREFIX)))
        && pod.object["metadata"]["deletionTimestamp"].is_null()
        && !matches!(pod.object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

impl<'a> Agent<'a> {
    fn begin(
        http: &'a Http,
        recorder: &'a Recorder,
        node: &'a str,
        orders: &'a SharedOrders,
        mood: Mood,
    ) -> Self {
        let (began, now) = (Instant::now(), Timestamp::now());
        Self {
            http,
            recorder,
            node,
            orders,
            mood,
            began,
            began_second: now.as_second(),
            offset: now.as_millisecond(),
            renew_at: began,
            leased: true,
            pods: BTreeMap::new(),
        }
    }

    /// What an agent does in a second: it probes, writes what has changed, and then renews the Lease.
    async fn work(&mut self, says_no: &mut SaysNo, random: &mut ChaCha8Rng) {
        let offset = offset(self.began);
        if !STEPS.contains(&(offset - self.offset)) {
            *self = Self::begin(self.http, self.recorder, self.node, self.orders, self.mood);
        } else {
            self.offset = offset;
        }
        let mut pods = self.recorder.pods();
        pods.retain(|pod| pod.node == self.node && is_probed(pod));
        self.pods.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        says_no.retain(|uid, until| *until > Instant::now() && pods.iter().any(|pod| pod.uid == *uid));
        let mut holds = false;
        for pod in &pods {
            self.observe(pod, random);
            let (chance, longest) = match self.mood {
                Mood::Wild => (1.0 / 150.0, 200),
                Mood::Calm => (1.0 / 400.0, 30),
                Mood::Still => (0.0, 3),
            };
            if random.random_bool(chance) {
                let lasts = Duration::from_secs(random.random_range(2..longest));
                says_no.entry(pod.uid.clone()).or_insert(Instant::now() + lasts);
            }
            holds |= !self.report(pod, says_no.contains_key(&pod.uid)).await;
        }
        let handing_over = self.began.elapsed() < HANDOVER;
        holds |= handing_over && self.pods.values().any(|pod| pod.inherited && !pod.written);
        if !holds && Instant::now() >= self.renew_at {
            self.renew(pods.is_empty()).await;
        }
    }

    /// Takes a pod in. Its probe starts over with its container, and may take its time: it may have to pass several times.
    fn observe(&mut self, pod: &StoredPod, random: &mut ChaCha8Rng) {
        let container = &pod.object["status"]["containerStatuses"][0]["containerID"];
        let container = container.as_str().unwrap_or_default().to_owned();
        let known = self.pods.get(&pod.uid);
        if known.is_some_and(|known| known.container == container) {
            return;
        }
        let slow = self.mood == Mood::Wild && random.random_bool(0.2);
        let first = if slow { 5_000..90_000 } else { 0..5_000 };
        let probed = Probed {
            container,
            answers_at: Instant::now() + Duration::from_millis(random.random_range(first)),
            inherited: known.map_or(condition(pod).is_some(), |known| known.inherited),
            written: known.is_some_and(|known| known.written),
        };
        self.pods.insert(pod.uid.clone(), probed);
    }

    /// Writes the condition of a pod, if it is another one. Returns whether the Lease may be renewed after that: not while
    /// a pod has a yes that must become a no.
    async fn report(&mut self, pod: &StoredPod, says_no: bool) -> bool {
        let Some(probed) = self.pods.get(&pod.uid) else { return true };
        let before = condition(pod);
        let Some(wanted) = self.wanted(pod, probed, before, says_no) else { return true };
        let started = &pod.object["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
        // Both are in whole seconds, so that only the next one is surely later.
        let floor = second(started).unwrap_or(i64::MIN).max(self.began_second).saturating_add(1);
        let (status, reason, message) = wanted;
        let is_current = before.is_some_and(|before| {
            before["status"] == status
                && before["reason"] == reason
                && second(&before["lastProbeTime"]).is_some_and(|at| at >= floor)
        });
        if is_current && probed.written {
            return true;
        }
        let now = Timestamp::now().as_second();
        let since = before.filter(|before| before["status"] == status);
        let since = since.and_then(|before| second(&before["lastTransitionTime"])).unwrap_or(now);
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [{
            "type": DISRUPTABLE, "status": status, "reason": reason, "message": message,
            "lastProbeTime": stamp(now.max(floor)), "lastTransitionTime": stamp(since)}]}});
        let path = format!("/api/v1/namespaces/{}/pods/{}/status", pod.namespace, pod.name);
        let written = self.http.strategic(&path, &patch).await.is_success();
        if let Some(probed) = self.pods.get_mut(&pod.uid) {
            probed.written |= written;
        }
        written || status == "True" || before.is_none_or(|before| before["status"] != "True")
    }

    /// The condition that a pod should have. Nothing if there is no result yet and the present condition may stay.
    fn wanted(
        &self,
        pod: &StoredPod,
        probed: &Probed,
        before: Option<&Value>,
        says_no: bool,
    ) -> Option<Outcome> {
        let status = &pod.object["status"]["containerStatuses"][0];
        let runs = status["state"]["running"].is_object();
        if !runs && !probed.container.is_empty() {
            return Some(STOPPED);
        }
        let is_mute = self.orders.lock().mute.iter().any(|app| pod.name.starts_with(app.as_str()));
        if runs && !is_mute && Instant::now() >= probed.answers_at {
            return Some(if says_no { NO } else { YES });
        }
        let before = before?;
        let believed = second(&before["lastProbeTime"]).is_some_and(|at| at > self.began_second);
        let handed_over = !probed.inherited || self.began.elapsed() >= HANDOVER;
        let baseless = before["status"] == "True" && (probed.written || (believed && handed_over));
        (baseless || (probed.written && before["reason"] == PENDING.1)).then_some(PENDING)
    }

    /// Renews the Lease of the node, or deletes it if no pod is probed.
    async fn renew(&mut self, idle: bool) {
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases");
        let name = format!("quorate-agent-{}", self.node);
        if idle {
            if std::mem::take(&mut self.leased) {
                self.http.delete(&format!("{leases}/{name}"), &json!({})).await;
            }
            return;
        }
        self.leased = true;
        self.renew_at = Instant::now() + RENEW_EVERY;
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "labels": {COMPONENT: AGENT}},
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": MicroTime(Timestamp::from_second(self.began_second).unwrap_or_default()),
                "renewTime": MicroTime(Timestamp::now())}});
        if self.http.merge(&format!("{leases}/{name}"), &lease).await.code == 404 {
            self.http.post(&leases, &lease).await;
        }
    }
}
