//! A budget over groups that an owner makes.

use quorate_testbed::{Answer, Cluster, Patch, eventually};
use serde_json::{Value, json};

use super::{GROUPS, Lab, workload};

quorate_testbed::stories!(Whole: one_group_of_jobs_goes_down_at_a_time);

impl Lab {
    async fn job(&self, name: &str, group: &Value) {
        let (version, plural, mut job) = workload("Job", name, &json!({"ownerReferences": [group]}));
        job["spec"]["template"]["metadata"]["labels"]["fleet"] = json!("etl");
        // One after the other: a pod that ends well when it is told to is followed by another.
        job["spec"]["parallelism"] = json!(1);
        job["spec"]["completions"] = json!(9);
        self.create(version, &plural, &job).await;
    }

    async fn evict(&self, app: &str) -> Answer {
        let pods = self.pods(app, 1).await;
        let name = pods[0]["metadata"]["name"].as_str().unwrap_or_default();
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        self.wire.post(&self.path("v1", &format!("pods/{name}/eviction")), &eviction).await
    }

    async fn cordon(&self, cordoned: bool) {
        let patch = json!({"spec": {"unschedulable": cordoned}});
        self.wire.patch("/api/v1/nodes/node-1", Patch::Merge, &patch).await.expect(200);
    }

    async fn budget_is(&self, what: &str, is: impl Fn(&Value) -> bool) {
        eventually(what, || async {
            let budget =
                self.get("policy.quorate.dev/v1alpha1", "disruptionbudgets", "etl").await.expect(200);
            if is(&budget["status"]) { Ok(()) } else { Err(budget["status"].clone()) }
        })
        .await;
    }
}

/// Two JobGroups of two Jobs each. A group with one of its pods down is down.
async fn one_group_of_jobs_goes_down_at_a_time(cluster: Cluster) {
    let lab = Lab::open(cluster, "groups").await;
    for group in ["north", "south"] {
        let owner = lab.group(group).await;
        for job in ["load", "sum"] {
            lab.job(&format!("{group}-{job}"), &owner).await;
        }
    }
    let spec = json!({"selector": {"matchLabels": {"fleet": "etl"}}, "maxUnavailable": 1, "podGroupPolicy": {
        "groupOwner": {"apiVersion": GROUPS, "kind": "JobGroup"}, "minReadyReplicas": 2}});
    let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
        "metadata": {"name": "etl"}, "spec": spec});
    lab.create("policy.quorate.dev/v1alpha1", "disruptionbudgets", &budget).await;
    lab.budget_is("two groups are whole, and one may go", |status| {
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let enforced = conditions.iter().any(|c| c["type"] == "Enforced" && c["status"] == "True");
        enforced && status["currentHealthyReplicas"] == 2 && status["disruptionsAllowedReplicas"] == 1
    })
    .await;

    // No room for the pods that will replace those that go.
    lab.cordon(true).await;
    lab.evict("north-load").await.expect(201);
    let refused = lab.evict("south-load").await;
    assert_eq!((refused.code, refused.reason()), (429, "TooManyRequests"), "{:#}", refused.body);
    assert!(refused.message().contains("group south would be the second one down"), "{}", refused.message());
    assert!(refused.message().contains("Waits for group north."), "{}", refused.message());
    // The rest of a group that is down costs nothing.
    lab.evict("north-sum").await.expect(201);
    lab.budget_is("one group is down", |status| status["currentHealthyReplicas"] == 1).await;

    // The Jobs replace what they lost, in the same group: then the other one may go.
    lab.cordon(false).await;
    lab.budget_is("both groups are whole again", |status| {
        status["currentHealthyReplicas"] == 2 && status["disruptionsAllowedReplicas"] == 1
    })
    .await;
    lab.evict("south-load").await.expect(201);
}
