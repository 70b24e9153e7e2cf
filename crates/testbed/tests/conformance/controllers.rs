//! Tests of the behaviour of Kubernetes' controllers, as far as stories depend on it. There is no node, so a pod
//! becomes ready only if the test sets its status.

use quorate_testbed::{Cluster, Patch, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, deployment, encoded, pod, stateful_set, text, uid_of};

stories!(Controllers:
    a_deployment_creates_a_replica_set_that_creates_pods,
    a_deleted_pod_is_replaced,
    a_deployment_is_scaled_down,
    a_rollout_waits_for_ready_pods,
    a_stateful_set_creates_its_pods_one_after_another,
    a_stateful_set_recreates_a_pod_with_the_same_name,
    dependents_are_deleted_with_their_owner,
    orphaned_dependents_stay,
    foreground_deletion_waits_for_dependents,
    a_pod_with_two_owners_waits_for_both,
    a_namespace_is_deleted_with_its_contents,
    template_owner_references_do_not_reach_the_pods,
);

impl TestNamespace {
    /// Waits until exactly `count` pods have this label and none is terminating. Returns them.
    async fn await_pods(&self, selector: &str, count: usize) -> Vec<Value> {
        let path = self.core(&format!("pods?labelSelector={}", encoded(selector)));
        eventually(&format!("there are {count} pods {selector}"), || async {
            let list = self.wire.get(&path).await.expect(200);
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            let steady = pods.iter().all(|pod| pod["metadata"].get("deletionTimestamp").is_none());
            if steady && pods.len() == count { Ok(pods) } else { Err(format!("{} pods", pods.len())) }
        })
        .await
    }

    async fn await_gone(&self, path: &str) {
        eventually(&format!("{path} is gone"), || async {
            let answer = self.wire.get(path).await;
            if answer.code == 404 { Ok(()) } else { Err(answer) }
        })
        .await;
    }
}

fn pod_names(pods: &[Value]) -> Vec<&str> {
    pods.iter().map(|pod| text(pod, "/metadata/name")).collect()
}

async fn a_deployment_creates_a_replica_set_that_creates_pods(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "deploy").await;
    let made = ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 2)).await.expect(201);
    let pods = ns.await_pods("app=web", 2).await;
    let sets = ns.wire.get(&ns.path("apps/v1", "replicasets")).await.expect(200);
    let set = &sets["items"][0];
    assert_eq!(text(set, "/metadata/ownerReferences/0/uid"), uid_of(&made));
    let hash = text(set, "/metadata/labels/pod-template-hash");
    assert_eq!(text(set, "/metadata/name"), format!("web-{hash}"));
    for pod in &pods {
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["controller"]), (&json!("ReplicaSet"), &json!(true)));
        assert_eq!((&owner["blockOwnerDeletion"], text(owner, "/uid")), (&json!(true), uid_of(set)));
        assert_eq!(text(pod, "/metadata/labels/pod-template-hash"), hash);
        assert!(text(pod, "/metadata/name").starts_with(&format!("web-{hash}-")), "{pod}");
    }
    for pod in pod_names(&pods) {
        ns.set_phase(pod, "Running", Some(true)).await;
    }
    eventually("the deployment reports its pods as ready", || async {
        let object = ns.wire.get(&ns.path("apps/v1", "deployments/web")).await.expect(200);
        let status = &object["status"];
        let known = status["readyReplicas"] == 2
            && status["availableReplicas"] == 2
            && status["updatedReplicas"] == 2
            && status["observedGeneration"] == object["metadata"]["generation"];
        if known { Ok(()) } else { Err(status.clone()) }
    })
    .await;
}

async fn a_deleted_pod_is_replaced(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "replaced").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 2)).await.expect(201);
    let before = ns.await_pods("app=web", 2).await;
    let gone = text(&before[0], "/metadata/name");
    ns.wire.delete(&ns.core(&format!("pods/{gone}")), &json!({})).await.expect(200);
    eventually("another pod replaces it", || async {
        let now = ns.await_pods("app=web", 2).await;
        if pod_names(&now).contains(&gone) { Err(gone.to_owned()) } else { Ok(()) }
    })
    .await;
}

