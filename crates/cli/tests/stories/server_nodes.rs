//! Nodes with a server on each are drained, twenty in all: no drain sees an error, and each goes to its end.
//!
//! There are two halves of the cluster. All nodes of one half are drained at once, each with a server and pods under a
//! budget on it, while servers that take over start on the other half; then the other way round.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use quorate_testbed::{Cluster, Kubectl, User, eventually};
use serde_json::json;

use crate::quorate::NAMESPACE;
use crate::replicas::Replicas;
use crate::scene::is_ready;
use crate::town::Town;

quorate_testbed::stories!(Whole: nodes_with_servers_are_drained_twenty_times);

/// Nodes in each half.
const NODES: usize = 5;

const ROUNDS: usize = 4;

/// Pods under the budget.
const PODS: usize = 10;

/// How long a server serves on, as it does unless told otherwise: nobody may notice its end.
const LINGERS: Duration = Duration::from_secs(15);

/// Keeps what stands for a server in the cluster until the server has ended.
const FINALIZER: &str = "example.com/process";

async fn nodes_with_servers_are_drained_twenty_times(cluster: Cluster) {
    for half in 0..2 {
        for number in 0..NODES {
            cluster.actors().nodes().add(&node(half, number)).await.expect("a node");
        }
    }
    let replicas = Replicas::start(&cluster, NODES, &[]).await;
    let scene = Scene {
        servers: Api::namespaced(cluster.admin(), NAMESPACE),
        kubectl: cluster.kubectl(&User::admin()).expect("kubectl"),
        town: Town::found(&cluster, "drained").await,
        replicas: tokio::sync::Mutex::new(replicas),
    };
    scene.replicas.lock().await.add_places(NODES);
    for number in 0..NODES {
        scene.stand_in(0, number).await;
    }
    // All pods begin in the half that is drained first.
    for number in 0..NODES {
        scene.kubectl(&["cordon", &node(1, number)]).await;
    }
    scene.workload(&cluster).await;
    let mut refused = 0;
    for round in 0..ROUNDS {
        let (from, to) = (round % 2, (round + 1) % 2);
        for number in 0..NODES {
            scene.kubectl(&["uncordon", &node(to, number)]).await;
        }
        scene.all_ready(&cluster).await;
        let drains = join_all((0..NODES).map(|number| scene.drain(from, to, number))).await;
        refused += drains.iter().sum::<usize>();
    }
    assert!(refused > 0, "no drain had to wait for the budget");
    println!("{} drains, {refused} refusals on the way", NODES * ROUNDS);
}

fn node(half: usize, number: usize) -> String {
    format!("node-{half}-{number}")
}

/// The place of the server on a node.
fn place(half: usize, number: usize) -> usize {
    half * NODES + number
}

struct Scene {
    servers: Api<Pod>,
    kubectl: Kubectl,
    town: Town,
    replicas: tokio::sync::Mutex<Replicas>,
}

impl Scene {
    async fn kubectl(&self, args: &[&str]) {
        let printed = self.kubectl.run(args).await.expect("kubectl");
        assert!(printed.success, "{args:?}: {}", printed.stderr);
    }

    /// Pods under a budget that lets a few of them go at a time.
    async fn workload(&self, cluster: &Cluster) {
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
        let path = format!("/apis/apps/v1/namespaces/{}/replicasets", self.town.namespace);
        self.town.wire.post(&path, &set).await.expect(201);
        self.all_ready(cluster).await;
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 4});
        self.town.budget("web", spec, 4).await;
        self.town.labelled(true).await;
    }

    async fn all_ready(&self, cluster: &Cluster) {
        let pods: Api<Pod> = Api::namespaced(cluster.admin(), &self.town.namespace);
        eventually("all pods are ready", || async {
            let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let ready = all.iter().filter(|pod| is_ready(pod)).count();
            if ready == PODS { Ok(()) } else { Err(format!("{ready} of {}", all.len())) }
        })
        .await;
    }

    /// Makes what stands for a server in the cluster.
    async fn stand_in(&self, half: usize, number: usize) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("server-{half}-{number}"), "finalizers": [FINALIZER]},
            "spec": {
                "nodeName": node(half, number), "terminationGracePeriodSeconds": 1, "serviceAccountName": "quorate-server",
                "containers": [{"name": "server", "image": "quorate:1"}],
            },
        });
        self.town.wire.post(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod).await.expect(201);
    }

    /// Drains a node, and does to its server what a kubelet and a Deployment would; how often the drain was refused.
    async fn drain(&self, from: usize, to: usize, number: usize) -> usize {
        let name = node(from, number);
        let args = ["drain", &name, "--force", "--ignore-daemonsets", "--timeout=120s"];
        let (drained, ()) = tokio::join!(self.kubectl.run(&args), self.move_server(from, to, number));
        let drained = drained.expect("kubectl");
        assert!(drained.success, "{name}: {}{}", drained.stdout, drained.stderr);
        for word in ["Internal error", "InternalError", "failed calling webhook"] {
            assert!(!drained.stderr.contains(word), "{name}: {}", drained.stderr);
        }
        drained.stderr.matches("will retry after").count()
    }

    async fn move_server(&self, from: usize, to: usize, number: usize) {
        let name = format!("server-{from}-{number}");
        eventually("the server's pod is told to go", || async {
            match self.servers.get(&name).await {
                Ok(pod) if pod.metadata.deletion_timestamp.is_some() => Ok(()),
                Ok(_) => Err("it stays".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        let told = tokio::time::Instant::now();
        {
            let mut replicas = self.replicas.lock().await;
            replicas.signal(place(from, number), "TERM");
            replicas.fill(place(to, number)).await;
        }
        self.stand_in(to, number).await;
        let ended = eventually("the server has ended", || async {
            let Ok(mut replicas) = self.replicas.try_lock() else { return Err("busy") };
            replicas.has_ended(place(from, number)).ok_or("running")
        })
        .await;
        assert!(ended.success(), "{ended}");
        assert!(told.elapsed() >= LINGERS, "it served on for {:?} only", told.elapsed());
        let bare = json!({"metadata": {"finalizers": null}});
        self.servers.patch(&name, &PatchParams::default(), &Patch::Merge(&bare)).await.expect("a pod");
    }
}
