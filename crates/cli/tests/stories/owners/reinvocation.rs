//! Another webhook changes pods after Quorate, so the API server calls Quorate again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate_testbed::{Cluster, Reply, Webhook, eventually};
use serde_json::json;

use super::names;
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole: a_repeated_webhook_call_adds_no_owner_twice_and_loses_none);

async fn a_repeated_webhook_call_adds_no_owner_twice_and_loses_none(cluster: Cluster) {
    let ns = TestNamespace::with_owner_references(cluster, "again").await;
    let group = ns.create_job_group("nightly").await;
    let strips = Arc::new(AtomicBool::new(false));
    let strip = strips.clone();
    let other = Webhook::start(move |request| {
        let mut patch = vec![json!({"op": "add", "path": "/metadata/annotations/seen", "value": "yes"})];
        if strip.load(Ordering::Relaxed) {
            let first = &request["object"]["metadata"]["ownerReferences"][0];
            patch.push(json!({"op": "replace", "path": "/metadata/ownerReferences", "value": [first]}));
        }
        Reply::Patch(json!(patch))
    })
    .await
    .expect("a webhook");
    // The API server calls webhooks in the order of the names of their configurations: this one after Quorate's.
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "z-last"}, "webhooks": [{
            "name": "z.example.com", "clientConfig": other.client_config(), "sideEffects": "None",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "admissionReviewVersions": ["v1"]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    ns.wire.post(path, &configuration).await.expect(201);
    let touched = eventually("the other webhook is called", || async {
        let made = ns.dry_run_pod(&group).await;
        if made["metadata"]["annotations"]["seen"] == "yes" { Ok(made) } else { Err(made) }
    })
    .await;
    assert_eq!(names(&touched), ["none", "nightly"], "once");

    strips.store(true, Ordering::Relaxed);
    let stripped = ns.dry_run_pod(&group).await;
    // The embedded cluster calls no webhook a second time.
    let expected: &[&str] = if ns.cluster.embedded().is_some() { &["none"] } else { &["none", "nightly"] };
    assert_eq!(names(&stripped), expected, "the removed owner is added again");
}
