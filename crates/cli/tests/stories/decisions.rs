//! How a budget decides on each kind of request.

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial};
use crate::quorate::{Quorate, scrape};

quorate_testbed::stories!(Whole: a_budget_decides_each_request);

async fn a_budget_decides_each_request(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    groups(&cluster).await;
    repeated(&cluster).await;
    dry_runs(&cluster).await;
    two_budgets(&cluster).await;
    observed(&cluster).await;
    other_operations(&cluster).await;
    invalid_and_blocking(&cluster).await;
    events_and_metrics(&cluster, &quorate).await;
}

/// Three groups of three, of which each needs two: one pod of each is surplus.
async fn groups(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "groups").await;
    for group in ["a", "b", "c"] {
        for number in 0..3 {
            ns.create_pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2}, "expectedReplicas": 3,
    });
    ns.create_budget_allowing("shard", spec, 1).await;

    // Surplus pods are not charged.
    ns.evict("a0").await.expect(201);
    ns.evict("b0").await.expect(201);
    ns.await_allowed("shard", 1).await;
    // The next eviction breaks its group; the rest of that group is not charged.
    ns.evict("a1").await.expect(201);
    ns.await_allowed("shard", 0).await;
    ns.evict("a2").await.expect(201);
    // No other group may go down now.
    let sentence = denial(&ns.evict("b1").await);
    let begins = format!("{}/shard keeps 2 of 3 groups: group b would be the second one down", ns.name);
    assert!(sentence.starts_with(&begins), "{sentence}");
    assert!(ns.pod_exists("b1").await);
    // A group with a surplus pod may still lose that pod.
    ns.evict("c0").await.expect(201);
    denial(&ns.evict("c1").await);
}

/// A repeated request is charged once, and reuses the claim of a request that the API server rejected.
async fn repeated(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "repeated").await;
    for number in 0..3 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}),
        1,
    )
    .await;
    // With the UID of another pod: the API server rejects the eviction, and nothing is charged.
    let other = json!({"preconditions": {"uid": "00000000-0000-0000-0000-00000000dead"}});
    assert_eq!(ns.evict_with("web-0", other, "").await.code, 409);
    assert_eq!(ns.budget_status("web").await["ledger"], 0);
    // Admitted by Quorate and then rejected by the API server: the claim stays, and the next request joins it.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("web-0", later, "").await.code, 409);
    let claims = ns.budget_status("web").await["claims"].clone();
    assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claims}");
    denial(&ns.evict("web-1").await);
    ns.evict("web-0").await.expect(201);
    ns.await_status("web", "the claim is settled", |status| status["claims"] == json!({})).await;
    denial(&ns.evict("web-1").await);
    // The webhook responds that the pod is gone: if it allowed the eviction, that might reach a new pod of that name.
    let gone = ns.evict("web-0").await;
    assert_eq!((gone.code, gone.body["reason"].clone()), (404, json!("NotFound")));
    assert!(gone.message().contains("evictions.quorate.dev"), "{}", gone.message());
}

/// A dry run gets the decision and changes nothing, whether the body or the query requests it.
async fn dry_runs(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "dry").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}),
        1,
    )
    .await;
    ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    ns.evict_with("web-0", json!({}), "?dryRun=All").await.expect(201);
    let status = ns.budget_status("web").await;
    assert_eq!((&status["ledger"], &status["claims"]), (&json!(0), &json!({})), "{status}");
    assert!(ns.pod_exists("web-0").await);
    ns.evict("web-0").await.expect(201);
    denial(&ns.evict_with("web-1", json!({"dryRun": ["All"]}), "").await);
    denial(&ns.evict_with("web-1", json!({}), "?dryRun=All").await);
}

/// Every budget that covers a pod must allow, and each is charged.
async fn two_budgets(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "two").await;
    for (name, zone) in [("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")] {
        ns.create_pod(name, json!({"app": "db", "zone": zone})).await;
    }
    let all = json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 2});
    let zone_a = json!({"selector": {"matchLabels": {"zone": "a"}}, "minAvailable": 1});
    ns.create_budget_allowing("all", all, 2).await;
    ns.create_budget_allowing("zone-a", zone_a, 1).await;
    ns.evict("a0").await.expect(201);
    ns.await_allowed("all", 1).await;
    ns.await_status("zone-a", "a0 is gone", |status| status["expectedPods"] == 1).await;
    let sentence = denial(&ns.evict("a1").await);
    assert!(sentence.starts_with(&format!("{}/zone-a keeps 1 of 1 pods", ns.name)), "{sentence}");
    assert_eq!(
        ns.budget_status("all").await["disruptionsAllowed"],
        1,
        "a budget that denies takes nothing from the others"
    );
    ns.evict("b0").await.expect(201);
    denial(&ns.evict("b1").await);
}

