//! One storm: pods that are ready, a rule over them, and evictors that take them all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Error;
use kube::api::{Api, EvictParams};
use parking_lot::Mutex;
use quorate_testbed::{Cluster, Patch, User, Wire, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cost::{Cost, Spent};
use crate::replicas::Replicas;

/// What watches over the pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    None,
    Native,
    Quorate,
}

pub(crate) struct Storm {
    pub(crate) rule: Rule,
    /// Over how many budgets the pods are spread.
    pub(crate) spread: usize,
    /// How many evictions are under way at once.
    pub(crate) at_once: usize,
}

pub(crate) struct Figures {
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Refused and asked again.
    pub(crate) retries: usize,
}

const NODE: &str = "bench";

/// A node for the pods, so that they are not garbage collected. No kubelet runs them: their status is written by hand.
pub(crate) async fn node(cluster: &Cluster) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    cluster.wire().post("/api/v1/nodes", &node).await.expect(201);
}

impl Storm {
    pub(crate) async fn run(&self, cluster: &Cluster, replicas: Option<&Replicas>) -> (Figures, Cost) {
        // One at a time takes long, and longer tells no more.
        let pods = if self.at_once == 1 { 60 } else { 300 };
        let namespace = cluster.namespace("bench").await.expect("a namespace");
        self.set_up(&cluster.wire(), &namespace, pods).await;
        let wire = cluster.wire();
        let before = Spent::by_now(&wire, replicas).await;
        let figures = self.rage(cluster, &namespace, pods).await;
        if self.rule == Rule::Quorate {
            settled(&wire, &namespace).await;
        }
        let cost = before.each(&Spent::by_now(&wire, replicas).await, pods);
        let path = format!("/api/v1/namespaces/{namespace}");
        cluster.wire().delete(&path, &json!({})).await.expect(200);
        (figures, cost)
    }

    async fn set_up(&self, wire: &Wire, namespace: &str, pods: usize) {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let made = futures::stream::iter(0..pods).for_each_concurrent(16, |number| {
            let path = &path;
            async move {
                let app = format!("web-{}", number % self.spread);
                let pod = json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("pod-{number}"), "labels": {"app": app}},
                    "spec": {
                        "nodeName": NODE, "terminationGracePeriodSeconds": 0,
                        "containers": [{"name": "web", "image": "web:1"}],
                    },
                });
                wire.post(path, &pod).await.expect(201);
                let status = json!({"status": {
                    "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                }});
                wire.patch(&format!("{path}/pod-{number}/status"), Patch::Merge, &status).await.expect(200);
            }
        });
        made.await;
        let (path, kind, version) = match self.rule {
            Rule::None => return,
            Rule::Native => (
                format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"),
                "PodDisruptionBudget",
                "policy/v1",
            ),
            Rule::Quorate => (
                format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets"),
                "DisruptionBudget",
                "policy.quorate.dev/v1alpha1",
            ),
        };
        for number in 0..self.spread {
            let app = format!("web-{number}");
            let budget = json!({
                "apiVersion": version, "kind": kind, "metadata": {"name": app},
                "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": app}}},
            });
            wire.post(&path, &budget).await.expect(201);
        }
        let each = pods / self.spread;
        eventually("every budget knows its pods", || async {
            let list = wire.get(&path).await.expect(200);
            let budgets = list["items"].as_array().cloned().unwrap_or_default();
            let open = |budget: &&Value| {
                let enforced = self.rule == Rule::Native
                    || budget["status"]["conditions"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .any(|c| c["type"] == "Enforced" && c["status"] == "True");
                enforced && budget["status"]["disruptionsAllowed"] == each
            };
            let count = budgets.iter().filter(open).count();
            if count == self.spread { Ok(()) } else { Err(format!("{count} of {}", self.spread)) }
        })
        .await;
    }

    async fn rage(&self, cluster: &Cluster, namespace: &str, pods: usize) -> Figures {
        let next = Arc::new(AtomicUsize::new(0));
        let retries = Arc::new(AtomicUsize::new(0));
        let took = Arc::new(Mutex::new(Vec::with_capacity(pods)));
        let mut evictors = JoinSet::new();
        let start = Instant::now();
        for _ in 0..self.at_once {
            let api: Api<Pod> = Api::namespaced(cluster.client(&User::admin()), namespace);
            let (next, retries, took) = (next.clone(), retries.clone(), took.clone());
            evictors.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= pods {
                        return;
                    }
                    let begun = Instant::now();
                    while let Err(error) = api.evict(&format!("pod-{number}"), &EvictParams::default()).await
                    {
                        match error {
                            Error::Api(status) if matches!(status.code, 429 | 500) => {
                                retries.fetch_add(1, Ordering::Relaxed);
                                // As long as the API server asks for; without a word, a moment.
                                tokio::time::sleep(Duration::from_millis(100)).await;
                            }
                            error => panic!("an eviction failed: {error}"),
                        }
                    }
                    took.lock().push(begun.elapsed());
                }
            });
        }
        while let Some(ended) = evictors.join_next().await {
            ended.expect("an evictor");
        }
        let all = start.elapsed();
        let mut took = std::mem::take(&mut *took.lock());
        took.sort();
        let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
        Figures {
            rate: pods as f64 / all.as_secs_f64(),
            p50: at(50),
            p99: at(99),
            retries: retries.load(Ordering::Relaxed),
        }
    }
}

/// Waits until everything that was admitted is settled and shown in the status.
async fn settled(wire: &Wire, namespace: &str) {
    let path = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets");
    eventually("the budgets are settled", || async {
        let list = wire.get(&path).await.expect(200);
        let open = |budget: &&Value| {
            budget["status"]["claims"] != json!({}) || budget["status"]["currentHealthy"] != 0
        };
        let count = list["items"].as_array().into_iter().flatten().filter(open).count();
        if count == 0 { Ok(()) } else { Err(format!("{count} are not")) }
    })
    .await;
}
