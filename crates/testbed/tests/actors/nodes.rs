//! Tests of pods on hollow nodes.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use quorate_devcluster::actors::NodeTemplate;
use quorate_testbed::{Backend, Cluster, Kubernetes, Setup, eventually, run_story, stories};
use serde_json::{Value, json};

use crate::cast::{Scene, describe, is_ready};
use crate::gate::Gate;

stories!(ApiServer:
    readiness_can_be_set,
    a_new_image_restarts_the_container,
    pods_on_a_silent_node_are_not_ready,
    the_node_reports_a_resize,
    a_taint_evicts_pods_without_a_toleration,
);

#[test]
fn a_taint_with_the_real_controllers() {
    run_story(Backend::Real, Setup::Controllers, a_taint_evicts_pods_without_a_toleration);
}

async fn one_pod(scene: &Scene, name: &str, spec: serde_json::Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    scene.create(pod).await;
    scene.ready(&format!("app={name}"), 1).await.remove(0)
}

async fn readiness_can_be_set(cluster: Cluster) {
    let scene = Scene::set(cluster, "readiness").await;
    one_pod(&scene, "web", json!({})).await;
    scene.kubelets.set_ready(&scene.namespace, "web", false).unwrap();
    eventually("not ready", || async {
        let pods = scene.list("app=web").await;
        if is_ready(&pods[0]) { Err(describe(&pods)) } else { Ok(()) }
    })
    .await;
    scene.kubelets.set_ready(&scene.namespace, "web", true).unwrap();
    scene.ready("app=web", 1).await;
    assert!(scene.kubelets.set_ready(&scene.namespace, "nobody", true).is_err());
}

async fn a_new_image_restarts_the_container(cluster: Cluster) {
    let scene = Scene::set(cluster, "images").await;
    let status = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone()
    };
    let before = status(&one_pod(&scene, "web", json!({})).await);
    let patch = json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}});
    scene.pods().patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    let after = eventually("the container runs the new image", || async {
        let pod = scene.pods().get("web").await.unwrap();
        let status = status(&pod);
        if status.image == "app:2" && status.ready { Ok(status) } else { Err(status) }
    })
    .await;
    assert_ne!(after.container_id, before.container_id);
    assert_eq!(after.restart_count, before.restart_count + 1);

    scene.kubelets.restart(&scene.namespace, "web", Some("app")).unwrap();
    eventually("the container restarts", || async {
        let now = status(&scene.pods().get("web").await.unwrap());
        if now.restart_count == after.restart_count + 1 { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Adds a node with a taint, and returns its name and the fields of a pod spec that select and tolerate it. Other
/// stories do not use this node; they share the other nodes.
async fn lonely_node(scene: &Scene) -> (String, Value) {
    let node = scene.cluster.unique("lonely");
    let taint = Taint { key: "lonely".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let like = NodeTemplate { taints: vec![taint], ..NodeTemplate::default() };
    scene.actors.nodes().add_like(&node, &like).await.unwrap();
    let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": "lonely", "operator": "Exists"}]});
    (node, spec)
}

async fn pods_on_a_silent_node_are_not_ready(cluster: Cluster) {
    let scene = Scene::set(cluster, "silence").await;
    let (node, spec) = lonely_node(&scene).await;
    let pod = one_pod(&scene, "web", spec).await;
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some(node.as_str()));
    scene.actors.nodes().silence(&node).await.unwrap();
    eventually("not ready", || async {
        let pods = scene.list("app=web").await;
        if is_ready(&pods[0]) { Err(describe(&pods)) } else { Ok(()) }
    })
    .await;
    scene.pods().delete("web", &Default::default()).await.unwrap();
    let ending = scene.pods().get("web").await.unwrap();
    assert!(ending.metadata.deletion_timestamp.is_some(), "no kubelet terminates it");
    scene.actors.nodes().revive(&node).await.unwrap();
    eventually("the kubelet removes it", || async {
        match scene.pods().get_opt("web").await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(pod.name_any()),
        }
    })
    .await;
}

async fn the_node_reports_a_resize(cluster: Cluster) {
    let scene = Scene::set(cluster, "resize").await;
    let container = json!({"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "100m"}}});
    let before = one_pod(&scene, "web", json!({"containers": [container]})).await;
    let patch =
        json!({"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]}});
    let resized = scene.pods().patch_resize("web", &PatchParams::default(), &Patch::Strategic(patch)).await;
    if scene.cluster.is_before(Kubernetes::V1_35) {
        // The feature gate is off in 1.32.
        assert!(matches!(resized, Err(kube::Error::Api(status)) if status.code == 404));
        return;
    }
    resized.unwrap();
    let after = eventually("the node reports the resize", || async {
        let pod = scene.pods().get("web").await.unwrap();
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
    let scene = Scene::set(cluster, "taint").await;
    let (node, spec) = lonely_node(&scene).await;
    let bearing = |toleration: Value| {
        let mut spec = spec.clone();
        spec["tolerations"].as_array_mut().unwrap().push(toleration);
        spec
    };
    let always = json!({"key": "repair", "operator": "Exists"});
    let a_while =
        json!({"key": "repair", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    one_pod(&scene, "never", spec.clone()).await;
    one_pod(&scene, "a-while", bearing(a_while)).await;
    one_pod(&scene, "always", bearing(always)).await;
    // The finalizers keep the terminated pods, so that the test can read them.
    for name in ["never", "a-while"] {
        let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
        scene.pods().patch(name, &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    }
    let gate = Gate::closed_to(&scene, "nobody").await;

    // As `kubectl taint` writes it, without `timeAdded`.
    let taint = json!({"spec": {"taints": [{"key": "repair", "effect": "NoExecute"}]}});
    let nodes: kube::Api<Node> = kube::Api::all(scene.client.clone());
    nodes.patch(&node, &PatchParams::default(), &Patch::Strategic(taint)).await.unwrap();
    for name in ["never", "a-while"] {
        let pod = eventually(&format!("{name} is deleted"), || async {
            let pod = scene.pods().get(name).await.unwrap();
            if pod.metadata.deletion_timestamp.is_some() { Ok(pod) } else { Err(describe(&[pod])) }
        })
        .await;
        let conditions = pod.status.unwrap().conditions.unwrap_or_default();
        let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
        assert_eq!(target.reason.as_deref(), Some("DeletionByTaintManager"), "{name}");
        let release = json!({"metadata": {"finalizers": null}});
        scene.pods().patch(name, &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    }
    for name in ["never", "a-while"] {
        assert!(gate.asked("system:serviceaccount:kube-system:node-controller", name) > 0, "{name}");
    }
    gate.remove().await;
    let left = scene.pods().get("always").await.unwrap();
    assert!(is_ready(&left), "{:?}", describe(&[left]));
}
