//! Updates in place: a pod counts as unavailable until it runs the new image and is ready, however long that takes.

use std::time::Duration;

use quorate_testbed::{Cluster, Kubernetes, Patch, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial, has_condition, spec_for_app};
use crate::quorate::{Quorate, install};

quorate_testbed::stories!(Whole:
    an_update_is_over_when_the_pod_runs_it,
    an_update_replaces_the_previous_update,
    a_reverted_update_releases_its_claim,
    a_resize_that_restarts_counts_like_an_update,
);

/// The claim of an update does not expire while the kubelet has not started it, or the new container is not ready.
async fn an_update_is_over_when_the_pod_runs_it(cluster: Cluster) {
    install(&cluster).await;
    // Longer than the story needs to read the status before the claim expires, also on a busy machine.
    let expiry = Duration::from_secs(10);
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = expiry).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "update").await;
    ns.create_pods("web", 4).await;
    for number in 0..4 {
        ns.report_container(&format!("web-{number}"), "main:1", "containerd://old", true).await;
    }
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 2).await;
    ns.set_image("web-0", "main:2").await.expect(200);
    // Admitted and not carried out: this claim expires.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("web-1", later, "").await.code, 409);
    denial(&ns.delete_pod("web-2").await);
    ns.await_pub_status("web", "the eviction stands there", |status| status["disruptedPods"].is_object())
        .await;
    let status = ns
        .await_pub_status("web", "the unused claim has expired", |status| {
            status["disruptedPods"].is_null() && status["currentAvailable"] == 3
        })
        .await;
    // The update is older, and its claim stays: no kubelet has reported the new image.
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    // The kubelet has replaced the container, and it is not ready yet.
    ns.report_container("web-0", "main:2", "containerd://new", false).await;
    ns.set_image("web-1", "main:2").await.expect(200);
    denial(&ns.set_image("web-2", "main:2").await);
    let status = ns.pub_status("web").await;
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    ns.report_container("web-0", "main:2", "containerd://new", true).await;
    ns.await_pub_status("web", "the first update is over", |status| {
        status["unavailablePods"]["web-0"].is_null() && status["unavailableAllowed"] == 1
    })
    .await;
    // The old container is reported ready by a kubelet that has not seen the update yet.
    ns.report_container("web-1", "main:1", "containerd://old", true).await;
    let status = ns.pub_status("web").await;
    assert!(status["unavailablePods"]["web-1"].is_string(), "{status}");
    // The annotation of OpenKruise shows that another step follows.
    let state = json!({"revision": "2", "nextContainerImages": {"main": "main:3"}}).to_string();
    let annotation =
        |text: Value| json!({"metadata": {"annotations": {"apps.kruise.io/inplace-update-state": text}}});
    ns.patch_pod("web-0", &annotation(json!(state))).await.expect(200);
    ns.await_pub_status("web", "another step is to come", |status| status["currentAvailable"] == 2).await;
    denial(&ns.delete_pod("web-2").await);
    ns.patch_pod("web-0", &annotation(json!(null))).await.expect(200);
    ns.await_pub_allowed("web", 1).await;
}

/// An image that does not exist, and then one that does: when the second one runs, no claim of the first is left.
async fn an_update_replaces_the_previous_update(cluster: Cluster) {
    install(&cluster).await;
    // Nothing expires during the story.
    let expiry = Duration::from_secs(600);
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = expiry).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "replaced").await;
    ns.create_pods("web", 2).await;
    for number in 0..2 {
        ns.report_container(&format!("web-{number}"), "main:1", "containerd://old", true).await;
    }
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
    ns.set_image("web-0", "main:missing").await.expect(200);
    ns.report_container("web-0", "main:1", "containerd://old", false).await;
    ns.set_image("web-0", "main:2").await.expect(200);
    denial(&ns.set_image("web-1", "main:2").await);
    ns.report_container("web-0", "main:2", "containerd://new", true).await;
    ns.await_pub_status("web", "both are over", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;
    ns.set_image("web-1", "main:2").await.expect(200);
}

