//! Pods that say themselves whether they may be disrupted, and whether they are believed.

use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};

use crate::space::Space;

quorate_testbed::stories!(Whole: a_pod_is_believed_while_the_agent_of_its_node_is_alive);

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/quorate-system/leases";

/// A moment that many minutes ago.
fn minutes_ago(minutes: i64) -> String {
    let then = k8s_openapi::jiff::Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_mins(minutes);
    then.to_string()
}

fn lease(renewed: i64) -> Value {
    let at = |minutes| {
        json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
            k8s_openapi::jiff::Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_mins(minutes)
        ))
    };
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "quorate-agent-node-1", "labels": {"quorate.dev/component": "agent"}},
        "spec": {"holderIdentity": "node-1", "leaseDurationSeconds": 600, "acquireTime": at(60),
            "renewTime": at(renewed)}})
}

async fn a_pod_is_believed_while_the_agent_of_its_node_is_alive(cluster: Cluster) {
    let space = Space::with_node(cluster, "probed").await;
    for name in ["a", "b"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "db"}, "annotations":
                {"quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "db:1"}]}});
        space.create("v1", "pods", &pod).await;
    }
    space.ready(2).await;
    space.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 1})).await;
    space.budget_is("db", "nobody is believed", |status| status["currentHealthy"] == 0).await;

    let wire = space.cluster.wire();
    wire.post(LEASE, &lease(10)).await.expect(201);
    for name in ["a", "b"] {
        let condition = json!({"type": "Disruptable", "status": "True", "reason": "ProbeSucceeded",
            "lastProbeTime": minutes_ago(-1).split('.').next().map(|text| format!("{text}Z")),
            "lastTransitionTime": minutes_ago(0).split('.').next().map(|text| format!("{text}Z"))});
        let path = format!("/api/v1/namespaces/{}/pods/{name}/status", space.namespace);
        let patch = json!({"status": {"conditions": [condition]}});
        wire.patch(&path, Patch::Strategic, &patch).await.expect(200);
    }
    space.budget_is("db", "both are believed", |status| status["disruptionsAllowed"] == 1).await;

    wire.delete(&format!("{LEASE}/quorate-agent-node-1"), &json!({})).await.expect(200);
    space.budget_is("db", "the agent is gone", |status| status["currentHealthy"] == 0).await;
    let refused = space.evict("a").await;
    assert_eq!(refused.code, 429, "{:#}", refused.body);

    wire.post(LEASE, &lease(0)).await.expect(201);
    space.budget_is("db", "the agent is back", |status| status["disruptionsAllowed"] == 1).await;
    space.cluster.actors().nodes().silence("node-1").await.expect("a node");
    // The node controller takes its time.
    eventually("the node is lost, and nothing is believed", || async {
        let status = space.get("policy.quorate.dev/v1alpha1", "disruptionbudgets", "db").await.body;
        if status["status"]["currentHealthy"] == 0 { Ok(()) } else { Err(status) }
    })
    .await;
}
