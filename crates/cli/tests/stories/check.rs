//! `quorate check`: what somebody is told before anything is installed, while it works, and when it broke.

use quorate_testbed::{Cluster, Patch, User, eventually};
use serde_json::{Value, json};

use crate::explain::{Told, quorate};
use crate::pubs::VERSION;
use crate::quorate::{Quorate, install};
use crate::town::Town;

quorate_testbed::stories!(
    Whole: a_check_tells_what_is_wrong_and_what_to_do, a_check_looks_at_unavailable_budgets_too,
);

async fn check(cluster: &Cluster, more: &[&str]) -> Told {
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    quorate(&[&["check", "--kubeconfig", &kubeconfig.to_string_lossy()], more].concat()).await
}

/// What was found, by outcome.
async fn found(cluster: &Cluster, outcome: &str) -> Vec<String> {
    let told = check(cluster, &["-o", "json"]).await;
    let data: Value =
        serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("no JSON: {}{}", told.out, told.err));
    let sections = data["sections"].as_array().expect("sections");
    assert_eq!((data["good"] == true, told.code == 0), (told.code == 0, data["good"] == true));
    let findings =
        sections.iter().flat_map(|section| section["findings"].as_array().cloned().unwrap_or_default());
    let wanted = findings.filter(|finding| finding["outcome"] == outcome);
    wanted.map(|finding| finding["what"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn a_check_tells_what_is_wrong_and_what_to_do(cluster: Cluster) {
    let told = check(&cluster, &[]).await;
    assert_eq!(told.code, 1, "{}", told.out);
    for line in [
        "✗ disruptionbudgets.policy.quorate.dev is missing\n    apply the current ones: quorate crds | kubectl apply",
        "✗ there is no MutatingWebhookConfiguration quorate: budgets deny nothing\n",
        "✗ no server is alive in quorate-system\n",
        "\nStatus check results are ✗\n",
    ] {
        assert!(told.out.contains(line), "{line:?} is missing in\n{}", told.out);
    }

    let server = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "checked").await;
    for name in ["web-0", "web-1"] {
        town.pod(name, json!({"app": "web"})).await;
    }
    let selector = json!({"matchLabels": {"app": "web"}});
    town.budget("web", json!({"selector": selector, "minAvailable": 1}), 1).await;
    town.labelled(true).await;
    assert_eq!(found(&cluster, "bad").await, Vec::<String>::new());
    assert_eq!(found(&cluster, "warning").await, ["one server is alive"]);
    let told = check(&cluster, &[]).await;
    assert!(told.code == 0 && told.out.ends_with("\nStatus check results are ✓\n"), "{}", told.out);
    assert!(told.out.contains("✓ the API server reaches a server\n"), "{}", told.out);
    assert!(told.out.contains("✓ 1 of 1 budgets are enforced and valid\n"), "{}", told.out);

    // A budget that blocks for ever, a pod that two native budgets cover, a probe that nobody runs.
    town.budget("never", json!({"selector": selector, "minAvailable": "100%", "expectedReplicas": 2}), 0)
        .await;
    for name in ["one", "two"] {
        let native = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {"maxUnavailable": 1, "selector": selector}});
        let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", town.namespace);
        town.wire.post(&path, &native).await.expect(201);
    }
    let probe = json!({"metadata": {"annotations": {
        "quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"}}});
    let path = format!("/api/v1/namespaces/{}/pods/web-1", town.namespace);
    town.wire.patch(&path, Patch::Merge, &probe).await.expect(200);
    let expected = [
        format!("{}/never: NeverAllows", town.namespace),
        "pods with a disruption probe, and no agent that renews its Lease, on by-hand".to_owned(),
        format!("2 pods are covered by two PodDisruptionBudgets, {}/web-0 by one, two", town.namespace),
    ];
    assert_eq!(found(&cluster, "bad").await, expected);

    // The server is gone: the webhook is not reached, and nobody is alive.
    server.end().await;
    eventually("the check sees that nobody is alive", || async {
        let bad = found(&cluster, "bad").await;
        let gone = ["the API server does not reach any server", "no server is alive in quorate-system"];
        if gone.iter().all(|what| bad.iter().any(|found| found == what)) { Ok(()) } else { Err(bad) }
    })
    .await;
}

async fn a_check_looks_at_unavailable_budgets_too(cluster: Cluster) {
    install(&cluster).await;
    let town = Town::found(&cluster, "unavailable").await;
    for name in ["web-0", "web-1"] {
        town.pod(name, json!({"app": "web", "odd": "too", "never": "too", "well": "too"})).await;
    }
    let budgets = format!("/apis/{VERSION}/namespaces/{}/podunavailablebudgets", town.namespace);
    let new = async |name: &str, annotations: Value, stay: u32| {
        let budget = json!({"apiVersion": VERSION, "kind": "PodUnavailableBudget",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"app": "web", name: "too"}}, "minAvailable": stay}});
        town.wire.post(&budgets, &budget).await.expect(201);
    };
    // Stored while nobody was there to refuse it.
    new("odd", json!({"kruise.io/pub-protect-operations": "EVERYTHING"}), 1).await;
    let server = Quorate::start_with(&cluster, |_| {}).await;
    new("never", json!({}), 2).await;
    new("well", json!({}), 1).await;
    let expected = [
        format!("PodUnavailableBudget {}/never: NeverAllows", town.namespace),
        format!("PodUnavailableBudget {}/odd: Invalid", town.namespace),
    ];
    eventually("the check finds what is wrong, and nothing else", || async {
        let bad = found(&cluster, "bad").await;
        if bad == expected { Ok(()) } else { Err(bad) }
    })
    .await;

    // Where OpenKruise answers for pods they are its own.
    let theirs = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "kruise-validating-webhook-configuration"},
        "webhooks": [{"name": "vpod.kb.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["nothings"]}]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    town.wire.post(path, &theirs).await.expect(201);
    let left = "OpenKruise answers for pods: it serves PodUnavailableBudgets, Quorate does not";
    eventually("the check leaves them to OpenKruise", || async {
        let (bad, warnings) = (found(&cluster, "bad").await, found(&cluster, "warning").await);
        let alone = bad.is_empty() && warnings == ["one server is alive", left];
        if alone { Ok(()) } else { Err((bad, warnings)) }
    })
    .await;
    server.end().await;
}
