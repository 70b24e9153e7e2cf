//! The Events on a budget, as `kubectl describe` shows them.

use std::time::Duration;

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, condition, spec_for_app};
use crate::quorate::{Quorate, install};

quorate_testbed::stories!(Whole:
    a_misconfigured_budget_gets_a_warning,
    an_admission_that_is_not_used_is_reported,
);

/// Short, so that the story does not wait long.
const EXPIRY: Duration = Duration::from_secs(4);

/// The Events with this reason on a budget, once there is one.
pub(crate) async fn await_events(ns: &TestNamespace, budget: &str, reason: &str) -> Vec<Value> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", ns.name);
    eventually(&format!("{reason} on {budget}"), || async {
        let events = ns.wire.get(&path).await.expect(200);
        let all = events["items"].as_array().cloned().unwrap_or_default();
        let is_it = |event: &&Value| {
            let on = &event["regarding"];
            event["reason"] == reason && on["kind"] == "DisruptionBudget" && on["name"] == budget
        };
        let found: Vec<Value> = all.iter().filter(is_it).cloned().collect();
        if found.is_empty() { Err(all) } else { Ok(found) }
    })
    .await
}

async fn a_misconfigured_budget_gets_a_warning(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "warned").await;
    ns.create_pod("web-0", json!({"app": "web"})).await;
    let mut spec = spec_for_app("web", "minAvailable", 0);
    spec["podGroupPolicy"] = json!({"groupLabelKey": "shard", "minReadyReplicas": 1});
    ns.create_enforced_budget("web", spec).await;
    let events = await_events(&ns, "web", "MissingGroupLabel").await;
    let status = ns.budget_status("web").await;
    let configured = condition(&status, "BudgetConfigured");
    assert_eq!(events.len(), 1, "once, although the status was written more than once: {events:#?}");
    assert_eq!(events[0]["type"], "Warning");
    assert_eq!((&events[0]["reason"], &events[0]["note"]), (&configured["reason"], &configured["message"]));
    assert_eq!(events[0]["regarding"]["uid"], ns.budget("web").await["metadata"]["uid"]);
}

async fn an_admission_that_is_not_used_is_reported(cluster: Cluster) {
    install(&cluster).await;
    let _quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = EXPIRY).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "unused").await;
    ns.create_pods("web", 2).await;
    ns.create_budget_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
    // Admitted by Quorate, and then rejected by the API server.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("web-0", later, "").await.code, 409);
    let events = await_events(&ns, "web", "NotDisrupted").await;
    assert_eq!(events[0]["type"], "Normal");
    let note = events[0]["note"].as_str().unwrap_or_default();
    assert!(note.contains("web-0"), "{note}");
    ns.await_allowed("web", 1).await;
}
