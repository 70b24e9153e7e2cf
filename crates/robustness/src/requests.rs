//! The clients of a simulated run: they evict, delete and update pods, one after another or a node at a time.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::http::{Http, Response};
use crate::provocations::Reserved;
use crate::recorder::{Recorder, StoredPod};

/// A client that disrupts pods.
pub struct Disruptor {
    /// Sends requests as an ordinary user.
    pub http: Http,
    /// Where it finds pods.
    pub recorder: Arc<Recorder>,
    /// What it does is drawn from here.
    pub random: ChaCha8Rng,
    /// The longest pause between two requests.
    pub pause: Duration,
    /// The applications that are left alone for now.
    pub quiet: Reserved,
}

fn pod_path(pod: &StoredPod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

impl Disruptor {
    /// Disrupts random pods, for ever.
    pub async fn run(mut self) {
        loop {
            let pause = self.pause.mul_f64(self.random.random::<f64>());
            tokio::time::sleep(pause).await;
            let pods = self.pods();
            let Some(pod) = pods.choose(&mut self.random) else { continue };
            match self.random.random_range(0..100) {
                0..3 => self.drain(&pod.node.clone()).await,
                3..60 => drop(self.evict(pod, json!({}), "").await),
                60..70 => drop(self.evict(pod, json!({"preconditions": {"uid": pod.uid}}), "").await),
                70..72 => {
                    let other = pods.choose(&mut self.random).map(|pod| pod.uid.clone());
                    drop(self.evict(pod, json!({"preconditions": {"uid": other}}), "").await);
                }
                72..75 => drop(self.evict(pod, json!({}), "?dryRun=All").await),
                75..76 => drop(self.evict(pod, json!({"dryRun": ["All"]}), "").await),
                76..86 => drop(self.http.delete(&pod_path(pod), &json!({})).await),
                86..89 => {
                    let options = json!({"preconditions": {"uid": pod.uid}});
                    drop(self.http.delete(&pod_path(pod), &options).await);
                }
                89..91 => drop(self.http.delete(&pod_path(pod), &json!({"dryRun": ["All"]})).await),
                91..97 => {
                    let image = format!("app:{}", self.random.random_range(0..1000));
                    let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
                    drop(self.http.strategic(&pod_path(pod), &patch).await);
                }
                97..99 => {
                    let cpu = format!("{}m", self.random.random_range(1..1000));
                    let resources = json!({"requests": {"cpu": cpu}});
                    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
                    drop(self.http.strategic(&format!("{}/resize", pod_path(pod)), &patch).await);
                }
                _ => {
                    let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
                    drop(self.http.delete(&path, &json!({})).await);
                }
            }
        }
    }

    /// The pods of the applications.
    fn pods(&self) -> Vec<StoredPod> {
        let mut pods = self.recorder.pods();
        let quiet = self.quiet.lock();
        let is_quiet = |pod: &StoredPod| quiet.iter().any(|app| pod.name.starts_with(app.as_str()));
        pods.retain(|pod| pod.namespace.starts_with("apps-") && !is_quiet(pod));
        pods
    }

    async fn evict(&self, pod: &StoredPod, options: Value, query: &str) -> Response {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options});
        self.http.post(&format!("{}/eviction{query}", pod_path(pod)), &eviction).await
    }

    /// Cordons a node and evicts its pods as `kubectl drain` does: all at once, each again after 5 s. Gives up after a
    /// while, and uncordons the node.
    async fn drain(&mut self, node: &str) {
        if node.is_empty() {
            return;
        }
        let path = format!("/api/v1/nodes/{node}");
        self.http.merge(&path, &json!({"spec": {"unschedulable": true}})).await;
        let rounds = self.random.random_range(2..15);
        for _ in 0..rounds {
            let mut pods = self.pods();
            pods.retain(|pod| pod.node == node);
            if pods.is_empty() {
                break;
            }
            let mut evictions = tokio::task::JoinSet::new();
            for pod in pods {
                let one = Self {
                    http: self.http.clone(),
                    recorder: self.recorder.clone(),
                    random: self.random.clone(),
                    pause: self.pause,
                    quiet: self.quiet.clone(),
                };
                evictions.spawn(async move { one.evict(&pod, json!({}), "").await });
            }
            while evictions.join_next().await.is_some() {}
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        self.http.merge(&path, &json!({"spec": {"unschedulable": null}})).await;
    }
}
