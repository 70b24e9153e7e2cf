//! Updates in place: a pod counts as unavailable until it runs what was asked for and is ready, however long that takes.

use std::time::Duration;

use quorate_testbed::{Cluster, Kubernetes, Patch, eventually};
use serde_json::{Value, json};

use super::over;
use crate::quorate::{Quorate, install};
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole:
    an_update_is_over_when_the_pod_runs_it,
    an_update_takes_the_place_of_the_one_before,
    an_update_that_is_reverted_at_once_holds_nothing,
    a_resize_that_restarts_waits_like_an_update,
);

/// No timer frees an update: not while the kubelet has not begun, not while the new container is not ready.
async fn an_update_is_over_when_the_pod_runs_it(cluster: Cluster) {
    install(&cluster).await;
    // Longer than the story takes to look at what stands there until then, also on a busy machine.
    let expiry = Duration::from_secs(10);
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = expiry).await;
    let town = Town::found(&cluster, "update").await;
    town.pods_of("web", 4).await;
    for number in 0..4 {
        town.runs(&format!("web-{number}"), "main:1", "containerd://old", true).await;
    }
    town.pub_over("web", over("web", "minAvailable", 2), 2).await;
    town.set_image("web-0", "main:2").await.expect(200);
    // Admitted, and not carried out: this one is given back after a while.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("web-1", later, "").await.code, 409);
    refusal(&town.delete("web-2").await);
    town.pub_is("web", "the eviction stands there", |status| status["disruptedPods"].is_object()).await;
    let status = town
        .pub_is("web", "what did not happen is forgotten", |status| {
            status["disruptedPods"].is_null() && status["currentAvailable"] == 3
        })
        .await;
    // The update is older, and stands: nobody has seen the pod with its new image.
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    // The kubelet has replaced the container, and it is not ready yet.
    town.runs("web-0", "main:2", "containerd://new", false).await;
    town.set_image("web-1", "main:2").await.expect(200);
    refusal(&town.set_image("web-2", "main:2").await);
    let status = town.pub_status("web").await;
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    town.runs("web-0", "main:2", "containerd://new", true).await;
    town.pub_is("web", "the first update is over", |status| {
        status["unavailablePods"]["web-0"].is_null() && status["unavailableAllowed"] == 1
    })
    .await;
    // The same container, called ready: a kubelet that has not heard of the update yet.
    town.runs("web-1", "main:1", "containerd://old", true).await;
    let status = town.pub_status("web").await;
    assert!(status["unavailablePods"]["web-1"].is_string(), "{status}");
    // OpenKruise says itself that it is not done.
    let state = json!({"revision": "2", "nextContainerImages": {"main": "main:3"}}).to_string();
    let annotation =
        |text: Value| json!({"metadata": {"annotations": {"apps.kruise.io/inplace-update-state": text}}});
    town.change_pod("web-0", &annotation(json!(state))).await.expect(200);
    town.pub_is("web", "another step is to come", |status| status["currentAvailable"] == 2).await;
    refusal(&town.delete("web-2").await);
    town.change_pod("web-0", &annotation(json!(null))).await.expect(200);
    town.pub_allows("web", 1).await;
}

/// An image that does not exist, and then one that does: with the second running, nothing is left of the first.
async fn an_update_takes_the_place_of_the_one_before(cluster: Cluster) {
    install(&cluster).await;
    // Nothing expires while the story is told.
    let expiry = Duration::from_secs(600);
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = expiry).await;
    let town = Town::found(&cluster, "replaced").await;
    town.pods_of("web", 2).await;
    for number in 0..2 {
        town.runs(&format!("web-{number}"), "main:1", "containerd://old", true).await;
    }
    town.pub_over("web", over("web", "minAvailable", 1), 1).await;
    town.set_image("web-0", "main:missing").await.expect(200);
    town.runs("web-0", "main:1", "containerd://old", false).await;
    town.set_image("web-0", "main:2").await.expect(200);
    refusal(&town.set_image("web-1", "main:2").await);
    town.runs("web-0", "main:2", "containerd://new", true).await;
    town.pub_is("web", "both are over", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;
    town.set_image("web-1", "main:2").await.expect(200);
}

