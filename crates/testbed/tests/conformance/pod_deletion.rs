//! Tests of the deletion of pods: a pod on a node has a grace period.

use quorate_testbed::{Cluster, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, pod, pod_on, text, uid_of, version_of};

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
    let ns = TestNamespace::new(&cluster, "unbound").await;
    ns.create("pods", &pod("one")).await;
    ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(ns.code(&ns.core("pods/one")).await, 404);
}

async fn a_pod_on_a_node_has_a_grace_period(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "bound").await;
    ns.create("pods", &pod_on("one", "some-node")).await;
    let answer = ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(answer["kind"], "Pod");
    let ending = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    // `deletionTimestamp` is the time when the grace period ends.
    assert!(
        text(&ending, "/metadata/deletionTimestamp") > text(&ending, "/metadata/creationTimestamp"),
        "{ending}"
    );
}

async fn a_deletion_can_set_the_grace_period(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "grace").await;
    ns.create("pods", &pod_on("one", "some-node")).await;
    ns.wire.delete(&ns.core("pods/one"), &json!({"gracePeriodSeconds": 7})).await.expect(200);
    let ending = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 7);
}

async fn a_second_deletion_can_only_shorten_the_grace_period(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "shorter").await;
    let path = ns.core("pods/one");
    ns.create("pods", &pod_on("one", "some-node")).await;
    let first = ns.wire.delete(&path, &json!({})).await.expect(200);
    let longer = ns.wire.delete(&path, &json!({"gracePeriodSeconds": 60})).await.expect(200);
    assert_eq!(version_of(&longer), version_of(&first));
    let shorter = ns.wire.delete(&path, &json!({"gracePeriodSeconds": 5})).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(
        text(&shorter, "/metadata/deletionTimestamp") < text(&first, "/metadata/deletionTimestamp"),
        "{shorter}"
    );
}

async fn a_finished_pod_is_removed_at_once(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "finished").await;
    ns.create("pods", &pod_on("one", "some-node")).await;
    ns.set_phase("one", "Succeeded", None).await;
    ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    assert_eq!(ns.code(&ns.core("pods/one")).await, 404);
}

async fn the_kubelet_removes_the_pod(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "lastword").await;
    let path = ns.core("pods/one");
    let made = ns.create("pods", &pod_on("one", "some-node")).await;
    ns.wire.delete(&path, &json!({})).await.expect(200);
    let another = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}});
    assert_eq!(ns.wire.delete(&path, &another).await.code, 409);
    let last = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(&made)}});
    ns.wire.delete(&path, &last).await.expect(200);
    assert_eq!(ns.code(&path).await, 404);
}

async fn a_pod_with_a_finalizer_outlives_its_grace_period(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "outlives").await;
    let path = ns.core("pods/one");
    let mut object = pod_on("one", "some-node");
    object["metadata"]["finalizers"] = json!(["example.com/held"]);
    ns.create("pods", &object).await;
    ns.wire.delete(&path, &json!({"gracePeriodSeconds": 0})).await.expect(200);
    let held = ns.wire.get(&path).await.expect(200);
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 0);
}
