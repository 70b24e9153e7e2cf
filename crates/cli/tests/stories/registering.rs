//! A server without the chart: it tells the API server itself to ask it, at a URL.

use quorate_server::Options;
use quorate_server::webhooks::ManagedBy;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::quorate::{ANYWHERE, Quorate, apply, install};
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: a_server_registers_its_webhooks_itself);

/// Under the chart, Helm writes the webhook configurations, and nobody else may make any.
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
    let town = Town::found(&cluster, "registered").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "operations": ["Evict", "Delete"],
    });
    town.budget("web", spec, 0).await;
    town.labelled(true).await;
    refusal(&town.evict("web-0").await);
    refusal(&town.delete("web-0").await);
    let url = format!("https://{}/evictions", quorate.server.address);
    let stored = wire.get(&configuration("mutating")).await.expect(200);
    assert_eq!(stored["webhooks"][0]["clientConfig"]["url"], url.as_str(), "{stored}");

    // Whoever comes after it is asked where that one is.
    quorate.end().await;
    let unreached = town.evict("web-0").await;
    assert_eq!(unreached.code, 500, "{}", unreached.body);
    let _next = Quorate::start_with(&cluster, by_itself).await;
    eventually("the next one is asked", || async {
        let answer = town.evict("web-0").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

fn by_itself(options: &mut Options) {
    options.listen = ANYWHERE;
    options.endpoint = None;
    options.webhooks = ManagedBy::Server;
}
