//! A namespace under Quorate, with nodes as a story needs them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use quorate_testbed::{Answer, Cluster, Kubectl, Patch, User, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::quorate::Quorate;
use crate::scene::{all_ready, is_ready};

/// What our webhook for evictions says goes behind this.
const DENIED: &str = "quorate.dev\" denied the request: ";

pub(crate) struct Space {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<Pod>,
    kubectl: Kubectl,
    quorate: Option<Quorate>,
}

impl Space {
    /// With node-1, and no other.
    pub(crate) async fn with_node(cluster: Cluster, stem: &str) -> Self {
        let quorate = Quorate::start(&cluster).await;
        cluster.actors().nodes().add("node-1").await.expect("a node");
        let namespace = cluster.namespace(stem).await.expect("a namespace");
        let pods = Api::namespaced(cluster.admin(), &namespace);
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        Self { cluster, namespace, pods, kubectl, quorate: Some(quorate) }
    }

    /// Another namespace of the same cluster, under the same server.
    pub(crate) async fn beside(&self, stem: &str) -> Self {
        let cluster = self.cluster.clone();
        let namespace = cluster.namespace(stem).await.expect("a namespace");
        let pods = Api::namespaced(cluster.admin(), &namespace);
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        Self { cluster, namespace, pods, kubectl, quorate: None }
    }

    /// Where the server shows how it does.
    pub(crate) fn admin(&self) -> std::net::SocketAddr {
        self.quorate.as_ref().expect("the namespace that the server was started with").server.admin
    }

    fn path(&self, version: &str, plural: &str) -> String {
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/namespaces/{}/{plural}", self.namespace)
    }

    /// Makes an object; a kind that was defined a moment ago may take another one.
    pub(crate) async fn create(&self, version: &str, plural: &str, object: &Value) -> Value {
        let path = self.path(version, plural);
        eventually("the object is made", || async {
            let answer = self.cluster.wire().post(&path, object).await;
            if answer.code == 404 { Err(answer.body) } else { Ok(answer) }
        })
        .await
        .expect(201)
    }

    pub(crate) async fn get(&self, version: &str, plural: &str, name: &str) -> Answer {
        self.cluster.wire().get(&format!("{}/{name}", self.path(version, plural))).await
    }

    /// Changes an object by a merge patch.
    pub(crate) async fn change(&self, version: &str, plural: &str, name: &str, patch: &Value) -> Value {
        let path = format!("{}/{name}", self.path(version, plural));
        self.cluster.wire().patch(&path, Patch::Merge, patch).await.expect(200)
    }

    /// Makes a budget, and waits until it is enforced.
    pub(crate) async fn budget(&self, name: &str, spec: Value) {
        let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
            "metadata": {"name": name}, "spec": spec});
        self.create("policy.quorate.dev/v1alpha1", "disruptionbudgets", &budget).await;
        self.enforced(name).await;
    }

    /// Waits until a budget is enforced.
    pub(crate) async fn enforced(&self, name: &str) {
        self.budget_is(name, "the budget is enforced", |status| {
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "Enforced" && c["status"] == "True")
        })
        .await;
    }

    pub(crate) async fn change_budget(&self, name: &str, spec: Value) {
        let patch = json!({"spec": spec});
        self.change("policy.quorate.dev/v1alpha1", "disruptionbudgets", name, &patch).await;
    }

    /// Waits until the status of a budget is as it should be.
    pub(crate) async fn budget_is(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            let answer = self.get("policy.quorate.dev/v1alpha1", "disruptionbudgets", name).await;
            let status = answer.body["status"].clone();
            if answer.code == 200 && is(&status) { Ok(status) } else { Err(answer.body) }
        })
        .await
    }

    /// Waits until there are exactly so many pods and all are ready.
    pub(crate) async fn ready(&self, count: usize) {
        all_ready(&self.pods, count).await;
    }

    /// How many ready pods there are, by the value of a label.
    pub(crate) async fn ready_by(&self, label: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for pod in
            self.pods.list(&ListParams::default()).await.expect("a list").iter().filter(|p| is_ready(p))
        {
            *counts.entry(pod.labels().get(label).cloned().unwrap_or_default()).or_default() += 1;
        }
        counts
    }

    /// Asks to evict a pod.
    pub(crate) async fn evict(&self, pod: &str) -> Answer {
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
        self.cluster.wire().post(&format!("{}/{pod}/eviction", self.path("v1", "pods")), &body).await
    }

    /// Runs kubectl in this namespace; what it printed, by whether it went well.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        let args = [args, &["--namespace", &self.namespace]].concat();
        let printed = self.kubectl.run(&args).await.expect("kubectl");
        if printed.success { Ok(printed.stdout) } else { Err(printed.stderr) }
    }

    /// Waits until exactly so many pods are ready of each group that has any, in the order of the groups' names.
    pub(crate) async fn left_by(&self, label: &str, counts: &[usize]) {
        eventually(&format!("{counts:?} are left by {label}"), || async {
            let left = self.ready_by(label).await;
            if left.values().eq(counts) { Ok(()) } else { Err(left) }
        })
        .await;
    }

    /// Drains a node to its end.
    pub(crate) async fn drain(&self, node: &str) {
        let drained = self.kubectl.run(&["drain", node, "--ignore-daemonsets", "--timeout=100s"]).await;
        let drained = drained.expect("kubectl");
        assert!(drained.success, "the drain must end: {}", drained.stderr);
    }

    /// Drains a node until it is refused; what our webhook said.
    pub(crate) async fn drain_is_refused(&self, node: &str) -> String {
        self.drain_waits(node, 1).await.give_up()
    }

    /// Drains a node until it was refused so often. It goes on asking for as long as it is kept.
    pub(crate) async fn drain_waits(&self, node: &str, times: usize) -> Drain {
        let mut kubectl =
            self.kubectl.command(&["drain", node, "--ignore-daemonsets"]).spawn().expect("kubectl");
        let mut lines = BufReader::new(kubectl.stderr.take().expect("what it says")).lines();
        let drain = Drain { kubectl: Mutex::new(kubectl), said: Arc::default() };
        let said = drain.said.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                said.lock().push(line);
            }
        });
        eventually(&format!("the drain is refused {times} times"), || async {
            drain.must_be_blocked();
            let refused = drain.said.lock().iter().filter(|line| line.contains(DENIED)).count();
            if refused >= times { Ok(()) } else { Err(drain.said.lock().join("\n")) }
        })
        .await;
        drain
    }
}

/// A drain at work.
pub(crate) struct Drain {
    kubectl: Mutex<Child>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Drain {
    fn must_be_blocked(&self) {
        let ended = self.kubectl.lock().try_wait().expect("a process");
        assert!(ended.is_none(), "the drain must be blocked, and has ended: {}", self.said.lock().join("\n"));
    }

    /// Ends it, which must not have come to its end; what our webhook said each time it was asked.
    pub(crate) fn give_up(self) -> String {
        self.must_be_blocked();
        let said = self.said.lock();
        let refusals = said.iter().filter_map(|line| Some(line.split_once(DENIED)?.1.trim_end()));
        refusals.collect::<Vec<_>>().join("\n")
    }
}
