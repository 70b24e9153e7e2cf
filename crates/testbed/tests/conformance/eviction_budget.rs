//! Tests of the validation of native budgets, and of concurrent evictions with one budget.

use futures::future::join_all;
use quorate_testbed::{Cluster, Patch, stories};
use serde_json::{Value, json};

use crate::eviction::counted;
use crate::fixtures::TestNamespace;

stories!(ApiServer:
    numbers_and_percentages_are_accepted,
    other_values_are_rejected,
    both_numbers_together_are_rejected,
    the_policy_for_unhealthy_pods_is_one_of_two,
    a_negative_status_is_rejected,
    a_budget_can_be_changed,
    concurrent_evictions_never_overspend,
);

fn budget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec})
}

async fn numbers_and_percentages_are_accepted(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "good").await;
    let values = [json!("0%"), json!("1%"), json!("100%"), json!(0), json!(1), json!(100)];
    for (index, value) in values.iter().enumerate() {
        for key in ["minAvailable", "maxUnavailable"] {
            let name = format!("{}-{index}", key.to_lowercase());
            ns.wire.post(&ns.budgets(""), &budget(&name, json!({key: value}))).await.expect(201);
        }
    }
    // A budget with neither number is accepted, too. It allows no disruption.
    ns.wire.post(&ns.budgets(""), &budget("neither", json!({}))).await.expect(201);
}

async fn other_values_are_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "bad").await;
    for value in [json!("1.1%"), json!("nope"), json!("-1%"), json!("101%"), json!(-1)] {
        for key in ["minAvailable", "maxUnavailable"] {
            let answer = ns.wire.post(&ns.budgets(""), &budget("bad", json!({key: value}))).await;
            assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{key}: {value}");
            assert!(answer.message().contains(&format!("spec.{key}")), "{}", answer.message());
        }
    }
}

async fn both_numbers_together_are_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "both").await;
    let answer =
        ns.wire.post(&ns.budgets(""), &budget("both", json!({"minAvailable": 1, "maxUnavailable": 1}))).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    let expected = "minAvailable and maxUnavailable cannot be both set";
    assert!(answer.message().contains(expected), "{}", answer.message());
}

async fn the_policy_for_unhealthy_pods_is_one_of_two(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "policy").await;
    for (name, policy, code) in [
        ("a", json!("AlwaysAllow"), 201),
        ("b", json!("IfHealthyBudget"), 201),
        ("c", json!(null), 201),
        ("d", json!(""), 422),
        ("e", json!("Invalid"), 422),
    ] {
        let object = budget(name, json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": policy}));
        assert_eq!(ns.wire.post(&ns.budgets(""), &object).await.code, code, "{policy}");
    }
}

async fn a_negative_status_is_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "negative").await;
    ns.budget("foo", json!({}), counted(1, 1, 1)).await;
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        let patch = json!({"status": {field: -1}});
        let answer = ns.wire.patch(&ns.budgets("/foo/status"), Patch::Merge, &patch).await;
        assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{field}");
    }
}

async fn a_budget_can_be_changed(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "changed").await;
    ns.budget("foo", json!({}), counted(1, 1, 1)).await;
    let patch = json!({"spec": {"minAvailable": null, "maxUnavailable": "10%"}});
    let after = ns.wire.patch(&ns.budgets("/foo"), Patch::Merge, &patch).await.expect(200);
    assert_eq!(after["metadata"]["generation"], 2);
    assert_eq!((after["spec"].get("minAvailable"), &after["spec"]["maxUnavailable"]), (None, &json!("10%")));
    // No controller has observed the change.
    ns.pod("one", "Running", Some(true)).await;
    assert_eq!(ns.evict("one").await.code, 429);
}

async fn concurrent_evictions_never_overspend(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "atonce").await;
    let pods: Vec<String> = (0..6).map(|index| format!("pod-{index}")).collect();
    for pod in &pods {
        ns.pod(pod, "Running", Some(true)).await;
    }
    ns.budget("foo", json!({}), counted(2, 6, 4)).await;
    let answers = join_all(pods.iter().map(|pod| ns.evict(pod))).await;
    let mut codes: Vec<u16> = answers.iter().map(|answer| answer.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [201, 201, 429, 429, 429, 429]);
    let budget = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    assert_eq!(budget["status"]["disruptedPods"].as_object().map(|pods| pods.len()), Some(2));
}