/// A budget that observes counts, and denies nothing.
async fn observed(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "observed").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "enforcement": "Observe",
    });
    ns.create_budget_allowing("web", spec, 0).await;
    ns.evict("web-0").await.expect(201);
    ns.await_status("web", "it counts one less", |status| status["currentHealthy"] == 1).await;
    let namespace = ns.wire.get(&format!("/api/v1/namespaces/{}", ns.name)).await.expect(200);
    assert_eq!(
        namespace["metadata"]["labels"]["quorate.dev/enforced"],
        Value::Null,
        "nothing is enforced here"
    );
}

/// A budget decides on deletes and updates only if its operations include them.
async fn other_operations(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "operations").await;
    for app in ["plain", "strict"] {
        for number in 0..3 {
            ns.create_pod(&format!("{app}-{number}"), json!({"app": app})).await;
        }
    }
    let spec = |app: &str| json!({"selector": {"matchLabels": {"app": app}}, "minAvailable": 2});
    ns.create_budget_allowing("plain", spec("plain"), 1).await;
    let mut strict = spec("strict");
    strict["operations"] = json!(["Evict", "Delete", "Update"]);
    ns.create_budget_allowing("strict", strict, 1).await;
    for number in 0..3 {
        ns.delete_pod(&format!("plain-{number}")).await.expect(200);
    }
    ns.await_update_webhook().await;
    ns.set_image("strict-0", "main:2").await.expect(200);
    ns.await_allowed("strict", 0).await;
    denial(&ns.set_image("strict-1", "main:2").await);
    denial(&ns.delete_pod("strict-1").await);
    denial(&ns.evict("strict-1").await);
    // A change that restarts no container is not a disruption.
    let label = json!({"metadata": {"labels": {"note": "harmless"}}});
    let path = ns.pod_path("strict-1");
    ns.wire.patch(&path, quorate_testbed::Patch::Merge, &label).await.expect(200);
}

/// An invalid budget is rejected with the name of the field. A budget that blocks every drain, or requires more pods
/// than a group has, gets a warning.
async fn invalid_and_blocking(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "nonsense").await;
    ns.create_pod("web-0", json!({"app": "web"})).await;
    let bad = json!({"selector": {"matchLabels": {"not a key": "web"}}, "maxUnavailable": 1});
    let refused = ns.create_budget("bad", bad).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(refused.message().contains("spec.selector.matchLabels"), "{}", refused.message());
    let blocks = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0});
    let warned = ns.create_budget("blocks", blocks).await;
    let warnings = warned.warnings.join("\n");
    warned.expect(201);
    assert!(warnings.contains("it will block every drain forever"), "{warnings}");

    for pod in ["shard-0", "shard-1"] {
        ns.create_pod(pod, json!({"app": "shard", "shard": "a"})).await;
    }
    // This shows that the server knows the pods.
    let all = json!({"selector": {"matchLabels": {"app": "shard"}}, "minAvailable": 0});
    ns.create_budget_allowing("all", all, 2).await;
    let large = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "shard", "minReadyReplicas": 3},
    });
    let warned = ns.create_budget("large", large).await;
    let warnings = warned.warnings.join("\n");
    warned.expect(201);
    assert!(warnings.contains("group a has 2 pods and gets no more"), "{warnings}");
}

/// A denial has Events on the pod and on the budget, and is counted.
async fn events_and_metrics(cluster: &Cluster, quorate: &Quorate) {
    let ns = TestNamespace::with_manual_pods(cluster, "denial-events").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}),
        0,
    )
    .await;
    for _ in 0..3 {
        denial(&ns.evict("web-0").await);
    }
    let path = ns.path("events.k8s.io/v1", "events");
    eventually("there is one Event for each", || async {
        let events = ns.wire.get(&path).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
        let mut regarded: Vec<String> = events
            .iter()
            .filter(|event| event["reason"] == "DisruptionDenied")
            .map(|event| {
                format!("{}/{}", event["regarding"]["kind"], event["regarding"]["name"]).replace('"', "")
            })
            .collect();
        regarded.sort();
        if regarded == ["DisruptionBudget/web", "Pod/web-0"] { Ok(()) } else { Err(regarded) }
    })
    .await;
    let metrics = scrape(quorate.server.admin).await;
    let denied =
        format!(r#"quorate_denials_total{{namespace="{}",budget="web",reason="Exhausted"}} 3"#, ns.name);
    assert!(metrics.lines().any(|line| line == denied), "{metrics}");
    let expected = format!(r#"quorate_units_expected{{namespace="{}",budget="web"}} 2"#, ns.name);
    assert!(metrics.lines().any(|line| line == expected), "{metrics}");
}
