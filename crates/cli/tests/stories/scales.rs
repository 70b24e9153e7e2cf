//! Pods of custom kinds with a scale subresource, and pods of Jobs.

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, condition};

quorate_testbed::stories!(Whole: the_scale_of_a_custom_kind_is_counted, pods_of_a_job_are_counted_by_the_budget);

async fn the_scale_of_a_custom_kind_is_counted(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "harbour").await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    ns.wire.post(definitions, &definition()).await.expect(201);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "fleets", "labels": {"rbac.quorate.dev/aggregate-to-server": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["fleets"], "verbs": ["get", "list", "watch"]}],
    });
    ns.wire.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let fleet = json!({"apiVersion": "example.com/v1", "kind": "Fleet", "metadata": {"name": "red"},
        "spec": {"ships": 3}});
    let fleet = ns.create("example.com/v1", "fleets", &fleet).await;
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Fleet", "name": "red",
        "uid": fleet["metadata"]["uid"], "controller": true});
    for name in ["red-0", "red-1", "red-2"] {
        ns.create("v1", "pods", &pod(name, &owner)).await;
    }
    ns.await_ready_pods(3).await;
    ns.create_enforced_budget(
        "red",
        json!({"selector": {"matchLabels": {"app": "red"}}, "maxUnavailable": 1}),
    )
    .await;
    ns.await_status("red", "three ships are expected", |status| {
        status["expectedPods"] == 3 && status["disruptionsAllowed"] == 1
    })
    .await;

    // One more pod is expected, and does not exist.
    ns.patch("example.com/v1", "fleets", "red", &json!({"spec": {"ships": 4}})).await;
    ns.await_status("red", "four ships are expected", |status| {
        status["expectedPods"] == 4 && status["disruptionsAllowed"] == 0
    })
    .await;
    let refused = ns.evict("red-0").await;
    assert_eq!((refused.code, refused.reason()), (429, "TooManyRequests"), "{:#}", refused.body);

    ns.patch("example.com/v1", "fleets", "red", &json!({"spec": {"ships": 3}})).await;
    ns.await_status("red", "one may go", |status| status["disruptionsAllowed"] == 1).await;
    assert_eq!(ns.evict("red-0").await.code, 201);
    assert_eq!(ns.evict("red-1").await.code, 429);

    // The definition is deleted, so the number of expected pods is unknown. The garbage collector deletes the pods of
    // the deleted object; a finalizer keeps them until the status is written.
    let path = format!("{definitions}/fleets.example.com");
    ns.wire.delete(&path, &json!({})).await.expect(200);
    ns.await_status("red", "nothing is known", |status| {
        condition(status, "DisruptionAllowed")["reason"] == "SyncFailed"
    })
    .await;
}

/// A Job has no scale, but `parallelism` and `completions`.
async fn pods_of_a_job_are_counted_by_the_budget(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "batch").await;
    let template = json!({"metadata": {"labels": {"app": "once"}}, "spec": {"restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "once:1"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
        "spec": {"parallelism": 2, "completions": 2, "template": template}});
    ns.create("batch/v1", "jobs", &job).await;
    eventually("both pods are ready", || async {
        let ready = ns.ready_pods_by("app").await;
        if ready.get("once") == Some(&2) { Ok(()) } else { Err(ready) }
    })
    .await;
    ns.create_enforced_budget(
        "once",
        json!({"selector": {"matchLabels": {"app": "once"}}, "minAvailable": 2}),
    )
    .await;
    ns.await_status("once", "two are kept", |status| status["currentHealthy"] == 2).await;
    ns.start_blocked_drain("node-1", 2).await.stop();

    ns.patch_budget_spec("once", json!({"minAvailable": null, "maxUnavailable": 1})).await;
    ns.await_status("once", "two are wanted", |status| {
        status["expectedPods"] == 2 && status["disruptionsAllowed"] == 1
    })
    .await;
}

fn pod(name: &str, owner: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "red"}, "ownerReferences": [owner],
            "finalizers": ["example.com/kept"]},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "ship:1"}]}})
}

fn definition() -> Value {
    let numbers = json!({"type": "object", "properties": {"ships": {"type": "integer"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "fleets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Fleet", "plural": "fleets", "singular": "fleet", "listKind": "FleetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"scale": {"specReplicasPath": ".spec.ships", "statusReplicasPath": ".status.ships"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": numbers, "status": numbers}}},
            }],
        },
    })
}
