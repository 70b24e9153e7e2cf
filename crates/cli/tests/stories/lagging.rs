//! Watches that lag: an eviction must not be admitted because a server has not seen an event yet. Only the embedded API
//! server can delay a watch; on a real one the request follows right after the change.

use quorate_devcluster::apiserver::{FaultGuard, RequestFilter, WatchFault};
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};

use crate::fixture::{LLM, TestNamespace};
use crate::quorate::service_account;

quorate_testbed::stories!(Whole:
    a_pod_of_an_unseen_controller_is_covered,
    a_group_just_added_by_scaling_up_is_counted,
);

/// Delays the events of a resource to the server until the guard is dropped.
fn hold(cluster: &Cluster, resource: &str) -> Option<FaultGuard> {
    let which = RequestFilter::any().user(service_account().name()).resource(resource);
    cluster.embedded().map(|server| server.faults().watches(which, WatchFault::Hold))
}

async fn a_pod_of_an_unseen_controller_is_covered(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "late").await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    ns.create_enforced_budget(
        "web",
        json!({"targetRef": target, "minAvailable": 2, "operations": ["Evict", "Delete"]}),
    )
    .await;
    let _held = hold(&ns.cluster, "replicasets");
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "web:1"}]},
        }},
    });
    ns.create("apps/v1", "deployments", &deployment).await;
    ns.await_ready_pods(2).await;
    let pods = ns.pods.list(&Default::default()).await.expect("a list");
    for pod in &pods {
        let name = pod.metadata.name.as_deref().expect("a name");
        let refused = ns.evict(name).await;
        assert_eq!(refused.code, 429, "{}", refused.body);
    }
    let refused = ns
        .kubectl_in_namespace(&["delete", "pod", "-l", "app=web"])
        .await
        .expect_err("both are needed")
        .stderr;
    assert!(refused.contains("keeps 2 of 2 pods"), "{refused}");
}

async fn a_group_just_added_by_scaling_up_is_counted(cluster: Cluster) {
    let ns = TestNamespace::with_llm(cluster, json!({})).await;
    let _held = hold(&ns.cluster, "leaderworkersets");
    let path = ns.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets/llm");
    ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 4}})).await.expect(200);
    ns.await_ready_pods(12).await;
    let kubelets = ns.cluster.actors().kubelets().clone();
    kubelets.set_ready(&ns.name, "llm-0-2", false).expect("a pod on a node");
    // No disruption is allowed while the new group starts, either. So the status must name the group.
    let is_first = |group: &Value| group["name"].as_str().is_some_and(|name| name.ends_with('0'));
    ns.await_status(LLM, "group 0 is down", |status| {
        let first = status["groups"].as_array().into_iter().flatten().find(|group| is_first(group));
        status["disruptionsAllowed"] == 0 && first.is_some_and(|group| group["healthy"] == 2)
    })
    .await;
    // Without `deleteOptions`, unlike the eviction of the fixture.
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "llm-3-1"}});
    let path = ns.pod_path("llm-3-1/eviction");
    // Until the server has seen the pods of the group, the denial has another message.
    eventually("the eviction is refused for group 0", || async {
        let answer = ns.wire.post(&path, &eviction).await;
        assert_eq!(answer.code, 429, "{}", answer.body);
        let message = answer.body["message"].as_str().unwrap_or_default().to_owned();
        if message.contains("keeps 3 of 4 groups") { Ok(()) } else { Err(message) }
    })
    .await;
}
