//! Twenty drains of nodes with a server on each: no drain sees an error, and each one ends.
//!
//! The cluster has two halves. All nodes of one half are drained at once, each with a server and with pods under a
//! budget, while the replacement servers start on the other half. Then the roles change.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, is_ready};
use crate::quorate::NAMESPACE;
use crate::replicas::Replicas;

quorate_testbed::stories!(Whole: nodes_with_servers_are_drained_twenty_times);

/// Nodes in each half.
const NODES: usize = 5;

const ROUNDS: usize = 4;

/// Pods under the budget.
const PODS: usize = 10;

/// The default time that a server keeps serving after SIGTERM, so that no request fails.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(15);

/// Keeps the pod that represents a server until the process of the server has ended.
const FINALIZER: &str = "example.com/process";

async fn nodes_with_servers_are_drained_twenty_times(cluster: Cluster) {
    for half in 0..2 {
        for number in 0..NODES {
            cluster.actors().nodes().add(&node(half, number)).await.expect("a node");
        }
    }
    let replicas = Replicas::start(&cluster, NODES, &[]).await;
    let test = ServerDrains {
        servers: Api::namespaced(cluster.admin(), NAMESPACE),
        ns: TestNamespace::with_manual_pods(&cluster, "drained").await,
        replicas: tokio::sync::Mutex::new(replicas),
    };
    test.replicas.lock().await.add_slots(NODES);
    for number in 0..NODES {
        test.create_server_pod(0, number).await;
    }
    // All pods begin in the half that is drained first.
    for number in 0..NODES {
        test.kubectl(&["cordon", &node(1, number)]).await;
    }
    test.create_workload().await;
    let mut refused = 0;
    for round in 0..ROUNDS {
        let (from, to) = (round % 2, (round + 1) % 2);
        for number in 0..NODES {
            test.kubectl(&["uncordon", &node(to, number)]).await;
        }
        test.await_all_ready().await;
        let drains = join_all((0..NODES).map(|number| test.drain(from, to, number))).await;
        refused += drains.iter().sum::<usize>();
    }
    assert!(refused > 0, "no drain had to wait for the budget");
    println!("{} drains, {refused} refusals on the way", NODES * ROUNDS);
}

fn node(half: usize, number: usize) -> String {
    format!("node-{half}-{number}")
}

/// The slot of the server on a node.
fn slot(half: usize, number: usize) -> usize {
    half * NODES + number
}

struct ServerDrains {
    servers: Api<Pod>,
    ns: TestNamespace,
    replicas: tokio::sync::Mutex<Replicas>,
}

impl ServerDrains {
    async fn kubectl(&self, args: &[&str]) {
        let printed = self.ns.kubectl.run(args).await.expect("kubectl");
        assert!(printed.success, "{args:?}: {}", printed.stderr);
    }

    /// Creates pods under a budget that allows a few evictions at a time.
    async fn create_workload(&self) {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
            "spec": {
                "replicas": PODS, "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{"name": "web", "image": "web:1"}],
                        "topologySpreadConstraints": [{
                            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": {"app": "web"}},
                        }],
                    },
                },
            },
        });
        let path = self.ns.path("apps/v1", "replicasets");
        self.ns.wire.post(&path, &set).await.expect(201);
        self.await_all_ready().await;
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 4});
        self.ns.create_budget_allowing("web", spec, 4).await;
        self.ns.await_enforced_label(true).await;
    }

    async fn await_all_ready(&self) {
        eventually("all pods are ready", || async {
            let all =
                self.ns.pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let ready = all.iter().filter(|pod| is_ready(pod)).count();
            if ready == PODS { Ok(()) } else { Err(format!("{ready} of {}", all.len())) }
        })
        .await;
    }

    /// Creates the pod that represents a server.
    async fn create_server_pod(&self, half: usize, number: usize) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("server-{half}-{number}"), "finalizers": [FINALIZER]},
            "spec": {
                "nodeName": node(half, number), "terminationGracePeriodSeconds": 1, "serviceAccountName": "quorate-server",
                "containers": [{"name": "server", "image": "quorate:1"}],
            },
        });
        self.ns.wire.post(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod).await.expect(201);
    }

    /// Drains a node, and replaces its server as a kubelet and a Deployment would. Returns the number of denials.
    async fn drain(&self, from: usize, to: usize, number: usize) -> usize {
        let name = node(from, number);
        let args = ["drain", &name, "--force", "--ignore-daemonsets", "--timeout=120s"];
        let (drained, ()) = tokio::join!(self.ns.kubectl.run(&args), self.move_server(from, to, number));
        let drained = drained.expect("kubectl");
        assert!(drained.success, "{name}: {}{}", drained.stdout, drained.stderr);
        for word in ["Internal error", "InternalError", "failed calling webhook"] {
            assert!(!drained.stderr.contains(word), "{name}: {}", drained.stderr);
        }
        drained.stderr.matches("will retry after").count()
    }

    async fn move_server(&self, from: usize, to: usize, number: usize) {
        let name = format!("server-{from}-{number}");
        eventually("the pod of the server is terminating", || async {
            match self.servers.get(&name).await {
                Ok(pod) if pod.metadata.deletion_timestamp.is_some() => Ok(()),
                Ok(_) => Err("it stays".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        let signalled = tokio::time::Instant::now();
        {
            let mut replicas = self.replicas.lock().await;
            replicas.signal(slot(from, number), "TERM");
            replicas.fill(slot(to, number)).await;
        }
        self.create_server_pod(to, number).await;
        let ended = eventually("the server has ended", || async {
            let Ok(mut replicas) = self.replicas.try_lock() else { return Err("busy") };
            replicas.has_ended(slot(from, number)).ok_or("running")
        })
        .await;
        assert!(ended.success(), "{ended}");
        assert!(signalled.elapsed() >= SHUTDOWN_DELAY, "it served on for {:?} only", signalled.elapsed());
        let bare = json!({"metadata": {"finalizers": null}});
        self.servers.patch(&name, &PatchParams::default(), &Patch::Merge(&bare)).await.expect("a pod");
    }
}