/// OpenKruise records the previous image. The kubelet sees the new image too late to replace the container.
async fn a_reverted_update_releases_its_claim(cluster: Cluster) {
    install(&cluster).await;
    // Longer than the story needs until another update is denied, also on a busy machine.
    let expiry = Duration::from_secs(10);
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = expiry).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "reverted").await;
    ns.create_pods("web", 2).await;
    for number in 0..2 {
        ns.report_container(&format!("web-{number}"), "main:1", "containerd://old", true).await;
    }
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
    let last = json!({"main": {"imageID": "registry.example/main:1"}});
    let state =
        json!({"revision": "2", "updateTimestamp": "2026-11-15T11:00:00Z", "lastContainerStatuses": last});
    let annotations = json!({"apps.kruise.io/inplace-update-state": state.to_string()});
    ns.patch_pod("web-0", &json!({"metadata": {"annotations": annotations}})).await.expect(200);
    ns.set_image("web-0", "main:2").await.expect(200);
    ns.set_image("web-0", "main:1").await.expect(200);
    denial(&ns.set_image("web-1", "main:2").await);
    ns.await_pub_status("web", "nothing is held", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;
}

/// Through `pods/resize`, which OpenKruise does not cover.
async fn a_resize_that_restarts_counts_like_an_update(cluster: Cluster) {
    if cluster.is_before(Kubernetes::V1_35) {
        return; // Resizing is an alpha feature there, and off.
    }
    let _quorate = Quorate::start(&cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    let ns = TestNamespace::with_manual_pods(&cluster, "resize").await;
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
        ns.wire.post(&ns.path("v1", "pods"), &pod).await.expect(201);
    }
    ns.create_pub("web", json!({}), spec_for_app("web", "minAvailable", 1)).await.expect(201);
    ns.await_pub_allowed("web", 1).await;
    ns.await_update_webhook().await;
    let resize = async |pod: &str, requests: Value| {
        let patch = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}});
        let path = ns.pod_path(&format!("{pod}/resize"));
        ns.wire.patch(&path, Patch::Strategic, &patch).await
    };
    // No container is restarted for these: nothing is disrupted.
    let before = ns.pub_status("web").await;
    for pod in ["web-0", "web-1"] {
        resize(pod, json!({"cpu": "200m"})).await.expect(200);
    }
    assert_eq!(ns.pub_status("web").await["ledger"], before["ledger"]);
    resize("web-0", json!({"memory": "128Mi"})).await.expect(200);
    denial(&resize("web-1", json!({"memory": "128Mi"})).await);
    ns.await_pub_status("web", "the resize stands there", |s| s["unavailablePods"]["web-0"].is_string())
        .await;
    cluster.actors().kubelets().restart(&ns.name, "web-0", Some("main")).expect("a pod on a node");
    ns.await_pub_status("web", "the resize is over", |status| {
        status["unavailableAllowed"] == 1 && status["claims"] == json!({})
    })
    .await;
    resize("web-1", json!({"memory": "128Mi"})).await.expect(200);
}

impl TestNamespace {
    /// Writes the status that a kubelet would write.
    async fn report_container(&self, pod: &str, image: &str, id: &str, ready: bool) {
        let container = json!({
            "name": "main", "image": image, "imageID": format!("registry.example/{image}"), "containerID": id,
            "ready": ready, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-15T10:00:00Z"}},
        });
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
        let status = json!({"status": {
            "phase": "Running", "conditions": [condition], "containerStatuses": [container],
        }});
        let path = self.pod_path(&format!("{pod}/status"));
        self.wire.patch(&path, Patch::Merge, &status).await.expect(200);
        eventually("it is stored", || async {
            let stored = self.wire.get(&path).await.expect(200)["status"].clone();
            let fits = has_condition(&stored, "Ready", if ready { "True" } else { "False" });
            if fits { Ok(()) } else { Err(stored) }
        })
        .await;
    }
}