async fn a_deployment_is_scaled_down(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "down").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 3)).await.expect(201);
    let before = ns.await_pods("app=web", 3).await;
    // Scaling down keeps the ready pod.
    let kept = text(&before[1], "/metadata/name");
    ns.set_phase(kept, "Running", Some(true)).await;
    eventually("the deployment reports it", || async {
        let object = ns.wire.get(&ns.path("apps/v1", "deployments/web")).await.expect(200);
        if object["status"]["readyReplicas"] == 1 { Ok(()) } else { Err(object["status"].clone()) }
    })
    .await;
    let scale = json!({"spec": {"replicas": 1}});
    ns.wire.patch(&ns.path("apps/v1", "deployments/web/scale"), Patch::Merge, &scale).await.expect(200);
    assert_eq!(pod_names(&ns.await_pods("app=web", 1).await), [kept]);
}

async fn a_rollout_waits_for_ready_pods(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "rollout").await;
    let mut object = deployment("web", 2);
    object["spec"]["strategy"] =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    ns.wire.post(&ns.path("apps/v1", "deployments"), &object).await.expect(201);
    for pod in pod_names(&ns.await_pods("app=web", 2).await) {
        ns.set_phase(pod, "Running", Some(true)).await;
    }
    let patch = json!({"spec": {"template": {"metadata": {"labels": {"version": "new"}}}}});
    ns.wire.patch(&ns.path("apps/v1", "deployments/web"), Patch::Merge, &patch).await.expect(200);
    for ready in 1..=2 {
        // One pod more than desired, and no pod less, until the new pod is ready.
        let new = eventually(&format!("new pod {ready} exists"), || async {
            let all = ns.await_pods("app=web", 3).await;
            let fresh = all.iter().find(|pod| {
                pod["metadata"]["labels"]["version"] == "new" && pod["status"]["phase"] == "Pending"
            });
            fresh.cloned().ok_or("not yet")
        })
        .await;
        ns.set_phase(text(&new, "/metadata/name"), "Running", Some(true)).await;
    }
    ns.await_pods("app=web,version=new", 2).await;
    ns.await_pods("app=web", 2).await;
}

async fn a_stateful_set_creates_its_pods_one_after_another(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "ordered").await;
    ns.wire.post(&ns.path("apps/v1", "statefulsets"), &stateful_set("db", 3)).await.expect(201);
    for count in 1..=3 {
        let pods = ns.await_pods("app=db", count).await;
        let expected: Vec<String> = (0..count).map(|index| format!("db-{index}")).collect();
        assert_eq!(pod_names(&pods), expected);
        let newest = &pods[count - 1];
        assert_eq!(text(newest, "/metadata/labels/apps.kubernetes.io~1pod-index"), (count - 1).to_string());
        assert_eq!(text(newest, "/metadata/labels/statefulset.kubernetes.io~1pod-name"), expected[count - 1]);
        ns.set_phase(&expected[count - 1], "Running", Some(true)).await;
    }
    let scale = json!({"spec": {"replicas": 1}});
    ns.wire.patch(&ns.path("apps/v1", "statefulsets/db/scale"), Patch::Merge, &scale).await.expect(200);
    assert_eq!(pod_names(&ns.await_pods("app=db", 1).await), ["db-0"]);
}

async fn a_stateful_set_recreates_a_pod_with_the_same_name(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "samename").await;
    ns.wire.post(&ns.path("apps/v1", "statefulsets"), &stateful_set("db", 1)).await.expect(201);
    let first = ns.await_pods("app=db", 1).await;
    ns.wire.delete(&ns.core("pods/db-0"), &json!({})).await.expect(200);
    eventually("db-0 is another pod", || async {
        let pods = ns.await_pods("app=db", 1).await;
        if uid_of(&pods[0]) == uid_of(&first[0]) { Err("the same") } else { Ok(()) }
    })
    .await;
}

async fn dependents_are_deleted_with_their_owner(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "owned").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 2)).await.expect(201);
    ns.await_pods("app=web", 2).await;
    let background = json!({"propagationPolicy": "Background"});
    ns.wire.delete(&ns.path("apps/v1", "deployments/web"), &background).await.expect(200);
    ns.await_pods("app=web", 0).await;
    eventually("the replica set is gone, too", || async {
        let sets = ns.wire.get(&ns.path("apps/v1", "replicasets")).await.expect(200);
        if sets["items"] == json!([]) { Ok(()) } else { Err(sets) }
    })
    .await;
}

/// Waits until the garbage collector knows all pods that were created before: it receives pods in their order, and deletes
/// one whose owner does not exist.
async fn await_garbage_collector(ns: &TestNamespace) {
    let mut object = pod("unowned");
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}]);
    object["metadata"]["labels"] = json!({});
    ns.create("pods", &object).await;
    ns.await_gone(&ns.core("pods/unowned")).await;
}

