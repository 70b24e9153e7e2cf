//! PodUnavailableBudgets over the same pods.

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use super::over;
use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: budgets_over_the_same_pods);

async fn budgets_over_the_same_pods(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "overlap").await;
    let labels = |labels| json!({"selector": {"matchLabels": labels}, "maxUnavailable": 1});
    town.new_pub("pub1", json!({}), labels(json!({"app": "webserver"}))).await.expect(201);
    // 1. The same labels: refused, and the other one is named.
    eventually("the second is refused", || async {
        let answer = town.new_pub("pub2", json!({}), labels(json!({"app": "webserver"}))).await;
        if answer.code == 201 {
            // It was faster than the server's watch.
            town.delete_pub("pub2").await;
            return Err(answer.body);
        }
        assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{}", answer.body);
        let says = "spec.selector: overlaps with that of PodUnavailableBudget pub1: a pod can have the labels of both";
        assert!(answer.message().contains(says), "{}", answer.message());
        Ok(())
    })
    .await;
    // 2. The same key with another value, 3. another key: both are let in.
    town.new_pub("pub2", json!({}), labels(json!({"app": "db"}))).await.expect(201);
    town.new_pub("pub3", json!({}), labels(json!({"backend": "true"}))).await.expect(201);
    // In another namespace it is another matter.
    let elsewhere = Town::found(&cluster, "elsewhere").await;
    elsewhere.new_pub("pub1", json!({}), labels(json!({"app": "webserver"}))).await.expect(201);
    targets(&town).await;
    fixed(&town).await;
    both_must_allow(&cluster).await;
}

/// One workload, one budget.
async fn targets(town: &Town) {
    let target = |name: &str| json!({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}, "maxUnavailable": 1});
    town.new_pub("target1", json!({}), target("web")).await.expect(201);
    town.new_pub("target2", json!({}), target("db")).await.expect(201);
    eventually("the third is refused", || async {
        let answer = town.new_pub("target3", json!({}), target("web")).await;
        if answer.code == 201 {
            town.delete_pub("target3").await;
            return Err(answer.body);
        }
        let says = "spec.targetRef: is the target of PodUnavailableBudget target1 already";
        assert!(answer.code == 422 && answer.message().contains(says), "{}", answer.message());
        Ok(())
    })
    .await;
}

/// What a budget covers cannot be changed; how much it allows can.
async fn fixed(town: &Town) {
    let answer =
        town.change_pub("pub2", &json!({"spec": {"selector": {"matchLabels": {"app": "cache"}}}})).await;
    assert_eq!(answer.code, 422, "{}", answer.body);
    assert!(answer.message().contains("spec.selector: is immutable"), "{}", answer.message());
    let renamed = json!({"spec": {"targetRef": {"name": "cache"}}});
    let answer = town.change_pub("target2", &renamed).await;
    assert!(answer.message().contains("spec.targetRef: is immutable"), "{}", answer.message());
    town.change_pub("pub2", &json!({"spec": {"maxUnavailable": "10%"}})).await.expect(200);
}

/// The note below the three cases calls a pod with both labels undefined. Here it is defined: both budgets must allow.
async fn both_must_allow(cluster: &Cluster) {
    let town = Town::found(cluster, "both").await;
    town.pod("shared", json!({"app": "webserver", "backend": "true"})).await;
    town.pod("web", json!({"app": "webserver"})).await;
    town.pod("back", json!({"backend": "true"})).await;
    town.pub_over("pub1", over("webserver", "minAvailable", 1), 1).await;
    let backend = json!({"selector": {"matchLabels": {"backend": "true"}}, "minAvailable": 1});
    town.pub_over("pub2", backend, 1).await;
    town.delete("shared").await.expect(200);
    town.pub_allows("pub1", 0).await;
    town.pub_allows("pub2", 0).await;
    refusal(&town.delete("web").await);
    refusal(&town.delete("back").await);
    // One says no, and the other is not charged for it.
    town.pod("more", json!({"app": "webserver"})).await;
    town.pod("shared", json!({"app": "webserver", "backend": "true"})).await;
    town.pub_allows("pub2", 1).await;
    town.delete("back").await.expect(200);
    town.pub_allows("pub1", 2).await;
    let sentence = refusal(&town.delete("shared").await);
    assert!(sentence.contains("/pub2 keeps 1 of 1 pods"), "{sentence}");
    town.pub_allows("pub1", 2).await;
}
