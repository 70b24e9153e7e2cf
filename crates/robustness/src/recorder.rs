//! Records a run at the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_api::names::{AGENT, COMPONENT, LEADER_LEASE};
use quorate_devcluster::apiserver::{ObservedChange, ObservedRequest, Observer};
use serde_json::Value;
use tokio::time::Instant;

use crate::history::{Change, History, Pardon, Request, Span};

/// The resources that a verdict may depend on.
const RECORDED: &[&str] = &[
    "pods",
    "namespaces",
    "nodes",
    "deployments.apps",
    "replicasets.apps",
    "statefulsets.apps",
    "jobs.batch",
    "clonesets.apps.kruise.io",
    "fleets.example.com",
    "leaderworkersets.leaderworkerset.x-k8s.io",
    "workloads.scheduling.quorate.dev",
    "workloads.scheduling.k8s.io",
    "podgroups.scheduling.k8s.io",
    "poddisruptionbudgets.policy",
    "disruptionbudgets.policy.quorate.dev",
    "podunavailablebudgets.policy.kruise.io",
];

/// The resource of the Leases. Only those of agents matter.
const LEASES: &str = "leases.coordination.k8s.io";

/// A pod as it is stored now.
#[derive(Clone, Debug)]
pub struct StoredPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The node that it runs on.
    pub node: String,
    /// The object.
    pub object: Arc<Value>,
}

/// Records every change and every request that concerns a pod.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    history: History,
    pods: BTreeMap<(String, String), StoredPod>,
    /// The user that last wrote the Lease of the leader.
    leader: String,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { start: Instant::now(), state: Mutex::default() }
    }
}

impl Recorder {
    /// The time since the start of the run.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The pods that are stored now, by namespace and name.
    pub fn pods(&self) -> Vec<StoredPod> {
        self.state.lock().pods.values().cloned().collect()
    }

    /// The user of the server that leads, or led last.
    pub fn leader(&self) -> String {
        self.state.lock().leader.clone()
    }

    /// Records that a fault was active from `from` until now.
    pub fn fault(&self, from: Duration) {
        let to = self.now();
        self.state.lock().history.faults.push(Span { from, to });
    }

    /// Records that a budget is not judged for the next while.
    pub fn pardon(&self, namespace: &str, name: &str, lasts: Duration) {
        let from = self.now();
        let span = Span { from, to: from + lasts };
        let pardon = Pardon { namespace: namespace.to_owned(), name: name.to_owned(), span };
        self.state.lock().history.pardons.push(pardon);
    }

    /// Ends the recording.
    pub fn finish(&self) -> History {
        let mut history = std::mem::take(&mut self.state.lock().history);
        history.length = self.now();
        history
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

impl Observer for Recorder {
    fn changed(&self, change: &ObservedChange<'_>) {
        let is_of_agent =
            || change.resource == LEASES && change.object["metadata"]["labels"][COMPONENT] == AGENT;
        if !RECORDED.contains(&change.resource) && !is_of_agent() {
            return;
        }
        let at = self.now();
        let mut object = change.object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        let object = Arc::new(object);
        let mut state = self.state.lock();
        if change.resource == "pods" {
            let pod = StoredPod {
                namespace: text(&object, "namespace").to_owned(),
                name: text(&object, "name").to_owned(),
                uid: text(&object, "uid").to_owned(),
                node: object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned(),
                object: object.clone(),
            };
            let key = (pod.namespace.clone(), pod.name.clone());
            if change.deleted {
                state.pods.remove(&key);
            } else {
                state.pods.insert(key, pod);
            }
        }
        state.history.changes.push(Change {
            revision: change.revision,
            at,
            resource: change.resource.into(),
            deleted: change.deleted,
            object,
        });
    }

    fn executed(&self, request: &ObservedRequest<'_>) {
        let info = &request.info;
        if info.resource == "leases" && info.name == LEADER_LEASE && request.code < 300 {
            info.user.clone_into(&mut self.state.lock().leader);
        }
        // Kubelets report the status of their pods, and the scheduler binds them: neither is a disruption.
        if info.resource != "pods" || info.user.starts_with("system:node:") || info.subresource == "binding" {
            return;
        }
        if info.verb == "create" && info.subresource != "eviction" {
            return;
        }
        let ended = self.now();
        let body: Value = serde_json::from_slice(request.body).unwrap_or_default();
        let options = if info.subresource == "eviction" { &body["deleteOptions"] } else { &body };
        let request = Request {
            user: info.user.to_owned(),
            groups: request.groups.to_vec(),
            verb: info.verb.to_owned(),
            subresource: info.subresource.to_owned(),
            namespace: info.namespace.to_owned(),
            name: info.name.to_owned(),
            dry_run: request.dry_run || options["dryRun"].as_array().is_some_and(|all| !all.is_empty()),
            received: ended.saturating_sub(request.took),
            received_at: request.began_at,
            ended,
            ended_at: request.ended_at,
            code: request.code,
            message: request.message.to_owned(),
            failed_open: request.failed_open,
        };
        self.state.lock().history.requests.push(request);
    }
}
