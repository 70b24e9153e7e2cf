//! Disruption probes: when their results count, and how they are validated.

use quorate_testbed::{Cluster, Patch, User, Wire, eventually};
use serde_json::{Value, json};

use crate::fixture::TestNamespace;
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: a_probe_result_counts_while_the_agent_is_alive,
    an_invalid_probe_is_rejected);

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/quorate-system/leases";

/// The time that many minutes ago.
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

async fn a_probe_result_counts_while_the_agent_is_alive(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "probed").await;
    for name in ["a", "b"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "db"}, "annotations":
                {"quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "db:1"}]}});
        ns.create("v1", "pods", &pod).await;
    }
    ns.await_ready_pods(2).await;
    ns.create_enforced_budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 1}))
        .await;
    ns.await_status("db", "no probe result counts", |status| status["currentHealthy"] == 0).await;

    let wire = &ns.wire;
    wire.post(LEASE, &lease(10)).await.expect(201);
    for name in ["a", "b"] {
        let condition = json!({"type": "Disruptable", "status": "True", "reason": "ProbeSucceeded",
            "lastProbeTime": minutes_ago(-1).split('.').next().map(|text| format!("{text}Z")),
            "lastTransitionTime": minutes_ago(0).split('.').next().map(|text| format!("{text}Z"))});
        let path = ns.pod_path(&format!("{name}/status"));
        let patch = json!({"status": {"conditions": [condition]}});
        wire.patch(&path, Patch::Strategic, &patch).await.expect(200);
    }
    ns.await_status("db", "both results count", |status| status["disruptionsAllowed"] == 1).await;

    wire.delete(&format!("{LEASE}/quorate-agent-node-1"), &json!({})).await.expect(200);
    ns.await_status("db", "the agent is gone", |status| status["currentHealthy"] == 0).await;
    let refused = ns.evict("a").await;
    assert_eq!(refused.code, 429, "{:#}", refused.body);

    wire.post(LEASE, &lease(0)).await.expect(201);
    ns.await_status("db", "the agent is back", |status| status["disruptionsAllowed"] == 1).await;
    ns.cluster.actors().nodes().silence("node-1").await.expect("a node");
    // The node controller needs a while.
    eventually("the node is lost, and no result counts", || async {
        let status = ns.get("policy.quorate.dev/v1alpha1", "disruptionbudgets", "db").await.body;
        if status["status"]["currentHealthy"] == 0 { Ok(()) } else { Err(status) }
    })
    .await;
}

async fn an_invalid_probe_is_rejected(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let namespace = cluster.namespace("typos").await.expect("a namespace");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let wire = cluster.wire();
    let annotations = |text: &str| json!({"annotations": {"quorate.dev/disruption-probe.main": text}});
    let pod = |name: &str, text: &str| {
        let mut metadata = annotations(text);
        metadata["name"] = json!(name);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": [{"name": "main", "image": "db:1"}]}})
    };
    let good = "{\"tcpSocket\":{\"port\":80}}";
    let bad = "{\"tcpSocket\":{\"port\":80},\"periodSecond\":5}";
    let dry = format!("{pods}?dryRun=All");
    let refused = eventually("probes are validated", || async {
        let answer = wire.post(&dry, &pod("a", bad)).await;
        if answer.code == 422 { Ok(answer) } else { Err(answer.body) }
    })
    .await;
    let sentence = "admission webhook \"probes.quorate.dev\" denied the request: \
        metadata.annotations[quorate.dev/disruption-probe.main].periodSecond: is an unknown field";
    let message = refused.body["message"].as_str().expect("a message");
    assert!(message.starts_with(sentence), "{message}");
    let cause = &refused.body["details"]["causes"][0];
    assert_eq!(cause["field"], "metadata.annotations[quorate.dev/disruption-probe.main].periodSecond");

    // A valid probe is accepted, and cannot be changed to an invalid one.
    wire.post(&pods, &pod("a", good)).await.expect(201);
    let spoil = json!({"metadata": annotations("yes")});
    let path = format!("{pods}/a");
    let spoilt = wire.patch(&path, Patch::Merge, &spoil).await;
    assert_eq!(spoilt.code, 422, "{}", spoilt.body);

    // A mirror pod shows what already runs on the node, so it is not validated.
    let mut mirror = pod("mirror", bad);
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("1");
    mirror["spec"]["nodeName"] = json!("by-hand");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand"}});
    let node = wire.post("/api/v1/nodes", &node).await.expect(201);
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "by-hand",
        "uid": node["metadata"]["uid"], "controller": true}]);
    Wire::new(cluster.client(&User::kubelet("by-hand"))).post(&pods, &mirror).await.expect(201);

    // Without a server a pod is accepted unvalidated. Such a pod can still be changed.
    quorate.end().await;
    wire.post(&pods, &pod("b", bad)).await.expect(201);
    let _quorate = Quorate::start_with(&cluster, |_| {}).await;
    eventually("probes are validated again", || async {
        let answer = wire.post(&dry, &pod("c", bad)).await;
        if answer.code == 422 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let label = json!({"metadata": {"labels": {"seen": "true"}}});
    wire.patch(&format!("{pods}/b"), Patch::Merge, &label).await.expect(200);
}
