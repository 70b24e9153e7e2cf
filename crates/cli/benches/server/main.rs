//! What a server costs: `cargo xtask bench server`.
//!
//! A server as a process of its own, on the embedded cluster, which is in this process and so not in its figures.
//! Prints one `name=value unit` per line. `cargo bench -p quorate --bench server -- openings` runs one part: `pods`,
//! `openings` or `explain`.

#![allow(clippy::expect_used, clippy::panic, reason = "a measurement that cannot go on ends")]

#[path = "../../tests/stories/endpoints.rs"]
mod endpoints;
mod explain;
mod openings;
#[path = "../../tests/stories/quorate.rs"]
#[allow(dead_code, reason = "shared with the stories")]
mod quorate;
#[path = "../../tests/stories/replicas.rs"]
#[allow(dead_code, reason = "shared with the stories")]
mod replicas;

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use quorate_testbed::{Backend, Cluster, Options, Patch, Wire, eventually};
use replicas::Replicas;
use serde_json::{Value, json};

const MANY: usize = 10_000;
const FEW: usize = 1_000;
const FLIPS: usize = 1_000;

#[tokio::main]
async fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let runs = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    if runs("explain") {
        explain::measure().await;
    }
    if runs("openings") {
        openings::measure().await;
    }
    if runs("pods") {
        pods().await;
    }
}

/// What watched pods cost.
async fn pods() {
    let cluster = Cluster::whole(Backend::Embedded, Options::default()).await.expect("a cluster");
    let mut replicas = Replicas::start(&cluster, 1, &[]).await;
    let wire = cluster.wire();
    let empty = resident(&replicas);
    println!("server_resident_empty={:.1} MiB", empty / 1024.0 / 1024.0);

    let few = namespace(&cluster, FEW).await;
    let flips_of_few = flips(&wire, &replicas, &few).await;
    let before = resident(&replicas);
    let many = namespace(&cluster, MANY).await;
    let full = resident(&replicas);
    println!("bytes_per_watched_pod={:.0} B", (full - before) / MANY as f64);
    println!("server_resident_full={:.1} MiB", full / 1024.0 / 1024.0);
    let flips_of_many = flips(&wire, &replicas, &many).await;
    println!("flip_cpu_1k={:.1} ms", flips_of_few.as_secs_f64() * 1000.0);
    println!("flip_cpu_10k={:.1} ms", flips_of_many.as_secs_f64() * 1000.0);
    println!("flip_cpu_ratio={:.2} x", flips_of_many.as_secs_f64() / flips_of_few.as_secs_f64());

    replicas.kill(0);
    let start = Instant::now();
    replicas.fill(0).await;
    replicas.until_ready(1).await;
    println!("ready_with_11k_pods={:.2} s", start.elapsed().as_secs_f64());
    println!("server_resident_after_start={:.1} MiB", resident(&replicas) / 1024.0 / 1024.0);
}

/// A namespace with so many ready pods under one budget, all of them counted.
async fn namespace(cluster: &Cluster, pods: usize) -> String {
    let namespace = cluster.namespace("bench").await.expect("a namespace");
    let wire = cluster.wire();
    let budget = json!({
        "apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets");
    wire.post(&budgets, &budget).await.expect(201);
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let made = futures::stream::iter(0..pods).for_each_concurrent(16, |number| {
        let (wire, path) = (&wire, &path);
        async move {
            wire.post(path, &pod(number)).await.expect(201);
            set_ready(wire, &format!("{path}/pod-{number}"), true).await;
        }
    });
    made.await;
    healthy(&wire, &namespace, pods).await;
    namespace
}

/// A pod of an everyday size: what is not looked at should cost nothing.
fn pod(number: usize) -> Value {
    let env: Vec<Value> =
        (0..20).map(|i| json!({"name": format!("SETTING_{i}"), "value": "something or other"})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"),
            "labels": {"app": "web", "tier": "front", "release": "stable"},
            "annotations": {"example.com/note": "x".repeat(200)},
        },
        "spec": {
            "nodeName": format!("node-{}", number % 100),
            "containers": [{"name": "web", "image": "registry.example.com/web:1.2.3", "env": env}],
        },
    })
}

async fn set_ready(wire: &Wire, pod: &str, ready: bool) {
    let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
    let status = json!({"status": {"phase": "Running", "conditions": [condition]}});
    wire.patch(&format!("{pod}/status"), Patch::Merge, &status).await.expect(200);
}

async fn healthy(wire: &Wire, namespace: &str, pods: usize) {
    let path = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets/web");
    eventually("the budget counts its pods", || async {
        let status = wire.get(&path).await.expect(200)["status"].clone();
        if status["currentHealthy"] == pods { Ok(()) } else { Err(status) }
    })
    .await;
}

/// The processor time that the server takes for so many changes of readiness, half of them to ready.
async fn flips(wire: &Wire, replicas: &Replicas, namespace: &str) -> Duration {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let pods = wire.get(&format!("{path}?limit=1")).await.expect(200);
    assert!(pods["items"].as_array().is_some_and(|items| !items.is_empty()), "no pods");
    let all = wire.get(&path).await.expect(200)["items"].as_array().map_or(0, Vec::len);
    let before = replicas.processor_time();
    for number in 0..FLIPS / 2 {
        let pod = format!("{path}/pod-{}", number % all);
        set_ready(wire, &pod, false).await;
        set_ready(wire, &pod, true).await;
    }
    healthy(wire, namespace, all).await;
    replicas.processor_time() - before
}

fn resident(replicas: &Replicas) -> f64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", replicas.process_id(0))).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kilobytes * 1024.0
}
