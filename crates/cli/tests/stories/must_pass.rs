//! What must never be held up: kubelets, garbage collection, the end of a namespace, preemption. Also when no server
//! answers at all, and while one has not seen everything yet.

use quorate_testbed::{Cluster, User, Wire, eventually};
use serde_json::json;

use crate::quorate::{Quorate, service_account};
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: what_must_pass_passes_with_no_server_at_all, what_must_pass_passes_an_unsynced_server);

async fn what_must_pass_passes_with_no_server_at_all(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let town = set_up(&cluster).await;
    quorate.end().await;
    // Everybody else is told to wait, by the API server itself.
    let held = town.evict("owned-1").await;
    assert_eq!(held.code, 500, "{}", held.body);
    must_pass(&cluster, &town).await;
}

async fn what_must_pass_passes_an_unsynced_server(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let town = set_up(&cluster).await;
    quorate.end().await;
    // A server that the API server reaches, and that may not read pods: it never sees everything.
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
    eventually("the server is asked, and says not now", || async {
        let answer = town.evict("owned-1").await;
        if answer.code == 429 { Ok(refusal(&answer)) } else { Err(answer.body) }
    })
    .await;
    must_pass(&cluster, &town).await;
}

/// A namespace whose budget allows nothing, for any operation, and is labelled.
async fn set_up(cluster: &Cluster) -> Town {
    let town = Town::found(cluster, "held").await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}});
    let path = format!("/api/v1/namespaces/{}/configmaps", town.namespace);
    let owner = town.wire.post(&path, &owner).await.expect(201);
    for name in ["owned-0", "owned-1", "kept-0", "kept-1"] {
        town.pod(name, json!({"app": "web"})).await;
    }
    for name in ["owned-0", "owned-1"] {
        let reference = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]},
        ]}});
        let path = format!("/api/v1/namespaces/{}/pods/{name}", town.namespace);
        town.wire.patch(&path, quorate_testbed::Patch::Merge, &reference).await.expect(200);
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 4, "operations": ["Evict", "Delete", "Update"],
    });
    town.budget("web", spec, 0).await;
    // Nobody asks about updates where the label is not known.
    town.update_is_refused("kept-0").await;
    refusal(&town.delete("kept-0").await);
    town
}

async fn must_pass(cluster: &Cluster, town: &Town) {
    let gone = |pod: &'static str| eventually_gone(town, pod);
    let path = |pod: &str| format!("/api/v1/namespaces/{}/pods/{pod}", town.namespace);
    // A kubelet ends a pod.
    let kubelet = Wire::new(cluster.client(&User::kubelet("by-hand")));
    kubelet.delete(&path("kept-0"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    gone("kept-0").await;
    // The scheduler preempts.
    let scheduler = Wire::new(cluster.client(&User::named("system:kube-scheduler")));
    scheduler.delete(&path("kept-1"), &json!({})).await.expect(200);
    gone("kept-1").await;
    // The owner goes, and the garbage collector takes its pods.
    let owner = format!("/api/v1/namespaces/{}/configmaps/owner", town.namespace);
    town.wire.delete(&owner, &json!({"propagationPolicy": "Background"})).await.expect(200);
    gone("owned-0").await;
    gone("owned-1").await;
    // The namespace ends.
    town.pod("last", json!({"app": "web"})).await;
    town.ends().await;
}

async fn eventually_gone(town: &Town, pod: &str) {
    eventually(&format!("{pod} is gone"), || async {
        if town.exists(pod).await { Err("there") } else { Ok(()) }
    })
    .await;
}
