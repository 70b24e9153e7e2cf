//! Bad days: a webhook says no, the API server fails, watches break.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::api::{Patch, PatchParams};
use quorate_devcluster::apiserver::{Asked, Fault, Which};
use quorate_testbed::{Cluster, Place, Reply, Stage, Webhook, eventually, tell};
use serde_json::{Value, json};

use crate::cast::{Scene, describe, template};

mod alone {
    use super::*;
    quorate_testbed::stories!(ApiServer: a_denied_deletion_is_told_and_tried_again);
}

#[test]
fn a_denied_deletion_beside_the_real_controllers() {
    tell(Place::Real, Stage::Controllers, a_denied_deletion_is_told_and_tried_again);
}

#[test]
fn an_outage_is_lived_through() {
    tell(Place::Embedded, Stage::ApiServer, groups_are_whole_again_after_an_outage);
}

fn web(replicas: i32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
        "template": template(json!({"app": "web"}), "web:1")}})
}

async fn a_denied_deletion_is_told_and_tried_again(cluster: Cluster) {
    let scene = Scene::set(cluster, "denied").await;
    scene.create(web(2)).await;
    scene.ready("app=web", 2).await;
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let hook = Webhook::start(move |request| {
        let by_controller =
            request["userInfo"]["username"] == "system:serviceaccount:kube-system:replicaset-controller";
        if by_controller && !gate.load(Ordering::SeqCst) {
            Reply::Deny(json!({"code": 429, "reason": "TooManyRequests", "message": "not now"}))
        } else {
            Reply::Allow
        }
    })
    .await
    .unwrap();
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": scene.namespace},
        "webhooks": [{
            "name": "pods.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": hook.client_config(),
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
            "rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }],
    });
    let configurations: kube::Api<
        k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration,
    > = kube::Api::all(scene.client.clone());
    configurations
        .create(&Default::default(), &serde_json::from_value(configuration).unwrap())
        .await
        .unwrap();
    // The webhook is in force a moment after its configuration is: a dry deletion tells.
    eventually("the webhook is asked", || async {
        let pods = scene.list("app=web").await;
        let name = pods[0].metadata.name.clone().unwrap();
        let dry = kube::api::DeleteParams::default().dry_run();
        scene.pods().delete(&name, &dry).await.unwrap();
        if hook.seen().is_empty() { Err(()) } else { Ok(()) }
    })
    .await;

    scene
        .api(&web(1))
        .patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 1}})))
        .await
        .unwrap();
    let events = json!({"apiVersion": "v1", "kind": "Event"});
    eventually("an event tells of the denial", || async {
        let events = scene.api(&events).list(&Default::default()).await.unwrap();
        let told = events.iter().find(|event| event.data["reason"] == "FailedDelete");
        let message =
            told.and_then(|event| event.data["message"].as_str().map(str::to_owned)).unwrap_or_default();
        if message.contains("not now") { Ok(()) } else { Err(message) }
    })
    .await;
    assert_eq!(scene.ready("app=web", 2).await.len(), 2);
    open.store(true, Ordering::SeqCst);
    scene.ready("app=web", 1).await;
    configurations.delete(&scene.namespace, &Default::default()).await.unwrap();
}

/// Writes fail, watches are cut, and a member is lost meanwhile.
async fn groups_are_whole_again_after_an_outage(cluster: Cluster) {
    let scene = Scene::set(cluster, "outage").await;
    let faults = scene.cluster.embedded().unwrap().faults();
    let lws = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(json!({"app": "llm"}), "llm:1")}}});
    scene.create(lws).await;
    let before = scene.ready("app=llm", 4).await;
    let by_actors = |asked: &Asked<'_>| asked.user.starts_with("system:");
    scene.pods().delete("llm-0-1", &Default::default()).await.unwrap();
    {
        let mut fault = faults.requests(Which::any().writes().and(by_actors), Fault::InternalError);
        faults.cut_watches(Which::any());
        fault.struck(5).await;
        faults.expire_watches(Which::any());
    }
    // A write whose answer is lost was still done; nobody may do it twice.
    let _lost = faults.requests(Which::any().writes().and(by_actors), Fault::LoseReply).times(5);
    let uid = |pods: &[k8s_openapi::api::core::v1::Pod], name: &str| {
        pods.iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(name))
            .and_then(|pod| pod.metadata.uid.clone())
    };
    eventually("group 0 is new, and group 1 is as it was", || async {
        let after = scene.ready("app=llm", 4).await;
        let new = ["llm-0", "llm-0-1"].iter().all(|name| uid(&after, name) != uid(&before, name));
        let same = ["llm-1", "llm-1-1"].iter().all(|name| uid(&after, name) == uid(&before, name));
        if new && same { Ok(()) } else { Err(describe(&after)) }
    })
    .await;
}
