//! Who serves PodUnavailableBudgets: Quorate, unless OpenKruise does or nobody is to.

use quorate_server::ServePub;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use super::over;
use crate::quorate::{Quorate, install};
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole:
    they_are_left_alone_where_openkruise_decides_on_pods,
    they_are_served_beside_openkruise_where_that_is_asked_for,
);

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const KRUISE: &str = "kruise-validating-webhook-configuration";

/// OpenKruise's webhooks as its manager registers them, but asked about nothing.
fn webhooks() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": KRUISE},
        "webhooks": [{
            "name": "vpod.kb.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/validate-pod"},
            "rules": [{
                "apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["DELETE"],
                "resources": ["nothing"],
            }],
        }],
    })
}

async fn they_are_left_alone_where_openkruise_decides_on_pods(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "kruise").await;
    town.pods_of("web", 2).await;
    town.pub_over("web", over("web", "minAvailable", 2), 0).await;
    refusal(&town.delete("web-0").await);

    town.wire.post(CONFIGURATIONS, &webhooks()).await.expect(201);
    eventually("the budget is left to OpenKruise", || async {
        let answer = town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    told(&town, "LeftToOpenKruise").await;
    // Nor is it judged what others serve.
    town.new_pub("again", json!({}), over("web", "minAvailable", 2)).await.expect(201);
    town.delete_pub("again").await;

    town.wire.delete(&format!("{CONFIGURATIONS}/{KRUISE}"), &json!({})).await.expect(200);
    eventually("the budget is served again", || async {
        let answer = town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    told(&town, "ServedByQuorate").await;
}

async fn told(town: &Town, reason: &str) {
    eventually(&format!("{reason} can be read"), || async {
        let events = town.wire.get("/apis/events.k8s.io/v1/namespaces/default/events").await.expect(200);
        let items = events["items"].as_array().cloned().unwrap_or_default();
        let told =
            items.iter().any(|event| event["reason"] == reason && event["regarding"]["name"] == KRUISE);
        if told { Ok(()) } else { Err(items) }
    })
    .await;
}

async fn they_are_served_beside_openkruise_where_that_is_asked_for(cluster: Cluster) {
    install(&cluster).await;
    cluster.wire().post(CONFIGURATIONS, &webhooks()).await.expect(201);
    let town = Town::found(&cluster, "beside").await;
    town.pods_of("web", 2).await;
    let never = Quorate::start_with(&cluster, |options| options.serve_pub = ServePub::Never).await;
    town.new_pub("web", json!({}), over("web", "minAvailable", 2)).await.expect(201);
    // A budget of the other kind tells when the server is at work.
    town.budget("other", over("other", "minAvailable", 1), 0).await;
    assert_eq!(town.pub_status("web").await, Value::Null, "nobody looks at it");
    town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    never.end().await;

    // One that starts where OpenKruise is at work says so, once it is the one that speaks for all.
    let auto = Quorate::start_with(&cluster, |_| {}).await;
    told(&town, "LeftToOpenKruise").await;
    assert_eq!(town.pub_status("web").await, Value::Null, "nobody looks at it");
    auto.end().await;

    let _always = Quorate::start_with(&cluster, |options| options.serve_pub = ServePub::Always).await;
    town.pub_is("web", "it is enforced", |status| is(status, "Enforced", "True")).await;
    refusal(&town.delete("web-0").await);
}