/// OpenKruise notes which image ran before. The kubelet sees the new image too late to replace the container.
async fn an_update_that_is_reverted_at_once_holds_nothing(cluster: Cluster) {
    install(&cluster).await;
    let expiry = Duration::from_secs(3);
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = expiry).await;
    let town = Town::found(&cluster, "reverted").await;
    town.pods_of("web", 2).await;
    for number in 0..2 {
        town.runs(&format!("web-{number}"), "main:1", "containerd://old", true).await;
    }
    town.pub_over("web", over("web", "minAvailable", 1), 1).await;
    let last = json!({"main": {"imageID": "registry.example/main:1"}});
    let state =
        json!({"revision": "2", "updateTimestamp": "2026-11-15T11:00:00Z", "lastContainerStatuses": last});
    let annotations = json!({"apps.kruise.io/inplace-update-state": state.to_string()});
    town.change_pod("web-0", &json!({"metadata": {"annotations": annotations}})).await.expect(200);
    town.set_image("web-0", "main:2").await.expect(200);
    town.set_image("web-0", "main:1").await.expect(200);
    refusal(&town.set_image("web-1", "main:2").await);
    town.pub_is("web", "nothing is held", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;
}

/// Through `pods/resize`, which OpenKruise does not look at.
async fn a_resize_that_restarts_waits_like_an_update(cluster: Cluster) {
    if cluster.is_before(Kubernetes::V1_35) {
        return; // It is an alpha feature there, and off.
    }
    let _quorate = Quorate::start(&cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    let town = Town::found(&cluster, "resize").await;
    for name in ["web-0", "web-1"] {
        let resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
        let policy = json!([
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "RestartContainer"},
        ]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"containers": [
                {"name": "main", "image": "main:1", "resources": resources, "resizePolicy": policy},
            ]},
        });
        town.wire.post(&format!("/api/v1/namespaces/{}/pods", town.namespace), &pod).await.expect(201);
    }
    town.new_pub("web", json!({}), over("web", "minAvailable", 1)).await.expect(201);
    town.pub_allows("web", 1).await;
    town.asked_about_updates().await;
    let resize = async |pod: &str, requests: Value| {
        let patch = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}});
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/resize", town.namespace);
        town.wire.patch(&path, Patch::Strategic, &patch).await
    };
    // No container is restarted for these: nothing is disrupted.
    for pod in ["web-0", "web-1"] {
        resize(pod, json!({"cpu": "200m"})).await.expect(200);
    }
    assert_eq!(town.pub_status("web").await["ledger"], 0);
    resize("web-0", json!({"memory": "128Mi"})).await.expect(200);
    refusal(&resize("web-1", json!({"memory": "128Mi"})).await);
    town.pub_is("web", "the resize stands there", |s| s["unavailablePods"]["web-0"].is_string()).await;
    cluster.actors().kubelets().restart(&town.namespace, "web-0", Some("main")).expect("a pod on a node");
    town.pub_is("web", "the resize is over", |status| {
        status["unavailableAllowed"] == 1 && status["claims"] == json!({})
    })
    .await;
    resize("web-1", json!({"memory": "128Mi"})).await.expect(200);
}

impl Town {
    /// What a kubelet would say of a pod made by hand.
    async fn runs(&self, pod: &str, image: &str, id: &str, ready: bool) {
        let container = json!({
            "name": "main", "image": image, "imageID": format!("registry.example/{image}"), "containerID": id,
            "ready": ready, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-15T10:00:00Z"}},
        });
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
        let status = json!({"status": {
            "phase": "Running", "conditions": [condition], "containerStatuses": [container],
        }});
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/status", self.namespace);
        self.wire.patch(&path, Patch::Merge, &status).await.expect(200);
        eventually("it is stored", || async {
            let stored = self.wire.get(&path).await.expect(200)["status"].clone();
            let fits = is(&stored, "Ready", if ready { "True" } else { "False" });
            if fits { Ok(()) } else { Err(stored) }
        })
        .await;
    }
}
