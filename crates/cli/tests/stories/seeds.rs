//! Ten groups of eight, of which nine must stay whole.

use quorate_testbed::Cluster;
use serde_json::json;

use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: ten_groups_of_eight);

async fn ten_groups_of_eight(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "training").await;
    let workload = json!({
        "apiVersion": "scheduling.quorate.dev/v1alpha1", "kind": "Workload", "metadata": {"name": "training"},
        "spec": {"podGroups": [{"name": "worker", "replicas": 10, "policy": {"gang": {"minCount": 8}}}]},
    });
    let path = format!("/apis/scheduling.quorate.dev/v1alpha1/namespaces/{}/workloads", town.namespace);
    town.wire.post(&path, &workload).await.expect(201);
    let pod = async |group: usize, member: usize| {
        let labels = json!({
            "app": "training", "quorate.dev/workload": "training", "quorate.dev/pod-group": "worker",
            "quorate.dev/pod-group-replica": group.to_string(),
        });
        town.pod(&format!("worker-{group}-{member}"), labels).await;
    };
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
