//! Owners whose deletion a pod would hold up: only where whoever makes the pod may do that.

use quorate_testbed::{Cluster, Options, eventually};
use serde_json::json;

use super::{Lab, owners_of};

quorate_testbed::stories!(Private(enforcing()): a_pod_blocks_a_deletion_where_its_maker_may);

/// An API server that refuses pods whose maker may not.
fn enforcing() -> Options {
    Options {
        controllers: true,
        admission_plugins: vec!["OwnerReferencesPermissionEnforcement".to_owned()],
        ..Options::default()
    }
}

async fn a_pod_blocks_a_deletion_where_its_maker_may(cluster: Cluster) {
    let lab = Lab::open(cluster, "blocking").await;
    let mut group = lab.group("nightly").await;
    group["blockOwnerDeletion"] = json!(true);
    // The embedded cluster lets everybody do everything.
    let may = lab.cluster.embedded().is_some();
    lab.workload("ReplicaSet", "before", &json!([group])).await;
    let pods = lab.pods("before", 1).await;
    assert_eq!(owners_of(&pods[0])[1]["blockOwnerDeletion"], may, "{:#?}", owners_of(&pods[0]));

    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "may-block"},
        "rules": [{"apiGroups": ["batch.example.com"], "resources": ["jobgroups/finalizers"], "verbs": ["update"]}],
    });
    lab.wire.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "may-block"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "may-block"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "replicaset-controller"}],
    });
    lab.wire.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    lab.workload("ReplicaSet", "after", &json!([group])).await;
    eventually("a pod blocks the deletion of its owner", || async {
        let pods = lab.pods("after", 1).await;
        let owner = owners_of(&pods[0])[1].clone();
        if owner["blockOwnerDeletion"] == true {
            return Ok(());
        }
        // It was made before the right was known everywhere.
        lab.wire.delete(&lab.path("v1", "pods?labelSelector=app%3Dafter"), &json!({})).await.expect(200);
        Err(owner)
    })
    .await;
}
