//! What a PodUnavailableBudget says to whoever asks, and each time that OpenKruise's own would have said something else.

use std::cell::Cell;

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use super::over;
use crate::quorate::{Quorate, scrape};
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole: a_pod_unavailable_budget_answers);

async fn a_pod_unavailable_budget_answers(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    every_operation(&cluster, &quorate).await;
    dry_runs(&cluster).await;
    just_made(&cluster).await;
    successors(&cluster).await;
    links(&cluster).await;
    free(&cluster).await;
    labels(&cluster).await;
    annotations(&cluster).await;
    beside_a_disruption_budget(&cluster).await;
    ends_with_its_namespace(&cluster).await;
}

/// Evictions, deletes and updates share one number. A refusal is one that a drain waits for, not one that ends it.
async fn every_operation(cluster: &Cluster, quorate: &Quorate) {
    let town = Town::found(cluster, "operations").await;
    town.pods_of("web", 4).await;
    town.pub_over("web", over("web", "minAvailable", 3), 1).await;
    let status = town.pub_status("web").await;
    let numbers = ["currentAvailable", "desiredAvailable", "totalReplicas", "unavailableReplicas"];
    assert_eq!(numbers.map(|name| status[name].as_u64()), [Some(4), Some(3), Some(4), Some(0)]);
    town.set_image("web-0", "main:2").await.expect(200);
    let sentence = refusal(&town.delete("web-1").await);
    let begins = format!(
        "PodUnavailableBudget {}/web keeps 3 of 4 pods: pod web-1 would be the second one down (web-0 is being",
        town.namespace
    );
    assert!(sentence.starts_with(&begins), "{sentence}");
    refusal(&town.evict("web-1").await);
    refusal(&town.set_image("web-1", "main:2").await);
    let status = town.pub_is("web", "the update stands there", |s| s["unavailablePods"].is_object()).await;
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    assert_eq!(status["unavailableAllowed"], 0);
    assert!(status["disruptedPods"].is_null(), "{status}");
    // What restarts nothing is no disruption.
    town.change_pod("web-1", &json!({"metadata": {"labels": {"note": "harmless"}}})).await.expect(200);
    let metrics = scrape(quorate.server.admin).await;
    let denied = format!(
        r#"quorate_denials_total{{namespace="{}",budget="podunavailablebudget/web",reason="Exhausted"}} 3"#,
        town.namespace
    );
    assert!(metrics.lines().any(|line| line == denied), "{metrics}");
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", town.namespace);
    eventually("the refusal can be read on the budget", || async {
        let events = town.wire.get(&path).await.expect(200)["items"].clone();
        let told = events.as_array().into_iter().flatten().any(|event| {
            event["reason"] == "DisruptionDenied" && event["regarding"]["kind"] == "PodUnavailableBudget"
        });
        if told { Ok(()) } else { Err(events) }
    })
    .await;
}

/// A dry run costs nothing, be it said in the address or in the eviction.
async fn dry_runs(cluster: &Cluster) {
    let town = Town::found(cluster, "dry").await;
    town.pods_of("web", 2).await;
    town.pub_over("web", over("web", "minAvailable", 1), 1).await;
    town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    town.evict_with("web-1", json!({}), "?dryRun=All").await.expect(201);
    let status = town.pub_status("web").await;
    assert_eq!((&status["ledger"], &status["claims"]), (&json!(0), &json!({})), "{status}");
    town.evict("web-0").await.expect(201);
    refusal(&town.evict_with("web-1", json!({"dryRun": ["All"]}), "").await);
}

/// A budget that was just made does not let everything go until somebody has counted.
async fn just_made(cluster: &Cluster) {
    let town = Town::found(cluster, "new").await;
    town.pods_of("web", 2).await;
    town.new_pub("web", json!({}), over("web", "minAvailable", 1)).await.expect(201);
    let admitted = Cell::new(0);
    let ask_for_both = async || {
        for pod in ["web-0", "web-1"] {
            let answer = town.delete(pod).await;
            match answer.code {
                200 => admitted.set(admitted.get() + 1),
                404 => {}
                _ => drop(refusal(&answer)),
            }
        }
    };
    eventually("it is enforced, and has let one go", || async {
        ask_for_both().await;
        let status = town.pub_status("web").await;
        if is(&status, "Enforced", "True") && admitted.get() > 0 { Ok(()) } else { Err(status) }
    })
    .await;
    ask_for_both().await;
    assert_eq!(admitted.get(), 1, "one of two stays");
}

/// A pod that comes back under its name is another one: what was admitted for the first does not count against it.
async fn successors(cluster: &Cluster) {
    let town = Town::found(cluster, "successors").await;
    town.pods_of("db", 2).await;
    town.pub_over("db", over("db", "minAvailable", 1), 1).await;
    for _ in 0..3 {
        town.delete("db-0").await.expect(200);
        refusal(&town.delete("db-1").await);
        town.pod("db-0", json!({"app": "db"})).await;
        town.pub_allows("db", 1).await;
    }
}

