//! How a PodUnavailableBudget decides, including each case in which OpenKruise decides differently.

use std::cell::Cell;

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, condition, denial, has_condition, spec_for_app};
use crate::quorate::{Quorate, scrape};

quorate_testbed::stories!(Whole: a_pod_unavailable_budget_decides_each_request);

async fn a_pod_unavailable_budget_decides_each_request(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    every_operation(&cluster, &quorate).await;
    dry_runs(&cluster).await;
    new_budget(&cluster).await;
    successors(&cluster).await;
    links(&cluster).await;
    uncharged(&cluster).await;
    labels(&cluster).await;
    annotations(&cluster).await;
    beside_a_disruption_budget(&cluster).await;
    ends_with_its_namespace(&cluster).await;
}

/// Evictions, deletes and updates share one number. A drain retries after a denial, and does not fail.
async fn every_operation(cluster: &Cluster, quorate: &Quorate) {
    let ns = TestNamespace::with_manual_pods(cluster, "operations").await;
    ns.create_pods("web", 4).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 3), 1).await;
    let status = ns.pub_status("web").await;
    let numbers = ["currentAvailable", "desiredAvailable", "totalReplicas", "unavailableReplicas"];
    assert_eq!(numbers.map(|name| status[name].as_u64()), [Some(4), Some(3), Some(4), Some(0)]);
    ns.set_image("web-0", "main:2").await.expect(200);
    let sentence = denial(&ns.delete_pod("web-1").await);
    let begins = format!(
        "PodUnavailableBudget {}/web keeps 3 of 4 pods: pod web-1 would be the second one down (web-0 is being",
        ns.name
    );
    assert!(sentence.starts_with(&begins), "{sentence}");
    denial(&ns.evict("web-1").await);
    denial(&ns.set_image("web-1", "main:2").await);
    let status =
        ns.await_pub_status("web", "the update stands there", |s| s["unavailablePods"].is_object()).await;
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    assert_eq!(status["unavailableAllowed"], 0);
    assert!(status["disruptedPods"].is_null(), "{status}");
    // A change that restarts no container is not a disruption.
    ns.patch_pod("web-1", &json!({"metadata": {"labels": {"note": "harmless"}}})).await.expect(200);
    let metrics = scrape(quorate.server.admin).await;
    let denied = format!(
        r#"quorate_denials_total{{namespace="{}",budget="podunavailablebudget/web",reason="Exhausted"}} 3"#,
        ns.name
    );
    assert!(metrics.lines().any(|line| line == denied), "{metrics}");
    let path = ns.path("events.k8s.io/v1", "events");
    eventually("the refusal can be read on the budget", || async {
        let events = ns.wire.get(&path).await.expect(200)["items"].clone();
        let found = events.as_array().into_iter().flatten().any(|event| {
            event["reason"] == "DisruptionDenied" && event["regarding"]["kind"] == "PodUnavailableBudget"
        });
        if found { Ok(()) } else { Err(events) }
    })
    .await;
}

/// A dry run is not charged, whether the query or the body requests it.
async fn dry_runs(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "dry").await;
    ns.create_pods("web", 2).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
    let before = ns.pub_status("web").await;
    ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    ns.evict_with("web-1", json!({}), "?dryRun=All").await.expect(201);
    let status = ns.pub_status("web").await;
    assert_eq!((&status["ledger"], &status["claims"]), (&before["ledger"], &json!({})), "{status}");
    ns.evict("web-0").await.expect(201);
    denial(&ns.evict_with("web-1", json!({"dryRun": ["All"]}), "").await);
}

/// A new budget does not admit everything until the pods are counted.
async fn new_budget(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "new").await;
    ns.create_pods("web", 2).await;
    ns.create_pub("web", json!({}), spec_for_app("web", "minAvailable", 1)).await.expect(201);
    // A server that has not seen the budget yet lets the pods pass.
    ns.await_pub_status("web", "a server knows it", |status| condition(status, "Enforced").is_object()).await;
    let admitted = Cell::new(0);
    let delete_both = async || {
        for pod in ["web-0", "web-1"] {
            let answer = ns.delete_pod(pod).await;
            match answer.code {
                200 => admitted.set(admitted.get() + 1),
                404 => {}
                _ => drop(denial(&answer)),
            }
        }
    };
    eventually("it is enforced, and has admitted one", || async {
        delete_both().await;
        let status = ns.pub_status("web").await;
        if has_condition(&status, "Enforced", "True") && admitted.get() > 0 { Ok(()) } else { Err(status) }
    })
    .await;
    delete_both().await;
    assert_eq!(admitted.get(), 1, "one of two stays");
}

/// A new pod with the same name is another pod: the claim of the first pod does not count for it.
async fn successors(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "successors").await;
    ns.create_pods("db", 2).await;
    ns.create_pub_allowing("db", spec_for_app("db", "minAvailable", 1), 1).await;
    for _ in 0..3 {
        ns.delete_pod("db-0").await.expect(200);
        denial(&ns.delete_pod("db-1").await);
        ns.create_pod("db-0", json!({"app": "db"})).await;
        ns.await_pub_allowed("db", 1).await;
    }
}

