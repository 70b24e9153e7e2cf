//! Tests of the deletion of objects without a grace period: preconditions, finalizers, collections.

use quorate_testbed::{Cluster, Patch, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, deployment, names, uid_of, version_of};

stories!(ApiServer:
    a_deletion_returns_the_identity_of_the_object,
    a_deletion_can_require_a_uid,
    a_deletion_can_require_a_version,
    a_finalizer_delays_the_removal_of_an_object,
    no_finalizer_can_be_added_during_deletion,
    a_collection_is_deleted_by_its_labels,
    foreground_deletion_sets_a_finalizer,
    orphan_deletion_sets_a_finalizer,
);

async fn a_deletion_returns_the_identity_of_the_object(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "deleted").await;
    let made = ns.config_map("one", json!({})).await;
    let answer = ns.wire.delete(&ns.core("configmaps/one"), &json!({})).await.expect(200);
    assert_eq!(answer["kind"], "Status");
    assert_eq!(answer["status"], "Success");
    assert_eq!(answer["details"], json!({"name": "one", "kind": "configmaps", "uid": uid_of(&made)}));
    assert_eq!(ns.code(&ns.core("configmaps/one")).await, 404);
}

async fn a_deletion_can_require_a_uid(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "uid").await;
    let made = ns.config_map("one", json!({})).await;
    let path = ns.core("configmaps/one");
    let wrong = json!({"preconditions": {"uid": "another"}});
    let answer = ns.wire.delete(&path, &wrong).await;
    assert_eq!((answer.code, answer.reason()), (409, "Conflict"));
    assert!(
        answer.message().contains("the UID in the precondition (another) does not match the UID in record"),
        "{}",
        answer.message()
    );
    assert_eq!(ns.code(&path).await, 200);
    ns.wire.delete(&path, &json!({"preconditions": {"uid": uid_of(&made)}})).await.expect(200);
}

async fn a_deletion_can_require_a_version(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "version").await;
    let old = ns.config_map("one", json!({})).await;
    let path = ns.core("configmaps/one");
    let new = ns.wire.patch(&path, Patch::Merge, &json!({"data": {"k": "v"}})).await.expect(200);
    let late = ns.wire.delete(&path, &json!({"preconditions": {"resourceVersion": version_of(&old)}})).await;
    assert_eq!((late.code, late.reason()), (409, "Conflict"));
    ns.wire.delete(&path, &json!({"preconditions": {"resourceVersion": version_of(&new)}})).await.expect(200);
}

async fn a_finalizer_delays_the_removal_of_an_object(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "finalizer").await;
    let path = ns.core("configmaps/one");
    ns.config_map("one", json!({})).await;
    let finalizers = json!({"metadata": {"finalizers": ["example.com/first", "example.com/second"]}});
    ns.wire.patch(&path, Patch::Merge, &finalizers).await.expect(200);

    let held = ns.wire.delete(&path, &json!({})).await.expect(200);
    assert_eq!(held["kind"], "ConfigMap", "the response is the object that still exists");
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
    // A second deletion is not an error, and changes nothing.
    let again = ns.wire.delete(&path, &json!({})).await.expect(200);
    assert_eq!(version_of(&again), version_of(&held));

    let one_left = json!({"metadata": {"finalizers": ["example.com/second"]}});
    ns.wire.patch(&path, Patch::Merge, &one_left).await.expect(200);
    assert_eq!(ns.code(&path).await, 200);
    ns.wire.patch(&path, Patch::Merge, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(ns.code(&path).await, 404);
}

async fn no_finalizer_can_be_added_during_deletion(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "latefinalizer").await;
    let path = ns.core("configmaps/one");
    ns.config_map("one", json!({})).await;
    let first = json!({"metadata": {"finalizers": ["example.com/first"]}});
    ns.wire.patch(&path, Patch::Merge, &first).await.expect(200);
    ns.wire.delete(&path, &json!({})).await.expect(200);
    let more = json!({"metadata": {"finalizers": ["example.com/first", "example.com/second"]}});
    let answer = ns.wire.patch(&path, Patch::Merge, &more).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    assert!(
        answer.message().contains("no new finalizers can be added if the object is being deleted"),
        "{}",
        answer.message()
    );
}

async fn a_collection_is_deleted_by_its_labels(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "collection").await;
    for (name, team) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"team": team}}});
        ns.create("configmaps", &object).await;
    }
    let path = format!("{}?labelSelector=team%3Dred", ns.core("configmaps"));
    let gone = ns.wire.delete(&path, &json!({})).await.expect(200);
    assert_eq!(names(&gone), ["a", "c"]);
    let left = ns.wire.get(&format!("{}?labelSelector=team", ns.core("configmaps"))).await.expect(200);
    assert_eq!(names(&left), ["b"]);
}

async fn foreground_deletion_sets_a_finalizer(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "foreground").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 1)).await.expect(201);
    let path = ns.path("apps/v1", "deployments/web");
    ns.wire.delete(&path, &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    let held = ns.wire.get(&path).await.expect(200);
    assert_eq!(held["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(held["metadata"]["deletionTimestamp"].is_string());
}

async fn orphan_deletion_sets_a_finalizer(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "orphan").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 1)).await.expect(201);
    let path = ns.path("apps/v1", "deployments/web");
    ns.wire.delete(&path, &json!({"propagationPolicy": "Orphan"})).await.expect(200);
    let held = ns.wire.get(&path).await.expect(200);
    assert_eq!(held["metadata"]["finalizers"], json!(["orphan"]));
}
