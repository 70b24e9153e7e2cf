//! How long `quorate explain` takes, as a process of its own: with and without probes, next to a server.

use std::time::Instant;

use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use quorate_testbed::{Backend, Cluster, Options, Patch, User};
use serde_json::json;
use tokio::process::Command;

use super::{Replicas, pod};

const PODS: usize = 2_000;
const TIMES: usize = 5;

pub(super) async fn measure() {
    let cluster = Cluster::whole(Backend::Embedded, Options::default()).await.expect("a cluster");
    let _replicas = Replicas::start(&cluster, 1, &[]).await;
    let wire = cluster.wire();
    let ago = |minutes| Timestamp::now() - SignedDuration::from_mins(minutes);
    for node in 0..100 {
        let node = format!("node-{node}");
        wire.post("/api/v1/nodes", &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))
            .await
            .expect(201);
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        wire.patch(&format!("/api/v1/nodes/{node}/status"), Patch::Merge, &ready).await.expect(200);
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": format!("quorate-agent-{node}"), "labels": {"quorate.dev/component": "agent"}},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 600, "acquireTime": MicroTime(ago(60)),
                "renewTime": MicroTime(ago(0))}});
        wire.post("/apis/coordination.k8s.io/v1/namespaces/quorate-system/leases", &lease).await.expect(201);
    }
    for probed in [false, true] {
        let namespace = cluster.namespace("explained").await.expect("a namespace");
        let budget = json!({
            "apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        });
        let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets");
        wire.post(&budgets, &budget).await.expect(201);
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let probe = json!({"quorate.dev/disruption-probe.web": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"});
        let conditions = json!([{"type": "Ready", "status": "True"},
            {"type": "Disruptable", "status": "True", "lastProbeTime": Time(ago(0))}]);
        let made = futures::stream::iter(0..PODS).for_each_concurrent(16, |number| {
            let (wire, path, probe, conditions) = (&wire, &path, &probe, &conditions);
            async move {
                let mut pod = pod(number);
                if probed {
                    pod["metadata"]["annotations"] = probe.clone();
                }
                wire.post(path, &pod).await.expect(201);
                let status = json!({"status": {"phase": "Running", "conditions": conditions,
                    "containerStatuses": [{"name": "web", "image": "web:1", "imageID": "", "ready": true, "restartCount": 0,
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}});
                wire.patch(&format!("{path}/pod-{number}/status"), Patch::Merge, &status).await.expect(200);
            }
        });
        made.await;
        super::healthy(&wire, &namespace, PODS).await;
        let kind = if probed { "probed_" } else { "" };
        for (name, what) in [("pod", "pod/pod-0"), ("budget", "budget/web"), ("pods", "pods")] {
            let mut taken = Vec::new();
            for _ in 0..TIMES {
                let start = Instant::now();
                explain(&cluster, &[what, "-n", &namespace, "-o", "json"]).await;
                taken.push(start.elapsed());
            }
            taken.sort();
            println!("explain_{kind}{name}_of_2k={:.0} ms", taken[TIMES / 2].as_secs_f64() * 1000.0);
        }
    }
}

async fn explain(cluster: &Cluster, args: &[&str]) {
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    let output = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .arg("explain")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .output()
        .await
        .expect("quorate");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
