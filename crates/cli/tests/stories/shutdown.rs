//! A server that is told to end is missed by nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use quorate_testbed::{Cluster, User, eventually};
use serde_json::json;

use crate::quorate::NAMESPACE;
use crate::replicas::Replicas;
use crate::scene::is_ready;
use crate::town::Town;

quorate_testbed::stories!(Whole:
    servers_end_twenty_times_and_nobody_sees_an_error,
    a_node_with_a_server_on_it_is_drained_twenty_times,
);

const TIMES: usize = 20;

async fn servers_end_twenty_times_and_nobody_sees_an_error(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2, &["--shutdown-delay-seconds=2"]).await;
    let town = Arc::new(Town::found(&cluster, "busy").await);
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 0).await;
    town.labelled(true).await;
    let over = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = (0..4)
        .map(|number| {
            let (town, over, asked) = (town.clone(), over.clone(), asked.clone());
            tokio::spawn(async move {
                let mut wrong = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let answer = town.evict(&format!("web-{}", number % 2)).await;
                    asked.fetch_add(1, Ordering::Relaxed);
                    if answer.code != 429 {
                        wrong.push(answer.body);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                wrong
            })
        })
        .collect();
    for time in 0..TIMES {
        let place = time % 2;
        replicas.signal(place, "TERM");
        let replicas_cell = parking_lot::Mutex::new(&mut replicas);
        let status = eventually("the server has ended", || async {
            replicas_cell.lock().has_ended(place).ok_or("running")
        })
        .await;
        assert!(status.success(), "{status}");
        replicas.fill(place).await;
        replicas.until_ready(2).await;
    }
    over.store(true, Ordering::Relaxed);
    for evictor in asking {
        let wrong = evictor.await.expect("an evictor");
        assert!(wrong.is_empty(), "not a refusal as it should be: {wrong:#?}");
    }
    println!("{} evictions asked for while {TIMES} servers ended", asked.load(Ordering::Relaxed));
}

/// Each time a node with pods under a budget and one of two servers on it: the drain waits for the budget, never for a
/// server that has gone.
async fn a_node_with_a_server_on_it_is_drained_twenty_times(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2, &["--shutdown-delay-seconds=2"]).await;
    for node in ["node-0", "node-1"] {
        cluster.actors().nodes().add(node).await.expect("a node");
    }
    let town = Town::found(&cluster, "drained").await;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    });
    town.wire
        .post(&format!("/apis/apps/v1/namespaces/{}/replicasets", town.namespace), &set)
        .await
        .expect(201);
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 1).await;
    town.labelled(true).await;
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let servers: Api<Pod> = Api::namespaced(cluster.admin(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), &town.namespace);
    for time in 0..TIMES {
        let (place, node) = (time % 2, format!("node-{}", time % 2));
        eventually("all pods are ready", || async {
            let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let ready = all.iter().filter(|pod| is_ready(pod)).count();
            if ready == 3 { Ok(()) } else { Err(format!("{ready} of {}", all.len())) }
        })
        .await;
        // What stands for the server in the cluster: when it goes, the server is told to end, as a kubelet would.
        let name = format!("server-{time}");
        let stand_in = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "server", "image": "quorate:1"}],
            },
        });
        town.wire.post(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &stand_in).await.expect(201);
        let args = ["drain", &node, "--force", "--ignore-daemonsets", "--timeout=60s"];
        let told = async {
            eventually("the server's pod goes", || async {
                match servers.get_opt(&name).await {
                    Ok(Some(pod)) if pod.metadata.deletion_timestamp.is_none() => Err("there"),
                    Ok(_) => Ok(()),
                    Err(_) => Err("no answer"),
                }
            })
            .await;
            replicas.signal(place, "TERM");
        };
        let (drained, ()) = tokio::join!(kubectl.run(&args), told);
        let drained = drained.expect("kubectl");
        assert!(drained.success, "drain {time}: {}{}", drained.stdout, drained.stderr);
        assert!(!drained.stderr.contains("Internal error"), "drain {time}: {}", drained.stderr);
        let replicas_cell = parking_lot::Mutex::new(&mut replicas);
        let ended = || async { replicas_cell.lock().has_ended(place).ok_or("running") };
        assert!(eventually("the server has ended", ended).await.success());
        replicas.fill(place).await;
        replicas.until_ready(2).await;
        assert!(kubectl.run(&["uncordon", &node]).await.expect("kubectl").success);
    }
}
