//! PodUnavailableBudgets over the same pods.

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial, spec_for_app};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: overlapping_budgets_are_rejected_or_must_both_allow);

async fn overlapping_budgets_are_rejected_or_must_both_allow(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "overlap").await;
    let labels = |labels| json!({"selector": {"matchLabels": labels}, "maxUnavailable": 1});
    ns.create_pub("pub1", json!({}), labels(json!({"app": "webserver"}))).await.expect(201);
    // 1. The same labels: rejected, and the message names the other budget.
    eventually("the second is refused", || async {
        let answer = ns.create_pub("pub2", json!({}), labels(json!({"app": "webserver"}))).await;
        if answer.code == 201 {
            // The watch of the server has not seen the first budget yet.
            ns.delete_pub("pub2").await;
            return Err(answer.body);
        }
        assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{}", answer.body);
        let says = "spec.selector: overlaps with that of PodUnavailableBudget pub1: a pod can have the labels of both";
        assert!(answer.message().contains(says), "{}", answer.message());
        Ok(())
    })
    .await;
    // 2. The same key with another value, 3. another key: both are accepted.
    ns.create_pub("pub2", json!({}), labels(json!({"app": "db"}))).await.expect(201);
    ns.create_pub("pub3", json!({}), labels(json!({"backend": "true"}))).await.expect(201);
    // A budget in another namespace does not overlap.
    let elsewhere = TestNamespace::with_manual_pods(&cluster, "elsewhere").await;
    elsewhere.create_pub("pub1", json!({}), labels(json!({"app": "webserver"}))).await.expect(201);
    targets(&ns).await;
    fixed(&ns).await;
    both_must_allow(&cluster).await;
}

/// A workload may have one budget.
async fn targets(ns: &TestNamespace) {
    let target = |name: &str| json!({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}, "maxUnavailable": 1});
    ns.create_pub("target1", json!({}), target("web")).await.expect(201);
    ns.create_pub("target2", json!({}), target("db")).await.expect(201);
    eventually("the third is refused", || async {
        let answer = ns.create_pub("target3", json!({}), target("web")).await;
        if answer.code == 201 {
            ns.delete_pub("target3").await;
            return Err(answer.body);
        }
        let says = "spec.targetRef: is the target of PodUnavailableBudget target1 already";
        assert!(answer.code == 422 && answer.message().contains(says), "{}", answer.message());
        Ok(())
    })
    .await;
}

/// The selector and the target are immutable; the numbers are not.
async fn fixed(ns: &TestNamespace) {
    let answer =
        ns.patch_pub("pub2", &json!({"spec": {"selector": {"matchLabels": {"app": "cache"}}}})).await;
    assert_eq!(answer.code, 422, "{}", answer.body);
    assert!(answer.message().contains("spec.selector: is immutable"), "{}", answer.message());
    let renamed = json!({"spec": {"targetRef": {"name": "cache"}}});
    let answer = ns.patch_pub("target2", &renamed).await;
    assert!(answer.message().contains("spec.targetRef: is immutable"), "{}", answer.message());
    ns.patch_pub("pub2", &json!({"spec": {"maxUnavailable": "10%"}})).await.expect(200);
}

/// The proposal leaves a pod with both labels undefined. Here both budgets must allow.
async fn both_must_allow(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "both").await;
    ns.create_pod("shared", json!({"app": "webserver", "backend": "true"})).await;
    ns.create_pod("web", json!({"app": "webserver"})).await;
    ns.create_pod("back", json!({"backend": "true"})).await;
    ns.create_pub_allowing("pub1", spec_for_app("webserver", "minAvailable", 1), 1).await;
    let backend = json!({"selector": {"matchLabels": {"backend": "true"}}, "minAvailable": 1});
    ns.create_pub_allowing("pub2", backend, 1).await;
    ns.delete_pod("shared").await.expect(200);
    ns.await_pub_allowed("pub1", 0).await;
    ns.await_pub_allowed("pub2", 0).await;
    denial(&ns.delete_pod("web").await);
    denial(&ns.delete_pod("back").await);
    // If one budget denies, the other one is not charged.
    ns.create_pod("more", json!({"app": "webserver"})).await;
    ns.create_pod("shared", json!({"app": "webserver", "backend": "true"})).await;
    ns.await_pub_allowed("pub2", 1).await;
    ns.delete_pod("back").await.expect(200);
    ns.await_pub_allowed("pub1", 2).await;
    ns.await_pub_status("pub2", "back is gone", |status| status["totalReplicas"] == 1).await;
    let sentence = denial(&ns.delete_pod("shared").await);
    assert!(sentence.contains("/pub2 keeps 1 of 1 pods"), "{sentence}");
    ns.await_pub_allowed("pub1", 2).await;
}
