//! Tests of pods on hollow nodes.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use quorate_devcluster::actors::NodeTemplate;
use quorate_testbed::{Backend, Cluster, Kubernetes, Setup, eventually, run_story, stories};
use serde_json::{Value, json};

use crate::delete_webhook::DeleteWebhook;
use crate::fixture::{Fixture, describe, is_ready};

stories!(ApiServer:
    readiness_can_be_set,
    a_new_image_restarts_the_container,
    pods_on_a_silent_node_are_not_ready,
    the_node_reports_a_resize,
    a_taint_evicts_pods_without_a_toleration,
);

#[test]
fn the_real_controllers_evict_pods_without_a_toleration() {
    run_story(Backend::Real, Setup::Controllers, a_taint_evicts_pods_without_a_toleration);
}

async fn one_pod(fixture: &Fixture, name: &str, spec: serde_json::Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    fixture.create(pod).await;
    fixture.ready(&format!("app={name}"), 1).await.remove(0)
}

async fn readiness_can_be_set(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "readiness").await;
    one_pod(&fixture, "web", json!({})).await;
    fixture.kubelets.set_ready(&fixture.namespace, "web", false).unwrap();
    eventually("not ready", || async {
        let pods = fixture.list("app=web").await;
        if is_ready(&pods[0]) { Err(describe(&pods)) } else { Ok(()) }
    })
    .await;
    fixture.kubelets.set_ready(&fixture.namespace, "web", true).unwrap();
    fixture.ready("app=web", 1).await;
    assert!(fixture.kubelets.set_ready(&fixture.namespace, "missing", true).is_err());
}

async fn a_new_image_restarts_the_container(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "images").await;
    let status = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone()
    };
    let before = status(&one_pod(&fixture, "web", json!({})).await);
    let patch = json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}});
    fixture.pods().patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    let after = eventually("the container runs the new image", || async {
        let pod = fixture.pods().get("web").await.unwrap();
        let status = status(&pod);
        if status.image == "app:2" && status.ready { Ok(status) } else { Err(status) }
    })
    .await;
    assert_ne!(after.container_id, before.container_id);
    assert_eq!(after.restart_count, before.restart_count + 1);

    fixture.kubelets.restart(&fixture.namespace, "web", Some("app")).unwrap();
    eventually("the container restarts", || async {
        let now = status(&fixture.pods().get("web").await.unwrap());
        if now.restart_count == after.restart_count + 1 { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Adds a node with a taint, and returns its name and the fields of a pod spec that select and tolerate it. Other
/// stories do not use this node; they share the other nodes.
async fn lonely_node(fixture: &Fixture) -> (String, Value) {
    let node = fixture.cluster.unique("lonely");
    let taint = Taint { key: "lonely".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let like = NodeTemplate { taints: vec![taint], ..NodeTemplate::default() };
    fixture.actors.nodes().add_like(&node, &like).await.unwrap();
    let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": "lonely", "operator": "Exists"}]});
    (node, spec)
}

async fn pods_on_a_silent_node_are_not_ready(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "silence").await;
    let (node, spec) = lonely_node(&fixture).await;
    let pod = one_pod(&fixture, "web", spec).await;
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some(node.as_str()));
    fixture.actors.nodes().silence(&node).await.unwrap();
    eventually("not ready", || async {
        let pods = fixture.list("app=web").await;
        if is_ready(&pods[0]) { Err(describe(&pods)) } else { Ok(()) }
    })
    .await;
    fixture.pods().delete("web", &Default::default()).await.unwrap();
    let ending = fixture.pods().get("web").await.unwrap();
    assert!(ending.metadata.deletion_timestamp.is_some(), "no kubelet terminates it");
    fixture.actors.nodes().revive(&node).await.unwrap();
    eventually("the kubelet removes it", || async {
        match fixture.pods().get_opt("web").await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(pod.name_any()),
        }
    })
    .await;
}

async fn the_node_reports_a_resize(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "resize").await;
    let container = json!({"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "100m"}}});
    let before = one_pod(&fixture, "web", json!({"containers": [container]})).await;
    let patch =
        json!({"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]}});
    let resized = fixture.pods().patch_resize("web", &PatchParams::default(), &Patch::Strategic(patch)).await;
    if fixture.cluster.is_before(Kubernetes::V1_35) {
        // The feature gate is off in 1.32.
        assert!(matches!(resized, Err(kube::Error::Api(status)) if status.code == 404));
        return;
    }
    resized.unwrap();
    let after = eventually("the node reports the resize", || async {
        let pod = fixture.pods().get("web").await.unwrap();
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        let shown =
            status.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("cpu").cloned());
        if shown.as_ref().is_some_and(|cpu| cpu.0 == "200m") { Ok(status) } else { Err(status.resources) }
    })
    .await;
    let first = before.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
    assert_eq!(after.container_id, first.container_id, "the container is not restarted");
}

async fn a_taint_evicts_pods_without_a_toleration(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "taint").await;
    let (node, spec) = lonely_node(&fixture).await;
    let bearing = |toleration: Value| {
        let mut spec = spec.clone();
        spec["tolerations"].as_array_mut().unwrap().push(toleration);
        spec
    };
    let always = json!({"key": "repair", "operator": "Exists"});
    let a_while =
        json!({"key": "repair", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    one_pod(&fixture, "never", spec.clone()).await;
    one_pod(&fixture, "a-while", bearing(a_while)).await;
    one_pod(&fixture, "always", bearing(always)).await;
    // The finalizers keep the terminated pods, so that the test can read them.
    for name in ["never", "a-while"] {
        let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
        fixture.pods().patch(name, &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    }
    let webhook = DeleteWebhook::denying(&fixture, "no-such-user").await;

    // As `kubectl taint` writes it, without `timeAdded`.
    let taint = json!({"spec": {"taints": [{"key": "repair", "effect": "NoExecute"}]}});
    let nodes: kube::Api<Node> = kube::Api::all(fixture.client.clone());
    nodes.patch(&node, &PatchParams::default(), &Patch::Strategic(taint)).await.unwrap();
    for name in ["never", "a-while"] {
        let pod = eventually(&format!("{name} is deleted"), || async {
            let pod = fixture.pods().get(name).await.unwrap();
            if pod.metadata.deletion_timestamp.is_some() { Ok(pod) } else { Err(describe(&[pod])) }
        })
        .await;
        let conditions = pod.status.unwrap().conditions.unwrap_or_default();
        let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
        assert_eq!(target.reason.as_deref(), Some("DeletionByTaintManager"), "{name}");
        let release = json!({"metadata": {"finalizers": null}});
        fixture.pods().patch(name, &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    }
    for name in ["never", "a-while"] {
        assert!(webhook.requests("system:serviceaccount:kube-system:node-controller", name) > 0, "{name}");
    }
    webhook.remove().await;
    let left = fixture.pods().get("always").await.unwrap();
    assert!(is_ready(&left), "{:?}", describe(&[left]));
}
