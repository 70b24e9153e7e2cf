//! What an agent costs and how punctual it is: `cargo xtask bench agent`.
//!
//! An agent as a process of its own. The embedded cluster and the target of all probes are in this process, and so not in
//! its figures; on a machine with few processors they compete with it. Prints one `name=value unit` per line.

#![allow(clippy::expect_used, clippy::panic, reason = "a measurement that cannot go on ends")]

mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use quorate_testbed::{Backend, Cluster, Options, Patch, Process, User, Wire};
use serde_json::{Value, json};
use target::Target;

const PODS: usize = 1_000;
const WATCHED: Duration = Duration::from_secs(30);
const FLIPS: usize = 100;

#[tokio::main]
async fn main() {
    let cluster = Cluster::whole(Backend::Embedded, Options::default()).await.expect("a cluster");
    let wire = cluster.wire();
    let target = Target::start().await;
    let namespace = cluster.namespace("bench").await.expect("a namespace");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quorate-system"}});
    wire.post("/api/v1/namespaces", &own).await.expect(201);
    let made = futures::stream::iter(0..PODS).for_each_concurrent(16, |number| {
        let (wire, pods, port) = (&wire, &pods, target.port);
        async move {
            wire.post(pods, &pod(number, port)).await.expect(201);
            wire.patch(&format!("{pods}/pod-{number}/status"), Patch::Merge, &running(number))
                .await
                .expect(200);
        }
    });
    made.await;

    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    let args = [
        "agent".to_owned(),
        "--node-name=node-1".to_owned(),
        "--admin-listen=127.0.0.1:0".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    let started = Instant::now();
    let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
    let agent = Process::start("agent", binary, &args, folder.path()).expect("a process");
    wait_for(&wire, &pods, "True", PODS).await;
    println!("first_verdicts_of_1k_pods={:.2} s", started.elapsed().as_secs_f64());

    target.forget();
    let before = processor_time(&agent);
    tokio::time::sleep(WATCHED).await;
    let (arrivals, busy) = (target.arrivals(), processor_time(&agent) - before);
    println!("agent_cpu={:.1} %", 100.0 * busy.as_secs_f64() / WATCHED.as_secs_f64());
    println!("agent_resident={:.1} MiB", resident(&agent) / 1024.0 / 1024.0);
    let probes: usize = arrivals.values().map(Vec::len).sum();
    println!("probes_per_second={:.0} 1/s", probes as f64 / WATCHED.as_secs_f64());
    let mut drifts = drifts(&arrivals);
    println!("schedule_drift_p50={:.1} ms", quantile(&mut drifts, 0.5));
    println!("schedule_drift_p99={:.1} ms", quantile(&mut drifts, 0.99));
    println!("schedule_drift_max={:.1} ms", quantile(&mut drifts, 1.0));

    let mut delays = Vec::new();
    for number in 0..FLIPS {
        delays.push(flip(&wire, &pods, &target, number).await);
    }
    println!("change_to_condition_p50={:.0} ms", quantile(&mut delays, 0.5));
    println!("change_to_condition_p99={:.0} ms", quantile(&mut delays, 0.99));

    let changed = Instant::now();
    target.set_all_answers(false);
    wait_for(&wire, &pods, "False", PODS).await;
    println!("all_1k_changes_to_conditions={:.2} s", changed.elapsed().as_secs_f64());
}

fn pod(number: usize, port: u16) -> Value {
    let probe = json!({
        "httpGet": {"host": "127.0.0.1", "port": port, "path": format!("/{number}")},
        "periodSeconds": 1, "failureThreshold": 1,
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"),
            "annotations": {"quorate.dev/disruption-probe.main": probe.to_string()},
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "main:1"}]},
    })
}

fn running(number: usize) -> Value {
    json!({"status": {
        "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "main", "image": "main:1", "imageID": "", "ready": true, "restartCount": 0, "started": true,
            "containerID": format!("containerd://{number}"),
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    }})
}

/// Waits until so many pods have the condition in this status. Lists them once and then watches: repeated lists would take
/// the processor from the agent.
async fn wait_for(wire: &Wire, pods: &str, status: &str, count: usize) {
    let list = wire.get(pods).await.expect(200);
    let name = |pod: &Value| pod["metadata"]["name"].to_string();
    let there = list["items"].as_array().into_iter().flatten();
    let mut matching: BTreeSet<String> =
        there.filter(|pod| condition_status(pod) == status).map(name).collect();
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let mut changes = wire.watch(&format!("{pods}?watch=1&resourceVersion={version}")).await;
    while matching.len() < count {
        let (_, pod) = changes.next().await.expect("a change");
        if condition_status(&pod) == status {
            matching.insert(name(&pod));
        } else {
            matching.remove(&name(&pod));
        }
    }
}

fn condition_status(pod: &Value) -> &str {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == "Disruptable");
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default()
}

/// One target changes its answer: how long until its pod's condition changes, in milliseconds.
async fn flip(wire: &Wire, pods: &str, target: &Target, number: usize) -> f64 {
    let path = format!("{pods}/pod-{number}");
    let version = wire.get(&path).await.expect(200)["metadata"]["resourceVersion"].clone();
    let version = version.as_str().expect("a version").to_owned();
    let watch = format!("{pods}?watch=1&fieldSelector=metadata.name=pod-{number}&resourceVersion={version}");
    let mut changes = wire.watch(&watch).await;
    let changed = Instant::now();
    target.set_answer(number, false);
    while let Some((_, pod)) = changes.next().await {
        if condition_status(&pod) == "False" {
            return changed.elapsed().as_secs_f64() * 1000.0;
        }
    }
    panic!("the watch ended")
}

/// How far each question was from where the schedule of its first one puts it, in milliseconds.
fn drifts(arrivals: &BTreeMap<usize, Vec<Instant>>) -> Vec<f64> {
    let of_pod = |times: &Vec<Instant>| {
        let first = times[0];
        let off = |time: &Instant| {
            let since = (*time - first).as_secs_f64();
            (since - since.round()).abs() * 1000.0
        };
        times.iter().skip(1).map(off).collect::<Vec<_>>()
    };
    arrivals.values().flat_map(of_pod).collect()
}

fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len().saturating_sub(1)) as f64 * part).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

fn resident(agent: &Process) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id().expect("a process")));
    let status = status.expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kilobytes * 1024.0
}

fn processor_time(agent: &Process) -> Duration {
    // schedstat is in nanoseconds, but counts one thread only.
    let tasks =
        std::fs::read_dir(format!("/proc/{}/task", agent.id().expect("a process"))).expect("a process");
    let of_task = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
        let stat =
            task.and_then(|task| std::fs::read_to_string(task.path().join("schedstat"))).unwrap_or_default();
        stat.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(tasks.map(of_task).sum())
}
