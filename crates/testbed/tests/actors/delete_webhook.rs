//! A webhook that records the deletions of pods and can deny them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate_testbed::{Reply, Webhook, eventually};
use serde_json::json;

use crate::fixture::Fixture;

type Configurations = kube::Api<k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration>;

/// A webhook that denies one user the deletion of pods in the story's namespace, until [`DeleteWebhook::allow`].
pub(crate) struct DeleteWebhook {
    hook: Webhook,
    allows: Arc<AtomicBool>,
    configurations: Configurations,
    name: String,
}

impl DeleteWebhook {
    /// Registers the webhook, and waits until the API server calls it.
    pub(crate) async fn denying(fixture: &Fixture, user: &'static str) -> Self {
        let allows = Arc::new(AtomicBool::new(false));
        let allows_now = allows.clone();
        let hook = Webhook::start(move |request| {
            if request["userInfo"]["username"] == user && !allows_now.load(Ordering::SeqCst) {
                Reply::Deny(json!({"code": 429, "reason": "TooManyRequests", "message": "not now"}))
            } else {
                Reply::Allow
            }
        })
        .await
        .unwrap();
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": fixture.namespace},
            "webhooks": [{
                "name": "pods.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": hook.client_config(),
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.namespace}},
                "rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            }],
        });
        let configurations: Configurations = kube::Api::all(fixture.client.clone());
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations.create(&Default::default(), &configuration).await.unwrap();
        // The API server calls a webhook only some time after its configuration is created; a dry-run deletion shows
        // it.
        eventually("the webhook is called", || async {
            let pods = fixture.pods().list(&Default::default()).await.unwrap();
            let name = pods.items[0].metadata.name.clone().unwrap();
            let dry = kube::api::DeleteParams::default().dry_run();
            fixture.pods().delete(&name, &dry).await.unwrap();
            if hook.seen().is_empty() { Err(()) } else { Ok(()) }
        })
        .await;
        Self { hook, allows, configurations, name: fixture.namespace.clone() }
    }

    /// The number of requests of this user to delete the pod.
    pub(crate) fn requests(&self, user: &str, pod: &str) -> usize {
        let seen = self.hook.seen();
        seen.iter()
            .filter(|request| request["userInfo"]["username"] == user && request["name"] == pod)
            .count()
    }

    pub(crate) fn allow(&self) {
        self.allows.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn remove(self) {
        self.configurations.delete(&self.name, &Default::default()).await.unwrap();
    }
}
