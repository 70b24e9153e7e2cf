//! Clients that move pods: out of their budgets, between groups, and back, by other labels or owners.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use crate::http::Http;
use crate::provocations::Reserved;
use crate::recorder::{Recorder, StoredPod};

/// The labels that form groups of the applications.
const GROUPS: [&str; 4] = [
    "shard",
    "leaderworkerset.sigs.k8s.io/group-index",
    "quorate.dev/pod-group",
    "quorate.dev/pod-group-replica",
];

/// A client that moves pods.
pub struct Mover {
    /// Sends requests as an ordinary user.
    pub http: Http,
    /// Where it finds pods.
    pub recorder: Arc<Recorder>,
    /// What it does is drawn from here.
    pub random: ChaCha8Rng,
    /// The longest pause between two moves.
    pub pause: Duration,
    /// The applications that are left alone for now.
    pub reserved: Reserved,
}

impl Mover {
    /// Moves random pods, for ever.
    pub async fn run(mut self) {
        loop {
            let pause = self.pause.mul_f64(self.random.random::<f64>());
            tokio::time::sleep(pause).await;
            let pods = self.pods();
            let Some(pod) = pods.choose(&mut self.random).cloned() else { continue };
            match self.random.random_range(0..100) {
                0..50 => {
                    // No budget of an application selects these labels.
                    let app = if self.random.random_bool(0.5) { json!("elsewhere") } else { Value::Null };
                    self.relabel(&pod, "", &json!({"app": app})).await;
                }
                50..75 => {
                    if let Some(labels) = self.other_group(&pod, &pods) {
                        self.relabel(&pod, "", &labels).await;
                    }
                }
                75..80 => self.relabel(&pod, "/status", &json!({"app": "elsewhere"})).await,
                80..85 => self.relabel(&pod, "?dryRun=All", &json!({"app": "elsewhere"})).await,
                85..90 => {
                    let track = self.random.random_range(0..10).to_string();
                    self.relabel(&pod, "", &json!({"track": track})).await;
                }
                _ => {
                    // Its controller adopts it again, as long as the labels are those that it selects.
                    let patch = json!({"metadata": {"ownerReferences": null}});
                    drop(self.http.merge(&path_of(&pod), &patch).await);
                }
            }
        }
    }

    /// The pods of the applications.
    fn pods(&self) -> Vec<StoredPod> {
        let mut pods = self.recorder.pods();
        let reserved = self.reserved.lock();
        let is_reserved = |pod: &StoredPod| reserved.iter().any(|app| pod.name.starts_with(app.as_str()));
        pods.retain(|pod| pod.namespace.starts_with("apps-") && !is_reserved(pod));
        pods
    }

    /// The label of another group, as a pod of the same application has it.
    fn other_group(&mut self, pod: &StoredPod, pods: &[StoredPod]) -> Option<Value> {
        let labels = |pod: &StoredPod| pod.object["metadata"]["labels"].clone();
        let own = labels(pod);
        let mut others = Vec::new();
        for other in pods.iter().filter(|other| other.namespace == pod.namespace).map(labels) {
            let differs = |key: &&&str| {
                other["app"] == own["app"]
                    && !other[**key].is_null()
                    && !own[**key].is_null()
                    && other[**key] != own[**key]
            };
            others.extend(GROUPS.iter().find(differs).map(|key| json!({*key: other[*key]})));
        }
        others.choose(&mut self.random).cloned()
    }

    /// Changes labels of a pod. If that succeeds, the pod comes back after a while, or is deleted.
    async fn relabel(&mut self, pod: &StoredPod, part: &str, labels: &Value) {
        let path = path_of(pod);
        let response =
            self.http.merge(&format!("{path}{part}"), &json!({"metadata": {"labels": labels}})).await;
        let (returns, after) = (self.random.random_bool(0.75), self.random.random_range(1..100));
        if !response.is_success() || part.starts_with('?') {
            return;
        }
        let before = |key: &String| (key.clone(), pod.object["metadata"]["labels"][key].clone());
        let before: Map<String, Value> =
            labels.as_object().into_iter().flat_map(Map::keys).map(before).collect();
        let (http, uid) = (self.http.clone(), pod.uid.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(after)).await;
            if returns {
                // The UID: a pod that has its name by then is another one.
                http.merge(&path, &json!({"metadata": {"uid": uid, "labels": before}})).await;
            } else {
                http.delete(&path, &json!({"preconditions": {"uid": uid}})).await;
            }
        });
    }
}

fn path_of(pod: &StoredPod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}
