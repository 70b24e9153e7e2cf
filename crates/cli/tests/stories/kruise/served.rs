//! Quorate serves PodUnavailableBudgets unless OpenKruise does, or unless an option disables it.

use std::time::Duration;

use quorate_server::ServePub;
use quorate_testbed::{Cluster, User, eventually};
use serde_json::{Value, json};

use crate::explain::quorate;
use crate::fixture::{TestNamespace, condition, denial, has_condition, spec_for_app};
use crate::quorate::{Quorate, install};

quorate_testbed::stories!(Whole:
    unavailable_budgets_are_not_served_where_openkruise_serves_them,
    unavailable_budgets_are_served_beside_openkruise_if_configured,
    unavailable_budgets_that_are_not_served_any_more_are_not_enforced,
);

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const KRUISE: &str = "kruise-validating-webhook-configuration";

/// New budgets wait this long for a server that has ended.
const EXPIRY: Duration = Duration::from_secs(4);

/// OpenKruise's webhooks as its manager registers them, with rules that match nothing.
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

async fn unavailable_budgets_are_not_served_where_openkruise_serves_them(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "kruise").await;
    ns.create_pods("web", 2).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 0).await;
    denial(&ns.delete_pod("web-0").await);

    ns.wire.post(CONFIGURATIONS, &webhooks()).await.expect(201);
    eventually("the budget is left to OpenKruise", || async {
        let answer = ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    await_event(&ns, "LeftToOpenKruise").await;
    // Quorate does not validate budgets that it does not serve.
    ns.create_pub("again", json!({}), spec_for_app("web", "minAvailable", 2)).await.expect(201);
    ns.delete_pub("again").await;

    ns.wire.delete(&format!("{CONFIGURATIONS}/{KRUISE}"), &json!({})).await.expect(200);
    eventually("the budget is served again", || async {
        let answer = ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    await_event(&ns, "ServedByQuorate").await;
}

async fn await_event(ns: &TestNamespace, reason: &str) {
    eventually(&format!("{reason} can be read"), || async {
        let events = ns.wire.get("/apis/events.k8s.io/v1/namespaces/default/events").await.expect(200);
        let items = events["items"].as_array().cloned().unwrap_or_default();
        let found =
            items.iter().any(|event| event["reason"] == reason && event["regarding"]["name"] == KRUISE);
        if found { Ok(()) } else { Err(items) }
    })
    .await;
}

async fn unavailable_budgets_are_served_beside_openkruise_if_configured(cluster: Cluster) {
    install(&cluster).await;
    cluster.wire().post(CONFIGURATIONS, &webhooks()).await.expect(201);
    let ns = TestNamespace::with_manual_pods(&cluster, "beside").await;
    ns.create_pods("web", 2).await;
    let never = Quorate::start_with(&cluster, |options| options.serve_pub = ServePub::Never).await;
    ns.create_pub("web", json!({}), spec_for_app("web", "minAvailable", 2)).await.expect(201);
    // A budget of the other kind shows when the server has synced.
    ns.create_budget_allowing("other", spec_for_app("other", "minAvailable", 1), 0).await;
    assert_eq!(ns.pub_status("web").await, Value::Null, "no server writes its status");
    ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    let kubeconfig = kubeconfig.to_string_lossy();
    let check = async || quorate(&["check", "--kubeconfig", &kubeconfig]).await.out;
    let found = check().await;
    for line in [
        "✓ the servers run with --serve-pub=never\n",
        "✓ OpenKruise serves PodUnavailableBudgets, and Quorate does not\n",
    ] {
        assert!(found.contains(line), "{line} is missing in\n{found}");
    }
    never.end().await;

    // A server that starts beside OpenKruise reports this when it is the leader.
    let auto = Quorate::start_with(&cluster, |_| {}).await;
    await_event(&ns, "LeftToOpenKruise").await;
    assert_eq!(ns.pub_status("web").await, Value::Null, "no server writes its status");
    auto.end().await;

    let _always = Quorate::start_with(&cluster, |options| options.serve_pub = ServePub::Always).await;
    ns.await_pub_status("web", "it is enforced", |status| has_condition(status, "Enforced", "True")).await;
    denial(&ns.delete_pod("web-0").await);
    // OpenKruise's webhooks are still there: what the servers publish counts.
    let output = quorate(&["explain", "--kubeconfig", &kubeconfig, "pod/web-0", "-n", &ns.name]).await;
    assert!(output.code == 2 && output.out.contains("PodUnavailableBudget"), "{} {}", output.out, output.err);
    ns.delete_pub("web").await;
    let found = check().await;
    for line in [
        "✓ the servers run with --serve-pub=always\n",
        "✓ Quorate serves PodUnavailableBudgets, next to OpenKruise's webhooks for pods\n",
    ] {
        assert!(found.contains(line), "{line} is missing in\n{found}");
    }
}

async fn unavailable_budgets_that_are_not_served_any_more_are_not_enforced(cluster: Cluster) {
    install(&cluster).await;
    let start = async |serve_pub: ServePub| {
        Quorate::start_with(&cluster, |options| {
            options.serve_pub = serve_pub;
            options.claim_expiry = EXPIRY;
        })
        .await
    };
    let ns = TestNamespace::with_manual_pods(&cluster, "released").await;
    ns.create_pods("web", 2).await;
    let always = start(ServePub::Always).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
    assert!(has_condition(&ns.pub_status("web").await, "Enforced", "True"));
    always.end().await;

    let never = start(ServePub::Never).await;
    let status = ns
        .await_pub_status("web", "it is not enforced", |status| has_condition(status, "Enforced", "False"))
        .await;
    assert_eq!(condition(&status, "Enforced")["reason"], "NotServed");
    assert!(status.get("openedFor").is_none(), "{status}");
    assert_eq!(status["conditions"].as_array().map(Vec::len), Some(1), "{status}");
    // A budget that Quorate has never served stays as it is.
    ns.create_pub("other", json!({}), spec_for_app("other", "minAvailable", 1)).await.expect(201);
    ns.create_budget_allowing("other", spec_for_app("other", "minAvailable", 1), 0).await;
    assert_eq!(ns.pub_status("other").await, Value::Null);
    never.end().await;

    let _always = start(ServePub::Always).await;
    ns.await_pub_status("web", "it is enforced", |status| has_condition(status, "Enforced", "True")).await;
    ns.evict("web-0").await.expect(201);
    denial(&ns.evict("web-1").await);
}
