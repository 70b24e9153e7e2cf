//! Owners whose deletion a pod blocks: only if the creator of the pod has the right to do that.

use quorate_testbed::{Cluster, Options, eventually};
use serde_json::json;

use super::owners_of;
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Private(enforcing()): a_pod_blocks_owner_deletion_if_its_creator_may);

/// An API server that rejects such pods of creators without the right.
fn enforcing() -> Options {
    Options {
        controllers: true,
        admission_plugins: vec!["OwnerReferencesPermissionEnforcement".to_owned()],
        ..Options::default()
    }
}

async fn a_pod_blocks_owner_deletion_if_its_creator_may(cluster: Cluster) {
    let ns = TestNamespace::with_owner_references(cluster, "blocking").await;
    let mut group = ns.create_job_group("nightly").await;
    group["blockOwnerDeletion"] = json!(true);
    // The embedded cluster has no authorization.
    let may = ns.cluster.embedded().is_some();
    ns.create_workload("ReplicaSet", "before", &json!([group])).await;
    let pods = ns.await_pods_of("before", 1).await;
    assert_eq!(owners_of(&pods[0])[1]["blockOwnerDeletion"], may, "{:#?}", owners_of(&pods[0]));

    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "may-block"},
        "rules": [{"apiGroups": ["batch.example.com"], "resources": ["jobgroups/finalizers"], "verbs": ["update"]}],
    });
    ns.wire.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "may-block"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "may-block"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "replicaset-controller"}],
    });
    ns.wire.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    ns.create_workload("ReplicaSet", "after", &json!([group])).await;
    eventually("a pod blocks the deletion of its owner", || async {
        let pods = ns.await_pods_of("after", 1).await;
        let owner = owners_of(&pods[0])[1].clone();
        if owner["blockOwnerDeletion"] == true {
            return Ok(());
        }
        // The pod was created before the API server knew the right.
        ns.wire.delete(&ns.path("v1", "pods?labelSelector=app%3Dafter"), &json!({})).await.expect(200);
        Err(owner)
    })
    .await;
}
