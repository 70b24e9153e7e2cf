//! A webhook that records the deletions of pods and can deny them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate_testbed::{Reply, Webhook, eventually};
use serde_json::json;

use crate::cast::Scene;

type Configurations = kube::Api<k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration>;

/// A webhook that denies one user the deletion of pods in the story's namespace, until it is opened.
pub(crate) struct Gate {
    hook: Webhook,
    open: Arc<AtomicBool>,
    configurations: Configurations,
    name: String,
}

impl Gate {
    /// Registers the webhook, and waits until the API server calls it.
    pub(crate) async fn closed_to(scene: &Scene, user: &'static str) -> Self {
        let open = Arc::new(AtomicBool::new(false));
        let is_open = open.clone();
        let hook = Webhook::start(move |request| {
            if request["userInfo"]["username"] == user && !is_open.load(Ordering::SeqCst) {
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
        let configurations: Configurations = kube::Api::all(scene.client.clone());
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations.create(&Default::default(), &configuration).await.unwrap();
        // The API server calls a webhook only some time after its configuration is created; a dry-run deletion shows
        // it.
        eventually("the webhook is called", || async {
            let pods = scene.pods().list(&Default::default()).await.unwrap();
            let name = pods.items[0].metadata.name.clone().unwrap();
            let dry = kube::api::DeleteParams::default().dry_run();
            scene.pods().delete(&name, &dry).await.unwrap();
            if hook.seen().is_empty() { Err(()) } else { Ok(()) }
        })
        .await;
        Self { hook, open, configurations, name: scene.namespace.clone() }
    }

    /// The number of requests of this user to delete the pod.
    pub(crate) fn asked(&self, user: &str, pod: &str) -> usize {
        let seen = self.hook.seen();
        seen.iter()
            .filter(|request| request["userInfo"]["username"] == user && request["name"] == pod)
            .count()
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn remove(self) {
        self.configurations.delete(&self.name, &Default::default()).await.unwrap();
    }
}
