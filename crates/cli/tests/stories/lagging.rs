//! Watches that lag: what a server has not been shown must not let a pod pass. Only the embedded API server can hold a
//! watch back; on a real one the same is asked right after the change.

use quorate_devcluster::apiserver::{FaultGuard, RequestFilter, WatchFault};
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::json;

use crate::quorate::service_account;
use crate::scene::Scene;
use crate::space::Space;

quorate_testbed::stories!(Whole:
    a_pod_of_a_controller_that_was_not_shown_is_covered,
    a_group_that_was_not_wanted_a_moment_ago_is_counted,
);

/// Holds back what the server would be shown of a resource, while the guard lives.
fn hold(cluster: &Cluster, resource: &str) -> Option<FaultGuard> {
    let which = RequestFilter::any().user(service_account().name()).resource(resource);
    cluster.embedded().map(|server| server.faults().watches(which, WatchFault::Hold))
}

async fn a_pod_of_a_controller_that_was_not_shown_is_covered(cluster: Cluster) {
    let space = Space::with_node(cluster, "late").await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    space
        .budget("web", json!({"targetRef": target, "minAvailable": 2, "operations": ["Evict", "Delete"]}))
        .await;
    let _held = hold(&space.cluster, "replicasets");
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "web:1"}]},
        }},
    });
    space.create("apps/v1", "deployments", &deployment).await;
    space.ready(2).await;
    let pods = space.pods.list(&Default::default()).await.expect("a list");
    for pod in &pods {
        let name = pod.metadata.name.as_deref().expect("a name");
        let refused = space.evict(name).await;
        assert_eq!(refused.code, 429, "{}", refused.body);
    }
    let refused = space.kubectl(&["delete", "pod", "-l", "app=web"]).await.expect_err("both are needed");
    assert!(refused.contains("keeps 2 of 2 pods"), "{refused}");
}

async fn a_group_that_was_not_wanted_a_moment_ago_is_counted(cluster: Cluster) {
    let scene = Scene::set(cluster, json!({})).await;
    let _held = hold(&scene.cluster, "leaderworkersets");
    let path =
        format!("/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets/llm", scene.namespace);
    scene.cluster.wire().patch(&path, Patch::Merge, &json!({"spec": {"replicas": 4}})).await.expect(200);
    scene.ready(12).await;
    let kubelets = scene.cluster.actors().kubelets().clone();
    kubelets.set_ready(&scene.namespace, "llm-0-2", false).expect("a pod on a node");
    scene.status_is("group 0 is down", |status| status["disruptionsAllowed"] == 0).await;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "llm-3-1"}});
    let path = format!("/api/v1/namespaces/{}/pods/llm-3-1/eviction", scene.namespace);
    // A server that has not seen the group's pods says so at first.
    eventually("the eviction is refused for group 0", || async {
        let answer = scene.cluster.wire().post(&path, &eviction).await;
        assert_eq!(answer.code, 429, "{}", answer.body);
        let message = answer.body["message"].as_str().unwrap_or_default().to_owned();
        if message.contains("keeps 3 of 4 groups") { Ok(()) } else { Err(message) }
    })
    .await;
}
