//! `quorate check`: its findings before an installation, while Quorate works, and after it broke.

use quorate_testbed::{Backend, Cluster, Options, Patch, Setup, User, eventually, run_story};
use serde_json::{Value, json};

use crate::explain::{Output, quorate};
use crate::fixture::{TestNamespace, UNAVAILABLE_BUDGETS, spec_for_app};
use crate::quorate::{Quorate, install};

quorate_testbed::stories!(
    Whole: check_reports_problems_and_remedies, check_covers_pod_unavailable_budgets,
);

/// The versions of two etcds say nothing about each other, and servers compare those of pods and budgets.
#[test]
fn pods_in_an_etcd_of_their_own_are_reported() {
    let options = Options { pods_in_own_etcd: true, ..Options::default() };
    run_story(Backend::Real, Setup::Private(options), async |cluster| {
        let _server = Quorate::start(&cluster).await;
        let ns = TestNamespace::with_manual_pods(&cluster, "stores").await;
        ns.create_pods("web", 2).await;
        ns.create_budget("web", spec_for_app("web", "minAvailable", 1)).await.expect(201);
        let bad = found(&cluster, "bad").await;
        let stores =
            "pods and budgets are stored in different etcds: a claim may end before its pod has gone";
        assert!(bad.iter().any(|what| what == stores), "{bad:?}");
    });
}

async fn check(cluster: &Cluster, more: &[&str]) -> Output {
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    quorate(&[&["check", "--kubeconfig", &kubeconfig.to_string_lossy()], more].concat()).await
}

/// The findings with this outcome.
async fn found(cluster: &Cluster, outcome: &str) -> Vec<String> {
    let output = check(cluster, &["-o", "json"]).await;
    let data: Value =
        serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("no JSON: {}{}", output.out, output.err));
    let sections = data["sections"].as_array().expect("sections");
    assert_eq!((data["good"] == true, output.code == 0), (output.code == 0, data["good"] == true));
    let findings =
        sections.iter().flat_map(|section| section["findings"].as_array().cloned().unwrap_or_default());
    let wanted = findings.filter(|finding| finding["outcome"] == outcome);
    wanted.map(|finding| finding["what"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn check_reports_problems_and_remedies(cluster: Cluster) {
    let output = check(&cluster, &[]).await;
    assert_eq!(output.code, 1, "{}", output.out);
    for line in [
        "✗ disruptionbudgets.policy.quorate.dev is missing\n    apply the current ones: quorate crds | kubectl apply",
        "✗ there is no MutatingWebhookConfiguration quorate: budgets deny nothing\n",
        "✗ no server is alive in quorate-system\n",
        "\nStatus check results are ✗\n",
    ] {
        assert!(output.out.contains(line), "{line:?} is missing in\n{}", output.out);
    }

    let server = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "checked").await;
    for name in ["web-0", "web-1"] {
        ns.create_pod(name, json!({"app": "web"})).await;
    }
    let selector = json!({"matchLabels": {"app": "web"}});
    ns.create_budget_allowing("web", json!({"selector": selector, "minAvailable": 1}), 1).await;
    ns.await_enforced_label(true).await;
    // A server whose Lease is renewed late does not count as alive for a moment.
    eventually("the check finds one server, and nothing wrong", || async {
        let (bad, warnings) = (found(&cluster, "bad").await, found(&cluster, "warning").await);
        if bad.is_empty() && warnings == ["one server is alive"] { Ok(()) } else { Err((bad, warnings)) }
    })
    .await;
    let output = eventually("the check succeeds", || async {
        let output = check(&cluster, &[]).await;
        if output.code == 0 { Ok(output) } else { Err(output.out) }
    })
    .await;
    assert!(output.out.ends_with("\nStatus check results are ✓\n"), "{}", output.out);
    assert!(output.out.contains("✓ the API server reaches a server\n"), "{}", output.out);
    assert!(output.out.contains("✓ 1 of 1 budgets are enforced and valid\n"), "{}", output.out);
    assert!(output.out.contains("✓ pods and budgets are stored in the same etcd\n"), "{}", output.out);
    for kind in ["Pod", "Deployment.apps", "Lease.coordination.k8s.io", "Workload.scheduling.quorate.dev"] {
        assert!(output.out.contains(&format!("✓ {kind} is current: received ")), "{kind}: {}", output.out);
    }

    // A budget that blocks for ever, a pod that two native budgets cover, a probe without an agent.
    ns.create_budget_allowing(
        "never",
        json!({"selector": selector, "minAvailable": "100%", "expectedReplicas": 2}),
        0,
    )
    .await;
    for name in ["one", "two"] {
        let native = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {"maxUnavailable": 1, "selector": selector}});
        let path = ns.path("policy/v1", "poddisruptionbudgets");
        ns.wire.post(&path, &native).await.expect(201);
    }
    let probe = json!({"metadata": {"annotations": {
        "quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"}}});
    let path = ns.pod_path("web-1");
    ns.wire.patch(&path, Patch::Merge, &probe).await.expect(200);
    let expected = [
        format!("{}/never: NeverAllows", ns.name),
        "pods with a disruption probe, and no agent that renews its Lease, on by-hand".to_owned(),
        format!("2 pods are covered by two PodDisruptionBudgets, {}/web-0 by one, two", ns.name),
    ];
    eventually("the check finds what is wrong, and nothing else", || async {
        let bad = found(&cluster, "bad").await;
        if bad == expected { Ok(()) } else { Err(bad) }
    })
    .await;

    // The server is gone: the webhook is not reachable, and no server is alive.
    server.end().await;
    eventually("the check sees that no server is alive", || async {
        let bad = found(&cluster, "bad").await;
        let gone = ["the API server does not reach any server", "no server is alive in quorate-system"];
        if gone.iter().all(|what| bad.iter().any(|found| found == what)) { Ok(()) } else { Err(bad) }
    })
    .await;
}

