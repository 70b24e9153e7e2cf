//! What a budget says to whoever asks, one question at a time.

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::quorate::{Quorate, scrape};
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: a_budget_answers);

async fn a_budget_answers(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    groups(&cluster).await;
    repeated(&cluster).await;
    dry_runs(&cluster).await;
    two_budgets(&cluster).await;
    observed(&cluster).await;
    other_operations(&cluster).await;
    nonsense(&cluster).await;
    told(&cluster, &quorate).await;
}

/// Three groups of three, of which each needs two: one pod of each is surplus.
async fn groups(cluster: &Cluster) {
    let town = Town::found(cluster, "groups").await;
    for group in ["a", "b", "c"] {
        for number in 0..3 {
            town.pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2}, "expectedReplicas": 3,
    });
    town.budget("shard", spec, 1).await;

    // Surplus is free.
    town.evict("a0").await.expect(201);
    town.evict("b0").await.expect(201);
    town.allows("shard", 1).await;
    // The next one breaks its group, the rest of that group is free.
    town.evict("a1").await.expect(201);
    town.allows("shard", 0).await;
    town.evict("a2").await.expect(201);
    // No other group may go down now.
    let sentence = refusal(&town.evict("b1").await);
    let begins =
        format!("{}/shard keeps 2 of 3 groups: group b would be the second one down", town.namespace);
    assert!(sentence.starts_with(&begins), "{sentence}");
    assert!(town.exists("b1").await);
    // One that has a pod to spare may still lose it.
    town.evict("c0").await.expect(201);
    refusal(&town.evict("c1").await);
}

/// Asking twice costs what asking once costs, and a claim that nothing came of is asked for again.
async fn repeated(cluster: &Cluster) {
    let town = Town::found(cluster, "repeated").await;
    for number in 0..3 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 1).await;
    // Pinned to another pod: the API server refuses what was asked, and nothing is charged.
    let other = json!({"preconditions": {"uid": "00000000-0000-0000-0000-00000000dead"}});
    assert_eq!(town.evict_with("web-0", other, "").await.code, 409);
    assert_eq!(town.status("web").await["ledger"], 0);
    // Admitted by us and refused by the API server for a reason of its own: the claim stands, and is joined.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("web-0", later, "").await.code, 409);
    let claims = town.status("web").await["claims"].clone();
    assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claims}");
    refusal(&town.evict("web-1").await);
    town.evict("web-0").await.expect(201);
    town.status_is("web", "the claim is settled", |status| status["claims"] == json!({})).await;
    refusal(&town.evict("web-1").await);
    // The server says that the pod is gone: allowed, the eviction might reach a new pod of that name.
    let gone = town.evict("web-0").await;
    assert_eq!((gone.code, gone.body["reason"].clone()), (404, json!("NotFound")));
    assert!(gone.message().contains("evictions.quorate.dev"), "{}", gone.message());
}

/// A dry run gets the answer and changes nothing, wherever it is written.
async fn dry_runs(cluster: &Cluster) {
    let town = Town::found(cluster, "dry").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}), 1).await;
    town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    town.evict_with("web-0", json!({}), "?dryRun=All").await.expect(201);
    let status = town.status("web").await;
    assert_eq!((&status["ledger"], &status["claims"]), (&json!(0), &json!({})), "{status}");
    assert!(town.exists("web-0").await);
    town.evict("web-0").await.expect(201);
    refusal(&town.evict_with("web-1", json!({"dryRun": ["All"]}), "").await);
    refusal(&town.evict_with("web-1", json!({}), "?dryRun=All").await);
}

/// Every budget that covers a pod must agree, and each is charged.
async fn two_budgets(cluster: &Cluster) {
    let town = Town::found(cluster, "two").await;
    for (name, zone) in [("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")] {
        town.pod(name, json!({"app": "db", "zone": zone})).await;
    }
    let all = json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 2});
    let zone_a = json!({"selector": {"matchLabels": {"zone": "a"}}, "minAvailable": 1});
    town.budget("all", all, 2).await;
    town.budget("zone-a", zone_a, 1).await;
    town.evict("a0").await.expect(201);
    town.allows("all", 1).await;
    town.allows("zone-a", 0).await;
    let sentence = refusal(&town.evict("a1").await);
    assert!(sentence.starts_with(&format!("{}/zone-a keeps 1 of 1 pods", town.namespace)), "{sentence}");
    assert_eq!(
        town.status("all").await["disruptionsAllowed"],
        1,
        "who says no takes nothing from the others"
    );
    town.evict("b0").await.expect(201);
    refusal(&town.evict("b1").await);
}

