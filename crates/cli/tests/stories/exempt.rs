//! Requests that must never be blocked: of kubelets, the garbage collector, the namespace controller and the scheduler.
//! They pass also without a server, and while the server has not synced.

use quorate_testbed::{Cluster, User, Wire, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::{Quorate, service_account};

quorate_testbed::stories!(Whole: exempt_requests_pass_without_a_server, exempt_requests_pass_an_unsynced_server);

async fn exempt_requests_pass_without_a_server(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = set_up(&cluster).await;
    quorate.end().await;
    // The API server itself rejects all other requests, because it cannot call the webhook.
    let held = ns.evict("owned-1").await;
    assert_eq!(held.code, 500, "{}", held.body);
    must_pass(&cluster, &ns).await;
}

async fn exempt_requests_pass_an_unsynced_server(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = set_up(&cluster).await;
    quorate.end().await;
    // A server that the API server can reach, and that may not read pods: it never syncs.
    let rights = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate-server";
    if cluster.control_plane().is_some() {
        let patch = json!([{"op": "replace", "path": "/rules/0/resources", "value": ["namespaces"]}]);
        cluster.wire().patch(rights, quorate_testbed::Patch::Json, &patch).await.expect(200);
    }
    let _fault = cluster.embedded().map(|server| {
        use quorate_devcluster::apiserver::{Fault, RequestFilter};
        server.faults().requests(
            RequestFilter::any().user(service_account().name()).resource("pods"),
            Fault::InternalError,
        )
    });
    let _unsynced = Quorate::start_unready(&cluster).await;
    eventually("the server is called, and denies", || async {
        let answer = ns.evict("owned-1").await;
        if answer.code == 429 { Ok(denial(&answer)) } else { Err(answer.body) }
    })
    .await;
    must_pass(&cluster, &ns).await;
}

/// A labelled namespace with a budget that denies every operation.
async fn set_up(cluster: &Cluster) -> TestNamespace {
    let ns = TestNamespace::with_manual_pods(cluster, "held").await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}});
    let path = ns.path("v1", "configmaps");
    let owner = ns.wire.post(&path, &owner).await.expect(201);
    for name in ["owned-0", "owned-1", "kept-0", "kept-1"] {
        ns.create_pod(name, json!({"app": "web"})).await;
    }
    for name in ["owned-0", "owned-1"] {
        let reference = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]},
        ]}});
        let path = ns.pod_path(name);
        ns.wire.patch(&path, quorate_testbed::Patch::Merge, &reference).await.expect(200);
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 4, "operations": ["Evict", "Delete", "Update"],
    });
    ns.create_budget_allowing("web", spec, 0).await;
    // The API server calls the webhook for updates only after it has seen the label.
    ns.await_update_denied("kept-0").await;
    denial(&ns.delete_pod("kept-0").await);
    ns
}

async fn must_pass(cluster: &Cluster, ns: &TestNamespace) {
    let gone = |pod: &'static str| ns.await_pod_gone(pod);
    let path = |pod: &str| ns.pod_path(pod);
    // A kubelet removes a pod.
    let kubelet = Wire::new(cluster.client(&User::kubelet("by-hand")));
    kubelet.delete(&path("kept-0"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    gone("kept-0").await;
    // The scheduler preempts a pod.
    let scheduler = Wire::new(cluster.client(&User::named("system:kube-scheduler")));
    scheduler.delete(&path("kept-1"), &json!({})).await.expect(200);
    gone("kept-1").await;
    // The owner is deleted, and the garbage collector deletes its pods.
    let owner = ns.path("v1", "configmaps/owner");
    ns.wire.delete(&owner, &json!({"propagationPolicy": "Background"})).await.expect(200);
    gone("owned-0").await;
    gone("owned-1").await;
    // The namespace is deleted.
    ns.create_pod("last", json!({"app": "web"})).await;
    ns.delete_and_await().await;
}