async fn check_covers_pod_unavailable_budgets(cluster: Cluster) {
    install(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "unavailable").await;
    for name in ["web-0", "web-1"] {
        ns.create_pod(name, json!({"app": "web", "odd": "too", "never": "too", "well": "too"})).await;
    }
    let budgets = ns.path(UNAVAILABLE_BUDGETS.0, UNAVAILABLE_BUDGETS.1);
    let new = async |name: &str, annotations: Value, stay: u32| {
        let budget = json!({"apiVersion": UNAVAILABLE_BUDGETS.0, "kind": "PodUnavailableBudget",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"app": "web", name: "too"}}, "minAvailable": stay}});
        ns.wire.post(&budgets, &budget).await.expect(201);
    };
    // Stored while no server runs that would reject it.
    new("odd", json!({"kruise.io/pub-protect-operations": "EVERYTHING"}), 1).await;
    let server = Quorate::start_with(&cluster, |_| {}).await;
    new("never", json!({}), 2).await;
    new("well", json!({}), 1).await;
    let expected = [
        format!("PodUnavailableBudget {}/never: NeverAllows", ns.name),
        format!("PodUnavailableBudget {}/odd: Invalid", ns.name),
    ];
    eventually("the check finds what is wrong, and nothing else", || async {
        let bad = found(&cluster, "bad").await;
        if bad == expected { Ok(()) } else { Err(bad) }
    })
    .await;

    // If OpenKruise has webhooks for pods, it serves the PodUnavailableBudgets.
    let theirs = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "kruise-validating-webhook-configuration"},
        "webhooks": [{"name": "vpod.kb.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["nothings"]}]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    ns.wire.post(path, &theirs).await.expect(201);
    let left = "OpenKruise answers for pods: it serves PodUnavailableBudgets, Quorate does not";
    eventually("the check leaves them to OpenKruise", || async {
        let (bad, warnings) = (found(&cluster, "bad").await, found(&cluster, "warning").await);
        let alone = bad.is_empty() && warnings == ["one server is alive", left];
        if alone { Ok(()) } else { Err((bad, warnings)) }
    })
    .await;
    server.end().await;
}