/// A budget that observes counts, and holds nobody up.
async fn observed(cluster: &Cluster) {
    let town = Town::found(cluster, "observed").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "enforcement": "Observe",
    });
    town.budget("web", spec, 0).await;
    town.evict("web-0").await.expect(201);
    town.status_is("web", "it counts one less", |status| status["currentHealthy"] == 1).await;
    let namespace = town.wire.get(&format!("/api/v1/namespaces/{}", town.namespace)).await.expect(200);
    assert_eq!(
        namespace["metadata"]["labels"]["quorate.dev/enforced"],
        Value::Null,
        "nothing is enforced here"
    );
}

/// Deletes and updates pass by a budget that does not speak of them, and wait for one that does.
async fn other_operations(cluster: &Cluster) {
    let town = Town::found(cluster, "operations").await;
    for app in ["plain", "strict"] {
        for number in 0..3 {
            town.pod(&format!("{app}-{number}"), json!({"app": app})).await;
        }
    }
    let spec = |app: &str| json!({"selector": {"matchLabels": {"app": app}}, "minAvailable": 2});
    town.budget("plain", spec("plain"), 1).await;
    let mut strict = spec("strict");
    strict["operations"] = json!(["Evict", "Delete", "Update"]);
    town.budget("strict", strict, 1).await;
    for number in 0..3 {
        town.delete(&format!("plain-{number}")).await.expect(200);
    }
    town.asked_about_updates().await;
    town.set_image("strict-0", "main:2").await.expect(200);
    town.allows("strict", 0).await;
    refusal(&town.set_image("strict-1", "main:2").await);
    refusal(&town.delete("strict-1").await);
    refusal(&town.evict("strict-1").await);
    // What restarts nothing is no disruption.
    let label = json!({"metadata": {"labels": {"note": "harmless"}}});
    let path = format!("/api/v1/namespaces/{}/pods/strict-1", town.namespace);
    town.wire.patch(&path, quorate_testbed::Patch::Merge, &label).await.expect(200);
}

/// A budget that makes no sense is refused with the place in it; one that will hurt gets a warning.
async fn nonsense(cluster: &Cluster) {
    let town = Town::found(cluster, "nonsense").await;
    town.pod("web-0", json!({"app": "web"})).await;
    let bad = json!({"selector": {"matchLabels": {"not a key": "web"}}, "maxUnavailable": 1});
    let refused = town.new_budget("bad", bad).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(refused.message().contains("spec.selector.matchLabels"), "{}", refused.message());
    let blocks = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0});
    let warned = town.new_budget("blocks", blocks).await;
    let warnings = warned.warnings.join("\n");
    warned.expect(201);
    assert!(warnings.contains("it will block every drain forever"), "{warnings}");
}

/// A refusal can be read on the pod and on the budget, and is counted.
async fn told(cluster: &Cluster, quorate: &Quorate) {
    let town = Town::found(cluster, "told").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 0).await;
    for _ in 0..3 {
        refusal(&town.evict("web-0").await);
    }
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", town.namespace);
    eventually("each is told once", || async {
        let events = town.wire.get(&path).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
        let mut told: Vec<String> = events
            .iter()
            .filter(|event| event["reason"] == "DisruptionDenied")
            .map(|event| {
                format!("{}/{}", event["regarding"]["kind"], event["regarding"]["name"]).replace('"', "")
            })
            .collect();
        told.sort();
        if told == ["DisruptionBudget/web", "Pod/web-0"] { Ok(()) } else { Err(told) }
    })
    .await;
    let metrics = scrape(quorate.server.admin).await;
    let denied = format!(
        r#"quorate_denials_total{{namespace="{}",budget="web",reason="Exhausted"}} 3"#,
        town.namespace
    );
    assert!(metrics.lines().any(|line| line == denied), "{metrics}");
    let expected = format!(r#"quorate_units_expected{{namespace="{}",budget="web"}} 2"#, town.namespace);
    assert!(metrics.lines().any(|line| line == expected), "{metrics}");
}
