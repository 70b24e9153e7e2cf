//! Certificates are replaced before they expire, and no webhook call fails.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_server::certificates::{CertificateSource, Rotation, SECRET};
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::{NAMESPACE, Quorate, install};

quorate_testbed::stories!(Whole: certificate_authorities_rotate_without_failed_webhook_calls);

/// Seconds instead of years, with some to spare, since a busy machine may delay a server for a few seconds.
fn hurried() -> Rotation {
    Rotation {
        ca_duration: Duration::from_secs(60),
        ca_renew_before: Duration::from_secs(52),
        ca_propagation: Duration::from_secs(6),
        leaf_duration: Duration::from_secs(20),
        check_interval: Duration::from_millis(500),
    }
}

async fn certificate_authorities_rotate_without_failed_webhook_calls(cluster: Cluster) {
    install(&cluster).await;
    let change =
        |options: &mut quorate_server::Options| options.certificates = CertificateSource::Own(hurried());
    let _quorate = Quorate::start_with(&cluster, change).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "signed").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}),
        0,
    )
    .await;
    ns.await_enforced_label(true).await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}");
    let authorities = Mutex::new(BTreeSet::new());
    eventually("there was a third authority", || async {
        // Denied by Quorate each time: if the API server did not trust the certificate, it would respond with 500.
        denial(&ns.evict("web-0").await);
        let secret = ns.wire.get(&path).await.expect(200);
        let mut authorities = authorities.lock();
        authorities.insert(secret["data"]["ca.crt"].as_str().expect("a certificate").to_owned());
        if authorities.len() >= 3 { Ok(()) } else { Err(authorities.len()) }
    })
    .await;
}
