//! Pods of a kind that nobody knew when Quorate was written, and that counts in its own way.

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::space::Space;

quorate_testbed::stories!(Whole: the_scale_of_any_kind_counts, pods_of_a_job_are_counted_by_the_budget);

async fn the_scale_of_any_kind_counts(cluster: Cluster) {
    let space = Space::with_node(cluster, "harbour").await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    space.cluster.wire().post(definitions, &definition()).await.expect(201);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "fleets", "labels": {"rbac.quorate.dev/aggregate-to-server": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["fleets"], "verbs": ["get", "list", "watch"]}],
    });
    space.cluster.wire().post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let fleet = json!({"apiVersion": "example.com/v1", "kind": "Fleet", "metadata": {"name": "red"},
        "spec": {"ships": 3}});
    let fleet = space.create("example.com/v1", "fleets", &fleet).await;
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Fleet", "name": "red",
        "uid": fleet["metadata"]["uid"], "controller": true});
    for name in ["red-0", "red-1", "red-2"] {
        space.create("v1", "pods", &pod(name, &owner)).await;
    }
    space.ready(3).await;
    space.budget("red", json!({"selector": {"matchLabels": {"app": "red"}}, "maxUnavailable": 1})).await;
    space
        .budget_is("red", "three ships are expected", |status| {
            status["expectedPods"] == 3 && status["disruptionsAllowed"] == 1
        })
        .await;

    // One more is wanted, and is not there.
    space.change("example.com/v1", "fleets", "red", &json!({"spec": {"ships": 4}})).await;
    space
        .budget_is("red", "four ships are expected", |status| {
            status["expectedPods"] == 4 && status["disruptionsAllowed"] == 0
        })
        .await;
    let refused = space.evict("red-0").await;
    assert_eq!((refused.code, refused.reason()), (429, "TooManyRequests"), "{:#}", refused.body);

    space.change("example.com/v1", "fleets", "red", &json!({"spec": {"ships": 3}})).await;
    space.budget_is("red", "one may go", |status| status["disruptionsAllowed"] == 1).await;
    assert_eq!(space.evict("red-0").await.code, 201);
    assert_eq!(space.evict("red-1").await.code, 429);

    // The kind goes: nobody knows how many there should be. (Its objects go with it, so the pods are collected; a
    // finalizer keeps them, or they might be gone before anybody looks.)
    let path = format!("{definitions}/fleets.example.com");
    space.cluster.wire().delete(&path, &json!({})).await.expect(200);
    space
        .budget_is("red", "nothing is known", |status| {
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "DisruptionAllowed" && c["reason"] == "SyncFailed")
        })
        .await;
}

/// A Job has no scale, but says how many pods it wants.
async fn pods_of_a_job_are_counted_by_the_budget(cluster: Cluster) {
    let space = Space::with_node(cluster, "batch").await;
    let template = json!({"metadata": {"labels": {"app": "once"}}, "spec": {"restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "once:1"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
        "spec": {"parallelism": 2, "completions": 2, "template": template}});
    space.create("batch/v1", "jobs", &job).await;
    eventually("both pods are ready", || async {
        let ready = space.ready_by("app").await;
        if ready.get("once") == Some(&2) { Ok(()) } else { Err(ready) }
    })
    .await;
    space.budget("once", json!({"selector": {"matchLabels": {"app": "once"}}, "minAvailable": 2})).await;
    space.budget_is("once", "two are kept", |status| status["currentHealthy"] == 2).await;
    space.drain_waits("node-1", 2).await.give_up();

    space.change_budget("once", json!({"minAvailable": null, "maxUnavailable": 1})).await;
    space
        .budget_is("once", "two are wanted", |status| {
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
