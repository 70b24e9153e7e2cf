//! Updates that shorten activeDeadlineSeconds: the kubelet ends the pod at its deadline.

use std::time::Duration;

use quorate_testbed::{Cluster, Patch, Reply, Webhook, WireResponse, eventually};
use serde_json::{Value, json};

use crate::events::await_events;
use crate::fixture::{TestNamespace, denial};
use crate::quorate::{Quorate, install};

quorate_testbed::stories!(Whole: a_deadline_is_charged_until_the_pod_has_failed);

/// Longer than the story needs to read the status before a claim expires, also on a busy machine.
const EXPIRY: Duration = Duration::from_secs(10);

/// Of two updates that Quorate admits, another webhook denies one. That claim expires. The other one lasts until the pod
/// has failed, although that takes longer.
async fn a_deadline_is_charged_until_the_pod_has_failed(cluster: Cluster) {
    install(&cluster).await;
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = EXPIRY).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "deadline").await;
    ns.create_pods("job", 4).await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "job"}}, "minAvailable": 2, "operations": ["Evict", "Update"],
    });
    ns.create_budget_allowing("job", spec, 2).await;
    ns.await_update_webhook().await;
    let other = OtherWebhook::that_denies(&ns, "job-1").await;

    set_deadline(&ns, "job-0").await.expect(200);
    assert_eq!(set_deadline(&ns, "job-1").await.message(), DENIED);
    ns.await_status("job", "both are charged", |status| {
        claimed(status) == ["job-0", "job-1"] && status["disruptionsAllowed"] == 0
    })
    .await;
    let sentence = denial(&set_deadline(&ns, "job-2").await);
    assert!(sentence.starts_with(&format!("{}/job keeps 2 of 4 pods: ", ns.name)), "{sentence}");
    denial(&ns.evict("job-2").await);

    ns.await_status("job", "the update that was not made has expired", |status| {
        claimed(status) == ["job-0"] && status["disruptionsAllowed"] == 1
    })
    .await;
    let note = await_events(&ns, "job", "NotDisrupted").await[0]["note"].clone();
    assert!(note.as_str().is_some_and(|note| note.contains("job-1")), "{note}");
    set_deadline(&ns, "job-2").await.expect(200);
    denial(&set_deadline(&ns, "job-3").await);

    // No kubelet runs these pods.
    let failed = json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}});
    ns.wire.patch(&ns.pod_path("job-0/status"), Patch::Merge, &failed).await.expect(200);
    ns.await_status("job", "the first update is over", |status| {
        claimed(status) == ["job-2"] && status["disruptionsAllowed"] == 0
    })
    .await;
    // Its replacement makes room for the next one.
    ns.create_pod("job-4", json!({"app": "job"})).await;
    ns.await_status("job", "the replacement counts", |status| status["disruptionsAllowed"] == 1).await;
    set_deadline(&ns, "job-3").await.expect(200);
    other.remove(&ns).await;
}

/// Lets a pod run for ten minutes more.
async fn set_deadline(ns: &TestNamespace, pod: &str) -> WireResponse {
    ns.patch_pod(pod, &json!({"spec": {"activeDeadlineSeconds": 600}})).await
}

/// The pods with a claim, by name.
fn claimed(status: &Value) -> Vec<&str> {
    let claims = status["claims"].as_object().into_iter().flatten();
    let mut pods: Vec<&str> = claims.filter_map(|(_, claim)| claim["pod"].as_str()).collect();
    pods.sort_unstable();
    pods
}

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// How the API server reports its denial.
const DENIED: &str = "admission webhook \"other.example.com\" denied the request: not this one";

/// Another webhook for updates of pods. The API server calls it and Quorate at the same time.
struct OtherWebhook {
    name: String,
    _server: Webhook,
}

impl OtherWebhook {
    async fn that_denies(ns: &TestNamespace, pod: &'static str) -> Self {
        let server = Webhook::start(move |request| match request["name"] == pod {
            true => Reply::Deny(json!({"code": 403, "message": "not this one"})),
            false => Reply::Allow,
        });
        let (name, server) = (format!("other-{}", ns.name), server.await.expect("a webhook"));
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"],
        });
        let webhook = json!({
            "name": "other.example.com", "clientConfig": server.client_config(), "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns.name}},
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name}, "webhooks": [webhook],
        });
        ns.wire.post(CONFIGURATIONS, &configuration).await.expect(201);
        eventually("the other webhook is called", || async {
            let path = ns.pod_path(&format!("{pod}?dryRun=All"));
            let patch = json!({"metadata": {"annotations": {"a": "b"}}});
            let answer = ns.wire.patch(&path, Patch::Merge, &patch).await;
            if answer.message() == DENIED { Ok(()) } else { Err(answer.body) }
        })
        .await;
        Self { name, _server: server }
    }

    async fn remove(self, ns: &TestNamespace) {
        ns.wire.delete(&format!("{CONFIGURATIONS}/{}", self.name), &json!({})).await.expect(200);
    }
}
