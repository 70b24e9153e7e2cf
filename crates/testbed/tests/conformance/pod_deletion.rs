//! Tests of the deletion of pods: a pod on a node has a grace period.

use quorate_testbed::{Cluster, stories};
use serde_json::json;

use crate::fixtures::{Space, pod, pod_on, text, uid_of, version_of};

stories!(ApiServer:
    a_pod_without_a_node_is_removed_at_once,
    a_pod_on_a_node_has_a_grace_period,
    a_deletion_can_set_the_grace_period,
    a_second_deletion_can_only_shorten_the_grace_period,
    a_finished_pod_is_removed_at_once,
    the_kubelet_removes_the_pod,
    a_pod_with_a_finalizer_outlives_its_grace_period,
);

async fn a_pod_without_a_node_is_removed_at_once(cluster: Cluster) {
    let space = Space::new(&cluster, "unbound").await;
    space.create("pods", &pod("one")).await;
    space.wire.delete(&space.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(space.code(&space.core("pods/one")).await, 404);
}

async fn a_pod_on_a_node_has_a_grace_period(cluster: Cluster) {
    let space = Space::new(&cluster, "bound").await;
    space.create("pods", &pod_on("one", "some-node")).await;
    let answer = space.wire.delete(&space.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(answer["kind"], "Pod");
    let ending = space.wire.get(&space.core("pods/one")).await.expect(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    // `deletionTimestamp` is the time when the grace period ends.
    assert!(
        text(&ending, "/metadata/deletionTimestamp") > text(&ending, "/metadata/creationTimestamp"),
        "{ending}"
    );
}

async fn a_deletion_can_set_the_grace_period(cluster: Cluster) {
    let space = Space::new(&cluster, "grace").await;
    space.create("pods", &pod_on("one", "some-node")).await;
    space.wire.delete(&space.core("pods/one"), &json!({"gracePeriodSeconds": 7})).await.expect(200);
    let ending = space.wire.get(&space.core("pods/one")).await.expect(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 7);
}

async fn a_second_deletion_can_only_shorten_the_grace_period(cluster: Cluster) {
    let space = Space::new(&cluster, "shorter").await;
    let path = space.core("pods/one");
    space.create("pods", &pod_on("one", "some-node")).await;
    let first = space.wire.delete(&path, &json!({})).await.expect(200);
    let longer = space.wire.delete(&path, &json!({"gracePeriodSeconds": 60})).await.expect(200);
    assert_eq!(version_of(&longer), version_of(&first));
    let shorter = space.wire.delete(&path, &json!({"gracePeriodSeconds": 5})).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(
        text(&shorter, "/metadata/deletionTimestamp") < text(&first, "/metadata/deletionTimestamp"),
        "{shorter}"
    );
}

async fn a_finished_pod_is_removed_at_once(cluster: Cluster) {
    let space = Space::new(&cluster, "finished").await;
    space.create("pods", &pod_on("one", "some-node")).await;
    space.set_phase("one", "Succeeded", None).await;
    space.wire.delete(&space.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(space.code(&space.core("pods/one")).await, 404);
}

async fn the_kubelet_removes_the_pod(cluster: Cluster) {
    let space = Space::new(&cluster, "lastword").await;
    let path = space.core("pods/one");
    let made = space.create("pods", &pod_on("one", "some-node")).await;
    space.wire.delete(&path, &json!({})).await.expect(200);
    let another = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}});
    assert_eq!(space.wire.delete(&path, &another).await.code, 409);
    let last = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(&made)}});
    space.wire.delete(&path, &last).await.expect(200);
    assert_eq!(space.code(&path).await, 404);
}

async fn a_pod_with_a_finalizer_outlives_its_grace_period(cluster: Cluster) {
    let space = Space::new(&cluster, "outlives").await;
    let path = space.core("pods/one");
    let mut object = pod_on("one", "some-node");
    object["metadata"]["finalizers"] = json!(["example.com/held"]);
    space.create("pods", &object).await;
    space.wire.delete(&path, &json!({"gracePeriodSeconds": 0})).await.expect(200);
    let held = space.wire.get(&path).await.expect(200);
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 0);
}
