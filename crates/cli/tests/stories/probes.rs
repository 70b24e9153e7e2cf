//! Pods that say themselves whether they may be disrupted, and whether they are believed.

use quorate_testbed::{Cluster, Patch, User, Wire, eventually};
use serde_json::{Value, json};

use crate::quorate::Quorate;
use crate::space::Space;

quorate_testbed::stories!(Whole: a_pod_is_believed_while_the_agent_of_its_node_is_alive,
    a_probe_that_makes_no_sense_is_refused);

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

async fn a_probe_that_makes_no_sense_is_refused(cluster: Cluster) {
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
    let refused = eventually("somebody looks at probes", || async {
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

    // What makes sense passes, and cannot be turned into what does not.
    wire.post(&pods, &pod("a", good)).await.expect(201);
    let spoil = json!({"metadata": annotations("yes")});
    let path = format!("{pods}/a");
    let spoilt = wire.patch(&path, Patch::Merge, &spoil).await;
    assert_eq!(spoilt.code, 422, "{}", spoilt.body);

    // A kubelet shows what runs on its node already, whatever it declares.
    let mut mirror = pod("mirror", bad);
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("1");
    mirror["spec"]["nodeName"] = json!("by-hand");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand"}});
    let node = wire.post("/api/v1/nodes", &node).await.expect(201);
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "by-hand",
        "uid": node["metadata"]["uid"], "controller": true}]);
    Wire::new(cluster.client(&User::kubelet("by-hand"))).post(&pods, &mirror).await.expect(201);

    // No pod fails to start because nobody is there to look at it. Those that slipped through can still be changed.
    quorate.end().await;
    wire.post(&pods, &pod("b", bad)).await.expect(201);
    let _quorate = Quorate::start_with(&cluster, |_| {}).await;
    eventually("somebody looks at probes again", || async {
        let answer = wire.post(&dry, &pod("c", bad)).await;
        if answer.code == 422 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let label = json!({"metadata": {"labels": {"seen": "true"}}});
    wire.patch(&format!("{pods}/b"), Patch::Merge, &label).await.expect(200);
}