async fn orphaned_dependents_stay(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "orphaned").await;
    let mut set = deployment("web", 2);
    set["kind"] = json!("ReplicaSet");
    ns.wire.post(&ns.path("apps/v1", "replicasets"), &set).await.expect(201);
    ns.await_pods("app=web", 2).await;
    await_garbage_collector(&ns).await;
    let path = ns.path("apps/v1", "replicasets/web");
    ns.wire.delete(&path, &json!({"propagationPolicy": "Orphan"})).await.expect(200);
    ns.await_gone(&path).await;
    let left = ns.await_pods("app=web", 2).await;
    assert!(left.iter().all(|pod| pod["metadata"].get("ownerReferences").is_none()), "{left:#?}");
}

async fn foreground_deletion_waits_for_dependents(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "foreground").await;
    let mut set = deployment("web", 1);
    set["kind"] = json!("ReplicaSet");
    set["spec"]["template"]["metadata"]["finalizers"] = json!(["example.com/held"]);
    ns.wire.post(&ns.path("apps/v1", "replicasets"), &set).await.expect(201);
    let pods = ns.await_pods("app=web", 1).await;
    await_garbage_collector(&ns).await;
    let pod = ns.core(&format!("pods/{}", text(&pods[0], "/metadata/name")));
    let path = ns.path("apps/v1", "replicasets/web");
    ns.wire.delete(&path, &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    eventually("the pod is terminating", || async {
        let pod = ns.wire.get(&pod).await.expect(200);
        if pod["metadata"].get("deletionTimestamp").is_some() { Ok(()) } else { Err(pod) }
    })
    .await;
    assert_eq!(ns.code(&path).await, 200, "the owner waits");
    ns.wire.patch(&pod, Patch::Merge, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    ns.await_gone(&path).await;
}

async fn a_pod_with_two_owners_waits_for_both(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "owners").await;
    let mut object = pod("one");
    let mut references = Vec::new();
    for name in ["first", "second"] {
        let owner = ns.config_map(name, json!({})).await;
        references
            .push(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid_of(&owner)}));
    }
    object["metadata"]["ownerReferences"] = json!(references);
    ns.create("pods", &object).await;
    ns.wire.delete(&ns.core("configmaps/first"), &json!({})).await.expect(200);
    eventually("the reference to the first owner is removed", || async {
        let pod = ns.wire.get(&ns.core("pods/one")).await.expect(200);
        let left = pod["metadata"]["ownerReferences"].as_array().map(Vec::len);
        if left == Some(1) { Ok(()) } else { Err(pod) }
    })
    .await;
    ns.wire.delete(&ns.core("configmaps/second"), &json!({})).await.expect(200);
    ns.await_gone(&ns.core("pods/one")).await;
}

async fn a_namespace_is_deleted_with_its_contents(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "endspace").await;
    ns.create("pods", &pod("one")).await;
    let mut held = crate::fixtures::config_map("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    ns.create("configmaps", &held).await;
    let path = format!("/api/v1/namespaces/{}", ns.name);
    ns.wire.delete(&path, &json!({})).await.expect(200);
    let ending = ns.wire.get(&path).await.expect(200);
    assert_eq!(ending["status"]["phase"], "Terminating");
    ns.await_gone(&ns.core("pods/one")).await;
    let late = ns.wire.post(&ns.core("pods"), &pod("late")).await;
    assert_eq!((late.code, late.reason()), (403, "Forbidden"));
    assert_eq!(late.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let patch = json!({"metadata": {"finalizers": null}});
    ns.wire.patch(&ns.core("configmaps/held"), Patch::Merge, &patch).await.expect(200);
    ns.await_gone(&path).await;
}

async fn template_owner_references_do_not_reach_the_pods(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "template").await;
    let owner = ns.config_map("owner", json!({})).await;
    let mut set = deployment("web", 1);
    set["kind"] = json!("ReplicaSet");
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid_of(&owner)});
    set["spec"]["template"]["metadata"]["ownerReferences"] = json!([reference]);
    let made = ns.wire.post(&ns.path("apps/v1", "replicasets"), &set).await.expect(201);
    assert_eq!(made["spec"]["template"]["metadata"]["ownerReferences"], json!([reference]));
    let pods = ns.await_pods("app=web", 1).await;
    let owners = pods[0]["metadata"]["ownerReferences"].as_array().expect("owners");
    assert_eq!((owners.len(), text(&owners[0], "/kind")), (1, "ReplicaSet"));
}