/// What an annotation says of a budget that is gone, or never was, is not believed; nor is it needed.
async fn links(cluster: &Cluster) {
    let town = Town::found(cluster, "links").await;
    town.pods_of("web", 2).await;
    let related = json!({"metadata": {"annotations": {
        "kruise.io/related-pub": "lax", "pub.kruise.io/related-pub": "lax",
    }}});
    town.change_pod("web-0", &related).await.expect(200);
    town.pub_over("first", over("web", "minAvailable", 2), 0).await;
    for pod in ["web-0", "web-1"] {
        refusal(&town.delete(pod).await);
    }
    town.delete_pub("first").await;
    // The server may not have seen the deletion yet, and two budgets over the same pods are refused.
    eventually("the second budget is accepted", || async {
        let answer = town.new_pub("second", json!({}), over("web", "minAvailable", 2)).await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    tokio::join!(town.pub_allows("second", 0), town.asked_about_updates());
    for pod in ["web-0", "web-1"] {
        let sentence = refusal(&town.delete(pod).await);
        assert!(sentence.contains("/second keeps"), "{sentence}");
    }
}

/// Pods that are not ready are free, and so are those that ask for it. All of them are counted.
async fn free(cluster: &Cluster) {
    let town = Town::found(cluster, "free").await;
    town.pods_of("web", 4).await;
    town.pub_over("web", over("web", "minAvailable", 4), 0).await;
    town.set_ready("web-0", false).await;
    town.pub_is("web", "one is not available", |status| status["currentAvailable"] == 3).await;
    town.evict("web-0").await.expect(201);
    let waive = json!({"metadata": {"annotations": {"pub.kruise.io/no-protect": "true"}}});
    town.change_pod("web-1", &waive).await.expect(200);
    eventually("the pod that asks for it may go", || async {
        let answer = town.evict_with("web-1", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    town.evict("web-1").await.expect(201);
    town.pub_is("web", "it is counted out", |status| status["currentAvailable"] == 2).await;
    refusal(&town.evict("web-2").await);
}

/// A label takes a pod out of service: that is an update, and the pod is unavailable while it has the label.
async fn labels(cluster: &Cluster) {
    let town = Town::found(cluster, "labels").await;
    town.pods_of("web", 3).await;
    town.pub_over("web", over("web", "minAvailable", 2), 1).await;
    let label = |value| json!({"metadata": {"labels": {"unavailable-pod.kruise.io/drained": value}}});
    town.change_pod("web-0", &label(json!("true"))).await.expect(200);
    refusal(&town.change_pod("web-1", &label(json!("true"))).await);
    refusal(&town.delete("web-1").await);
    let status = town.pub_is("web", "it is out", |status| status["currentAvailable"] == 2).await;
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    // It is unavailable already, so taking it away costs nothing; and back in service it counts again.
    town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    town.change_pod("web-0", &label(json!(null))).await.expect(200);
    town.pub_is("web", "it is back", |status| {
        status["unavailableAllowed"] == 1
            && status["unavailablePods"].is_null()
            && status["claims"] == json!({})
    })
    .await;
}

/// What a budget protects against, and how many pods it expects, can be said by annotations.
async fn annotations(cluster: &Cluster) {
    let town = Town::found(cluster, "annotations").await;
    town.pods_of("web", 3).await;
    let said = json!({
        "kruise.io/pub-protect-operations": "DELETE,EVICT", "pub.kruise.io/protect-total-replicas": "4",
    });
    town.new_pub("web", said, over("web", "maxUnavailable", "50%")).await.expect(201);
    town.pub_allows("web", 1).await;
    town.asked_about_updates().await;
    let status = town.pub_status("web").await;
    assert_eq!((&status["desiredAvailable"], &status["totalReplicas"]), (&json!(2), &json!(4)), "{status}");
    for pod in ["web-0", "web-1"] {
        town.set_image(pod, "main:2").await.expect(200);
    }
    refusal(&town.delete("web-2").await);
    let bogus = json!({"kruise.io/pub-protect-operations": "BOGUS"});
    let refused = town.new_pub("bogus", bogus, over("db", "maxUnavailable", 1)).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let field = "metadata.annotations[kruise.io/pub-protect-operations]: \"BOGUS\" is not an operation";
    assert!(refused.message().contains(field), "{}", refused.message());
}

/// A DisruptionBudget of the same name is another budget, and both must agree.
async fn beside_a_disruption_budget(cluster: &Cluster) {
    let town = Town::found(cluster, "beside").await;
    town.pods_of("web", 3).await;
    town.budget("web", over("web", "minAvailable", 1), 2).await;
    town.pub_over("web", over("web", "minAvailable", 2), 1).await;
    town.evict("web-0").await.expect(201);
    town.allows("web", 1).await;
    town.pub_allows("web", 0).await;
    let sentence = refusal(&town.evict("web-1").await);
    assert!(sentence.starts_with("PodUnavailableBudget "), "{sentence}");
    town.delete_pub("web").await;
    eventually("the other one alone lets it go", || async {
        let answer = town.evict("web-1").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    refusal(&town.evict("web-2").await);
}

/// The end of a namespace is not held up by a budget that keeps everything.
async fn ends_with_its_namespace(cluster: &Cluster) {
    let town = Town::found(cluster, "ending").await;
    town.pods_of("web", 2).await;
    town.pub_over("web", over("web", "minAvailable", 2), 0).await;
    town.ends().await;
}
