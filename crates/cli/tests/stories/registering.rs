//! A server without the chart: it writes its webhook configurations itself, with its URL.

use quorate_server::Options;
use quorate_server::webhooks::ManagedBy;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::{ANYWHERE, Quorate, apply, install};

quorate_testbed::stories!(Whole: a_server_registers_its_webhooks_itself);

/// With the chart, Helm writes the webhook configurations, and the server has no right to create any.
const REGISTERING: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: registering}
rules:
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: registering}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: registering}
subjects: [{kind: ServiceAccount, name: quorate-server, namespace: quorate-system}]
";

async fn a_server_registers_its_webhooks_itself(cluster: Cluster) {
    install(&cluster).await;
    apply(&cluster, &[REGISTERING]).await;
    let wire = cluster.wire();
    let configuration =
        |kind: &str| format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/quorate");
    for kind in ["mutating", "validating"] {
        wire.delete(&configuration(kind), &json!({})).await.expect(200);
    }
    let quorate = Quorate::start_with(&cluster, by_itself).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "registered").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "operations": ["Evict", "Delete"],
    });
    ns.create_budget_allowing("web", spec, 0).await;
    ns.await_enforced_label(true).await;
    denial(&ns.evict("web-0").await);
    denial(&ns.delete_pod("web-0").await);
    let url = format!("https://{}/evictions", quorate.server.address);
    let stored = wire.get(&configuration("mutating")).await.expect(200);
    assert_eq!(stored["webhooks"][0]["clientConfig"]["url"], url.as_str(), "{stored}");

    // The next server registers its own address.
    quorate.end().await;
    let unreached = ns.evict("web-0").await;
    assert_eq!(unreached.code, 500, "{}", unreached.body);
    let _next = Quorate::start_with(&cluster, by_itself).await;
    eventually("the API server calls the next server", || async {
        let answer = ns.evict("web-0").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

fn by_itself(options: &mut Options) {
    options.listen = ANYWHERE;
    options.endpoint = None;
    options.webhooks = ManagedBy::Server;
}
