//! Beside another webhook that changes pods after Quorate did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate_testbed::{Cluster, Reply, Webhook, eventually};
use serde_json::json;

use super::{Lab, names};

quorate_testbed::stories!(Whole: asked_again_nothing_is_added_twice_and_nothing_is_lost);

async fn asked_again_nothing_is_added_twice_and_nothing_is_lost(cluster: Cluster) {
    let lab = Lab::open(cluster, "again").await;
    let group = lab.group("nightly").await;
    let strips = Arc::new(AtomicBool::new(false));
    let told = strips.clone();
    let other = Webhook::start(move |request| {
        let mut patch = vec![json!({"op": "add", "path": "/metadata/annotations/seen", "value": "yes"})];
        if told.load(Ordering::Relaxed) {
            let first = &request["object"]["metadata"]["ownerReferences"][0];
            patch.push(json!({"op": "replace", "path": "/metadata/ownerReferences", "value": [first]}));
        }
        Reply::Patch(json!(patch))
    })
    .await
    .expect("a webhook");
    // Webhooks are asked in the order of the names of their configurations: this one after Quorate's.
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "z-last"}, "webhooks": [{
            "name": "z.example.com", "clientConfig": other.client_config(), "sideEffects": "None",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "admissionReviewVersions": ["v1"]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    lab.wire.post(path, &configuration).await.expect(201);
    let touched = eventually("the other webhook is asked", || async {
        let made = lab.tried(&group).await;
        if made["metadata"]["annotations"]["seen"] == "yes" { Ok(made) } else { Err(made) }
    })
    .await;
    assert_eq!(names(&touched), ["none", "nightly"], "once");

    strips.store(true, Ordering::Relaxed);
    let stripped = lab.tried(&group).await;
    // The embedded cluster asks nobody a second time.
    let expected: &[&str] = if lab.cluster.embedded().is_some() { &["none"] } else { &["none", "nightly"] };
    assert_eq!(names(&stripped), expected, "what another took away is there again");
}
