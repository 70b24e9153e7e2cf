//! Nodes with agents, and pods that respond to probes.

mod clocks;
mod kinds;
mod lifecycle;
mod proposals;
mod target;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use quorate_agent::{Options, WallClock};
use quorate_testbed::{Cluster, Process, User, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fixture::TestNamespace;
use crate::quorate::{ANYWHERE, NAMESPACE};

/// The service account of agents.
fn account() -> User {
    User::service_account(NAMESPACE, "quorate-agent")
}

/// An agent in this process. It ends when this is dropped.
struct Agent {
    /// Its admin address.
    admin: SocketAddr,
    _stop: DropGuard,
}

impl Agent {
    async fn start(cluster: &Cluster, node: &str) -> Self {
        Self::start_with(cluster, node, |_| {}).await
    }

    async fn start_with(cluster: &Cluster, node: &str, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options {
            kubernetes: cluster.config(&account()),
            node: node.to_owned(),
            namespace: NAMESPACE.to_owned(),
            cri_socket: None,
            mirror_ready: false,
            admin: ANYWHERE,
            enabled: true,
            time_of_day: WallClock::default(),
        };
        change(&mut options);
        let stop = CancellationToken::new();
        let admin = quorate_agent::start(options, stop.clone()).await.expect("an agent").admin;
        Self { admin, _stop: stop.drop_guard() }
    }
}

/// Agents of node-1, each a process of its own, one after the other.
struct Agents {
    kubeconfig: PathBuf,
    folder: TempDir,
    started: usize,
}

impl Agents {
    async fn of(cluster: &Cluster) -> Self {
        let kubeconfig = cluster.kubeconfig(&account()).expect("a kubeconfig");
        Self { kubeconfig, folder: tempfile::tempdir().expect("a folder"), started: 0 }
    }

    fn start(&mut self) -> Process {
        let args = [
            "agent",
            "--node-name=node-1",
            "--admin-listen=127.0.0.1:0",
            &format!("--kubeconfig={}", self.kubeconfig.display()),
            &format!("--namespace={NAMESPACE}"),
        ];
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        self.started += 1;
        let name = format!("agent-{}", self.started);
        let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
        Process::start(&name, binary, &args, self.folder.path()).expect("a process")
    }
}

/// A probe with a period of one second. An answer may take longer on a busy machine.
fn probe(more: &Value) -> Value {
    let mut probe = json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10});
    for (field, value) in more.as_object().expect("fields of a probe") {
        probe[field] = value.clone();
    }
    probe
}

/// A pod of the application `db`, whose container `main` has this probe.
fn pod(name: &str, probe: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "db"},
            "annotations": {"quorate.dev/disruption-probe.main": probe.to_string()}},
        "spec": {"terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "db:1", "ports": [{"name": "web", "containerPort": 80}]}]}})
}

/// The condition `Disruptable` of a pod; null if it has none.
async fn disruptable_condition(ns: &TestNamespace, pod: &str) -> Value {
    let pod = ns.get("v1", "pods", pod).await.body;
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Disruptable").unwrap_or_default()
}

/// Waits until the condition `Disruptable` of a pod has this status, reason and message.
async fn await_disruptable(
    ns: &TestNamespace,
    pod: &str,
    status: &str,
    reason: &str,
    message: &str,
) -> Value {
    eventually(&format!("{pod} is Disruptable {status} {reason} {message}"), || async {
        let shown = disruptable_condition(ns, pod).await;
        let said = shown["message"].as_str().unwrap_or_default();
        let is = shown["status"] == status && shown["reason"] == reason && said.contains(message);
        if is { Ok(shown) } else { Err(shown) }
    })
    .await
}

/// Evicts a pod until the denial has this reason. It must be denied, for any reason, each time.
async fn await_denial(ns: &TestNamespace, pod: &str, why: &str) {
    eventually(&format!("{pod} is denied: {why}"), || async {
        let answer = ns.evict(pod).await;
        assert_eq!(answer.code, 429, "{:#}", answer.body);
        let message = answer.message();
        if message.contains(why) { Ok(()) } else { Err(message.to_owned()) }
    })
    .await;
}

async fn await_disruptable_true(ns: &TestNamespace, pod: &str) -> Value {
    await_disruptable(ns, pod, "True", "ProbeSucceeded", "").await
}
