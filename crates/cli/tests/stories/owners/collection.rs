//! What the garbage collector does with pods that have an owner beside their controller.

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use super::{GROUPS, Lab};

quorate_testbed::stories!(Whole: a_pod_stays_until_its_last_owner_is_gone);

/// Replica sets a to d, each with a pod that belongs to a JobGroup of that name as well.
async fn a_pod_stays_until_its_last_owner_is_gone(cluster: Cluster) {
    let lab = Lab::open(cluster, "collected").await;
    let mut pods = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let group = lab.group(&format!("group-{name}")).await;
        lab.workload("ReplicaSet", name, &json!([group])).await;
        pods.push(lab.owned(name, &[name, &format!("group-{name}")]).await);
    }

    // The other owner goes, the controller lives: the pod stays, and loses the reference.
    lab.delete(GROUPS, "jobgroups", "group-a", "Background").await;
    // The controller goes, the other owner lives: the pod stays, though nobody keeps it.
    lab.delete("apps/v1", "replicasets", "b", "Background").await;
    // The controller waits for its pods: not for those that somebody else owns too.
    lab.delete("apps/v1", "replicasets", "c", "Foreground").await;
    // The controller lets go of its pods: the other owner is then the last.
    lab.delete("apps/v1", "replicasets", "d", "Orphan").await;
    for (name, owner, pod) in [
        ("a", "a", &pods[0]),
        ("b", "group-b", &pods[1]),
        ("c", "group-c", &pods[2]),
        ("d", "group-d", &pods[3]),
    ] {
        assert_eq!(lab.owned(name, &[owner]).await, *pod, "{name}: the same pod");
    }
    for name in ["b", "c", "d"] {
        eventually("the replica set is gone", || async {
            let found = lab.get("apps/v1", "replicasets", name).await;
            if found.code == 404 { Ok(()) } else { Err(found.body) }
        })
        .await;
    }

    // The last one goes, and the pod with it.
    for name in ["b", "c", "d"] {
        lab.delete(GROUPS, "jobgroups", &format!("group-{name}"), "Background").await;
    }
    for name in ["b", "c", "d"] {
        lab.pods(name, 0).await;
    }
    assert_eq!(lab.owned("a", &["a"]).await, pods[0], "that one has its controller");

    // A pod that is made after the owner is gone does not ask for it again.
    lab.wire.delete(&lab.path("v1", "pods?labelSelector=app%3Da"), &json!({})).await.expect(200);
    eventually("another pod takes its place", || async {
        let uid = lab.owned("a", &["a"]).await;
        if uid == pods[0] { Err(uid) } else { Ok(()) }
    })
    .await;
}