/// An annotation with the name of a budget that is gone, or never existed, is ignored. It is also not required.
async fn links(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "links").await;
    ns.create_pods("web", 2).await;
    let related = json!({"metadata": {"annotations": {
        "kruise.io/related-pub": "lax", "pub.kruise.io/related-pub": "lax",
    }}});
    ns.patch_pod("web-0", &related).await.expect(200);
    ns.create_pub_allowing("first", spec_for_app("web", "minAvailable", 2), 0).await;
    for pod in ["web-0", "web-1"] {
        denial(&ns.delete_pod(pod).await);
    }
    ns.delete_pub("first").await;
    // The server may not have seen the deletion yet, and two budgets over the same pods are rejected.
    eventually("the second budget is accepted", || async {
        let answer = ns.create_pub("second", json!({}), spec_for_app("web", "minAvailable", 2)).await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    tokio::join!(ns.await_pub_allowed("second", 0), ns.await_update_webhook());
    for pod in ["web-0", "web-1"] {
        let sentence = denial(&ns.delete_pod(pod).await);
        assert!(sentence.contains("/second keeps"), "{sentence}");
    }
}

/// Pods that are not ready are not charged, and neither are pods with the annotation `no-protect`. All are counted.
async fn uncharged(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "free").await;
    ns.create_pods("web", 4).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 4), 0).await;
    ns.set_pod_ready("web-0", false).await;
    ns.await_pub_status("web", "one is not available", |status| status["currentAvailable"] == 3).await;
    ns.evict("web-0").await.expect(201);
    let waive = json!({"metadata": {"annotations": {"pub.kruise.io/no-protect": "true"}}});
    ns.patch_pod("web-1", &waive).await.expect(200);
    eventually("the pod with the annotation may go", || async {
        let answer = ns.evict_with("web-1", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    ns.evict("web-1").await.expect(201);
    ns.await_pub_status("web", "it is counted out", |status| status["currentAvailable"] == 2).await;
    denial(&ns.evict("web-2").await);
}

/// A label takes a pod out of service: that is an update, and the pod is unavailable while it has the label.
async fn labels(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "labels").await;
    ns.create_pods("web", 3).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 1).await;
    let label = |value| json!({"metadata": {"labels": {"unavailable-pod.kruise.io/drained": value}}});
    ns.patch_pod("web-0", &label(json!("true"))).await.expect(200);
    denial(&ns.patch_pod("web-1", &label(json!("true"))).await);
    denial(&ns.delete_pod("web-1").await);
    let status = ns.await_pub_status("web", "it is out", |status| status["currentAvailable"] == 2).await;
    assert!(status["unavailablePods"]["web-0"].is_string(), "{status}");
    // The pod is already unavailable, so its eviction is not charged. Back in service it is available again.
    ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    ns.patch_pod("web-0", &label(json!(null))).await.expect(200);
    ns.await_pub_status("web", "it is back", |status| {
        status["unavailableAllowed"] == 1
            && status["unavailablePods"].is_null()
            && status["claims"] == json!({})
    })
    .await;
}

/// Annotations set the operations of a budget and the number of pods that it expects.
async fn annotations(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "annotations").await;
    ns.create_pods("web", 3).await;
    let said = json!({
        "kruise.io/pub-protect-operations": "DELETE,EVICT", "pub.kruise.io/protect-total-replicas": "4",
    });
    ns.create_pub("web", said, spec_for_app("web", "maxUnavailable", "50%")).await.expect(201);
    ns.await_pub_allowed("web", 1).await;
    ns.await_update_webhook().await;
    let status = ns.pub_status("web").await;
    assert_eq!((&status["desiredAvailable"], &status["totalReplicas"]), (&json!(2), &json!(4)), "{status}");
    for pod in ["web-0", "web-1"] {
        ns.set_image(pod, "main:2").await.expect(200);
    }
    denial(&ns.delete_pod("web-2").await);
    let bogus = json!({"kruise.io/pub-protect-operations": "BOGUS"});
    let refused = ns.create_pub("bogus", bogus, spec_for_app("db", "maxUnavailable", 1)).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let field = "metadata.annotations[kruise.io/pub-protect-operations]: \"BOGUS\" is not an operation";
    assert!(refused.message().contains(field), "{}", refused.message());
}

/// A DisruptionBudget of the same name is another budget, and both must allow.
async fn beside_a_disruption_budget(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "beside").await;
    ns.create_pods("web", 3).await;
    ns.create_budget_allowing("web", spec_for_app("web", "minAvailable", 1), 2).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 1).await;
    ns.evict("web-0").await.expect(201);
    ns.await_allowed("web", 1).await;
    ns.await_pub_allowed("web", 0).await;
    let sentence = denial(&ns.evict("web-1").await);
    assert!(sentence.starts_with("PodUnavailableBudget "), "{sentence}");
    ns.delete_pub("web").await;
    eventually("the other budget alone allows it", || async {
        let answer = ns.evict("web-1").await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    denial(&ns.evict("web-2").await);
}

/// A budget that keeps everything does not block the deletion of its namespace.
async fn ends_with_its_namespace(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "ending").await;
    ns.create_pods("web", 2).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 0).await;
    ns.delete_and_await().await;
}
