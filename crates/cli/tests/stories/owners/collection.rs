//! What the garbage collector does with pods that have an owner beside their controller.

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use super::GROUPS;
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole: a_pod_stays_until_its_last_owner_is_gone);

/// Replica sets a to d, each with a pod that a JobGroup owns too.
async fn a_pod_stays_until_its_last_owner_is_gone(cluster: Cluster) {
    let ns = TestNamespace::with_owner_references(cluster, "collected").await;
    let mut pods = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let group = ns.create_job_group(&format!("group-{name}")).await;
        ns.create_workload("ReplicaSet", name, &json!([group])).await;
        pods.push(ns.await_owners(name, &[name, &format!("group-{name}")]).await);
    }

    // The other owner is deleted: the controller remains, so the pod stays, and loses the reference.
    ns.delete_with_policy(GROUPS, "jobgroups", "group-a", "Background").await;
    // The controller is deleted: the other owner remains, so the pod stays, although no controller manages it.
    ns.delete_with_policy("apps/v1", "replicasets", "b", "Background").await;
    // The controller waits for its pods, but not for those with another owner.
    ns.delete_with_policy("apps/v1", "replicasets", "c", "Foreground").await;
    // The controller orphans its pods: the other owner is then the last one.
    ns.delete_with_policy("apps/v1", "replicasets", "d", "Orphan").await;
    for (name, owner, pod) in [
        ("a", "a", &pods[0]),
        ("b", "group-b", &pods[1]),
        ("c", "group-c", &pods[2]),
        ("d", "group-d", &pods[3]),
    ] {
        assert_eq!(ns.await_owners(name, &[owner]).await, *pod, "{name}: the same pod");
    }
    for name in ["b", "c", "d"] {
        eventually("the replica set is gone", || async {
            let found = ns.get("apps/v1", "replicasets", name).await;
            if found.code == 404 { Ok(()) } else { Err(found.body) }
        })
        .await;
    }

    // The last owner is deleted, and the pod with it.
    for name in ["b", "c", "d"] {
        ns.delete_with_policy(GROUPS, "jobgroups", &format!("group-{name}"), "Background").await;
    }
    for name in ["b", "c", "d"] {
        ns.await_pods_of(name, 0).await;
    }
    assert_eq!(ns.await_owners("a", &["a"]).await, pods[0], "that one has its controller");

    // A pod that is created after the owner is gone does not get it as an owner.
    ns.wire.delete(&ns.path("v1", "pods?labelSelector=app%3Da"), &json!({})).await.expect(200);
    eventually("another pod takes its place", || async {
        let uid = ns.await_owners("a", &["a"]).await;
        if uid == pods[0] { Err(uid) } else { Ok(()) }
    })
    .await;
}
