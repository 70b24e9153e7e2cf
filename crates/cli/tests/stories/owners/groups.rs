//! A budget over groups that are formed by an owner.

use quorate_testbed::{Cluster, Patch, WireResponse};
use serde_json::{Value, json};

use super::{GROUPS, workload};
use crate::fixture::{TestNamespace, has_condition};

quorate_testbed::stories!(Whole: one_group_of_jobs_goes_down_at_a_time);

impl TestNamespace {
    async fn job(&self, name: &str, group: &Value) {
        let (version, plural, mut job) = workload("Job", name, &json!({"ownerReferences": [group]}));
        job["spec"]["template"]["metadata"]["labels"]["fleet"] = json!("etl");
        // One pod at a time: after an evicted pod that exited with success, the Job creates the next one.
        job["spec"]["parallelism"] = json!(1);
        job["spec"]["completions"] = json!(9);
        self.create(version, &plural, &job).await;
    }

    async fn evict_pod_of(&self, app: &str) -> WireResponse {
        let pods = self.await_pods_of(app, 1).await;
        let name = pods[0]["metadata"]["name"].as_str().unwrap_or_default();
        // Without `deleteOptions`, unlike the eviction of the fixture.
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        self.wire.post(&self.path("v1", &format!("pods/{name}/eviction")), &eviction).await
    }

    async fn cordon(&self, cordoned: bool) {
        let patch = json!({"spec": {"unschedulable": cordoned}});
        self.wire.patch("/api/v1/nodes/node-1", Patch::Merge, &patch).await.expect(200);
    }
}

/// Two JobGroups of two Jobs each. A group with one of its pods down is down.
async fn one_group_of_jobs_goes_down_at_a_time(cluster: Cluster) {
    let ns = TestNamespace::with_owner_references(cluster, "groups").await;
    for group in ["north", "south"] {
        let owner = ns.create_job_group(group).await;
        for job in ["load", "sum"] {
            ns.job(&format!("{group}-{job}"), &owner).await;
        }
    }
    let spec = json!({"selector": {"matchLabels": {"fleet": "etl"}}, "maxUnavailable": 1, "podGroupPolicy": {
        "groupOwner": {"apiVersion": GROUPS, "kind": "JobGroup"}, "minReadyReplicas": 2}});
    ns.create_budget("etl", spec).await.expect(201);
    ns.await_status("etl", "two groups are whole, and one may go", |status| {
        has_condition(status, "Enforced", "True")
            && status["currentHealthyReplicas"] == 2
            && status["disruptionsAllowedReplicas"] == 1
    })
    .await;

    // The replacement pods must stay pending.
    ns.cordon(true).await;
    ns.evict_pod_of("north-load").await.expect(201);
    let refused = ns.evict_pod_of("south-load").await;
    assert_eq!((refused.code, refused.reason()), (429, "TooManyRequests"), "{:#}", refused.body);
    assert!(refused.message().contains("group south would be the second one down"), "{}", refused.message());
    assert!(refused.message().contains("Waits for group north."), "{}", refused.message());
    // The rest of a group that is down is not charged.
    ns.evict_pod_of("north-sum").await.expect(201);
    ns.await_status("etl", "one group is down", |status| status["currentHealthyReplicas"] == 1).await;

    // The replacement pods belong to the same group. Then the other group may go down.
    ns.cordon(false).await;
    ns.await_status("etl", "both groups are whole again", |status| {
        status["currentHealthyReplicas"] == 2 && status["disruptionsAllowedReplicas"] == 1
    })
    .await;
    ns.evict_pod_of("south-load").await.expect(201);
}
