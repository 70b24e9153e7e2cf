//! What a budget counts: groups with the scope Workload, as in the proposal with ten groups of eight of which nine must
//! stay whole; otherwise pods, whatever group they belong to.

use quorate_testbed::Cluster;
use serde_json::json;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: nine_of_ten_groups_of_eight_stay_whole, the_scope_selects_what_is_counted);

async fn nine_of_ten_groups_of_eight_stay_whole(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "training").await;
    let pod = async |group: usize, member: usize| worker(&ns, group, member).await;
    workload(&ns, 10, 8).await;
    for group in 0..10 {
        for member in 0..8 {
            pod(group, member).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "training"}}, "minAvailable": 9, "budgetScope": "Workload",
    });
    ns.create_budget_allowing("training", spec, 1).await;
    let status = ns.budget_status("training").await;
    assert_eq!((&status["currentHealthy"], &status["expectedPods"]), (&json!(80), &json!(80)));
    assert_eq!((&status["currentHealthyReplicas"], &status["expectedReplicas"]), (&json!(10), &json!(10)));
    // A node with all of group 3 is drained: the first pod is charged, the other seven are not.
    for member in 0..8 {
        ns.evict(&format!("worker-3-{member}")).await.expect(201);
    }
    ns.await_allowed("training", 0).await;
    let sentence = denial(&ns.evict("worker-4-0").await);
    assert!(sentence.starts_with(&format!("{}/training keeps 9 of 10 groups: ", ns.name)), "{sentence}");
    // With seven of eight pods the group is not whole.
    for member in 0..7 {
        pod(3, member).await;
    }
    denial(&ns.evict("worker-4-0").await);
    pod(3, 7).await;
    ns.await_allowed("training", 1).await;
    ns.evict("worker-4-0").await.expect(201);
    denial(&ns.evict("worker-5-0").await);
}

/// Creates a Workload of groups that need all their pods.
async fn workload(ns: &TestNamespace, groups: u32, size: u32) {
    let workload = json!({
        "apiVersion": "scheduling.quorate.dev/v1alpha1", "kind": "Workload", "metadata": {"name": "training"},
        "spec": {"podGroups": [{"name": "worker", "replicas": groups, "policy": {"gang": {"minCount": size}}}]},
    });
    let path = ns.path("scheduling.quorate.dev/v1alpha1", "workloads");
    ns.wire.post(&path, &workload).await.expect(201);
}

/// Creates a pod of a group.
async fn worker(ns: &TestNamespace, group: usize, member: usize) {
    let labels = json!({
        "app": "training", "quorate.dev/workload": "training", "quorate.dev/pod-group": "worker",
        "quorate.dev/pod-group-replica": group.to_string(),
    });
    ns.create_pod(&format!("worker-{group}-{member}"), labels).await;
}

/// The same pods, which belong to two groups of two, under each scope.
async fn the_scope_selects_what_is_counted(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let selector = json!({"matchLabels": {"app": "training"}});
    let by_pods = json!({"selector": selector, "minAvailable": 3});
    let by_pods_too = json!({"selector": selector, "minAvailable": 3, "budgetScope": "Pod"});
    let by_groups = json!({"selector": selector, "minAvailable": 1, "budgetScope": "Workload"});
    for (spec, groups) in [(by_pods, false), (by_pods_too, false), (by_groups, true)] {
        let ns = TestNamespace::with_manual_pods(&cluster, "scope").await;
        workload(&ns, 2, 2).await;
        for group in 0..2 {
            for member in 0..2 {
                worker(&ns, group, member).await;
            }
        }
        ns.create_budget_allowing("training", spec, 1).await;
        let status = ns.budget_status("training").await;
        let units = if groups { 2 } else { 4 };
        assert_eq!((&status["expectedPods"], &status["expectedReplicas"]), (&json!(4), &json!(units)));
        assert_eq!(status["scope"], if groups { "Workload" } else { "Pod" });
        ns.evict("worker-0-0").await.expect(201);
        if !groups {
            // Pods without a controller are not expected after they are gone.
            ns.await_status("training", "the pod is gone", |status| status["expectedPods"] == 3).await;
        }
        // The second pod of the same group: by pods it is charged, by groups it belongs to a group that is already
        // down.
        let second = ns.evict("worker-0-1").await;
        if groups {
            second.expect(201);
        } else {
            let sentence = denial(&second);
            let begins = format!("{}/training keeps 3 of 3 pods: ", ns.name);
            assert!(sentence.starts_with(&begins), "{sentence}");
        }
        denial(&ns.evict("worker-1-0").await);
    }
}
