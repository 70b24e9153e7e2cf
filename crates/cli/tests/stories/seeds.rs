//! What a budget counts: groups where its scope says so, as in ten groups of eight of which nine must stay whole; else
//! pods, whatever they belong to.

use quorate_testbed::Cluster;
use serde_json::json;

use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: ten_groups_of_eight, the_scope_says_what_is_counted);

async fn ten_groups_of_eight(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "training").await;
    let pod = async |group: usize, member: usize| worker(&town, group, member).await;
    workload(&town, 10, 8).await;
    for group in 0..10 {
        for member in 0..8 {
            pod(group, member).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "training"}}, "minAvailable": 9, "budgetScope": "Workload",
    });
    town.budget("training", spec, 1).await;
    let status = town.status("training").await;
    assert_eq!((&status["currentHealthy"], &status["expectedPods"]), (&json!(80), &json!(80)));
    assert_eq!((&status["currentHealthyReplicas"], &status["expectedReplicas"]), (&json!(10), &json!(10)));
    // A node goes, with all of group 3 on it: the first pod is charged, the other seven are not.
    for member in 0..8 {
        town.evict(&format!("worker-3-{member}")).await.expect(201);
    }
    town.allows("training", 0).await;
    let sentence = refusal(&town.evict("worker-4-0").await);
    assert!(
        sentence.starts_with(&format!("{}/training keeps 9 of 10 groups: ", town.namespace)),
        "{sentence}"
    );
    // Seven of eight are not a group.
    for member in 0..7 {
        pod(3, member).await;
    }
    refusal(&town.evict("worker-4-0").await);
    pod(3, 7).await;
    town.allows("training", 1).await;
    town.evict("worker-4-0").await.expect(201);
    refusal(&town.evict("worker-5-0").await);
}

/// Describes groups of workers that need all their pods.
async fn workload(town: &Town, groups: u32, size: u32) {
    let workload = json!({
        "apiVersion": "scheduling.quorate.dev/v1alpha1", "kind": "Workload", "metadata": {"name": "training"},
        "spec": {"podGroups": [{"name": "worker", "replicas": groups, "policy": {"gang": {"minCount": size}}}]},
    });
    let path = format!("/apis/scheduling.quorate.dev/v1alpha1/namespaces/{}/workloads", town.namespace);
    town.wire.post(&path, &workload).await.expect(201);
}

/// Makes a pod of a group.
async fn worker(town: &Town, group: usize, member: usize) {
    let labels = json!({
        "app": "training", "quorate.dev/workload": "training", "quorate.dev/pod-group": "worker",
        "quorate.dev/pod-group-replica": group.to_string(),
    });
    town.pod(&format!("worker-{group}-{member}"), labels).await;
}

/// The same pods, which belong to two groups of two, under each scope.
async fn the_scope_says_what_is_counted(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let selector = json!({"matchLabels": {"app": "training"}});
    let by_pods = json!({"selector": selector, "minAvailable": 3});
    let by_pods_too = json!({"selector": selector, "minAvailable": 3, "budgetScope": "Pod"});
    let by_groups = json!({"selector": selector, "minAvailable": 1, "budgetScope": "Workload"});
    for (spec, groups) in [(by_pods, false), (by_pods_too, false), (by_groups, true)] {
        let town = Town::found(&cluster, "scope").await;
        workload(&town, 2, 2).await;
        for group in 0..2 {
            for member in 0..2 {
                worker(&town, group, member).await;
            }
        }
        town.budget("training", spec, 1).await;
        let status = town.status("training").await;
        let units = if groups { 2 } else { 4 };
        assert_eq!((&status["expectedPods"], &status["expectedReplicas"]), (&json!(4), &json!(units)));
        town.evict("worker-0-0").await.expect(201);
        if !groups {
            // Pods that nobody owns are not missed when they are gone.
            town.status_is("training", "the pod is gone", |status| status["expectedPods"] == 3).await;
        }
        // The second pod of the same group: to one it is another pod, to the other the rest of what is down.
        let second = town.evict("worker-0-1").await;
        if groups {
            second.expect(201);
        } else {
            let sentence = refusal(&second);
            let begins = format!("{}/training keeps 3 of 3 pods: ", town.namespace);
            assert!(sentence.starts_with(&begins), "{sentence}");
        }
        refusal(&town.evict("worker-1-0").await);
    }
}
