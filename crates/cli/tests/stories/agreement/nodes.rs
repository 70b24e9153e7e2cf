//! Nodes with and without agents: the story writes the Leases that agents would renew.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use quorate_testbed::{Patch, Wire};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A node that is ready, and whose agent renews its Lease.
pub(super) const ALIVE: &str = "alive";
/// A node whose agent does not renew its Lease any more.
pub(super) const SILENT: &str = "silent";
/// A node without an agent.
pub(super) const BARE: &str = "bare";
/// A node that is not ready.
pub(super) const LOST: &str = "lost";

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/quorate-system/leases";

/// The time so many minutes ago.
pub(super) fn time(minutes: i64) -> Value {
    json!(Time(Timestamp::now() - SignedDuration::from_mins(minutes)))
}

/// The same, with microseconds.
pub(super) fn micro_time(minutes: i64) -> Value {
    json!(MicroTime(Timestamp::now() - SignedDuration::from_mins(minutes)))
}

/// Creates the nodes and the Leases. The Leases of live agents are renewed until the set is dropped.
pub(super) async fn create(wire: &Wire) -> JoinSet<()> {
    let room = json!({"cpu": "4", "memory": "4Gi", "pods": "500"});
    for (node, ready) in
        [("by-hand", "True"), (ALIVE, "True"), (SILENT, "True"), (BARE, "True"), (LOST, "False")]
    {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        let created = wire.post("/api/v1/nodes", &object).await;
        assert!(matches!(created.code, 201 | 409), "{}", created.body);
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}],
            "capacity": room, "allocatable": room}});
        wire.patch(&format!("/api/v1/nodes/{node}/status"), Patch::Merge, &status).await.expect(200);
    }
    for (node, seconds, renewed) in [(ALIVE, 40, 0), (LOST, 40, 0), (SILENT, 1, 10)] {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": format!("quorate-agent-{node}"), "labels": {"quorate.dev/component": "agent"}},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": seconds, "acquireTime": micro_time(60),
                "renewTime": micro_time(renewed)}});
        wire.post(LEASES, &lease).await.expect(201);
    }
    let mut renewing = JoinSet::new();
    for node in [ALIVE, LOST] {
        let wire = wire.clone();
        renewing.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                let renewal = json!({"spec": {"renewTime": micro_time(0)}});
                wire.patch(&format!("{LEASES}/quorate-agent-{node}"), Patch::Merge, &renewal)
                    .await
                    .expect(200);
            }
        });
    }
    renewing
}

/// The Lease of a server that was killed a moment ago.
pub(super) async fn killed_server(wire: &Wire) {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "quorate-server-killed", "labels": {"quorate.dev/component": "server"},
            "annotations": {"quorate.dev/serving": "true"}},
        "spec": {"holderIdentity": "quorate-server-killed", "leaseDurationSeconds": 15,
            "acquireTime": micro_time(1), "renewTime": micro_time(0)}});
    wire.post(LEASES, &lease).await.expect(201);
}

pub(super) async fn forget_killed_server(wire: &Wire) {
    wire.delete(&format!("{LEASES}/quorate-server-killed"), &json!({})).await.expect(200);
}
