//! Two groups of three on one node, of each kind that can say what a group is: `PodGroup`s and `Workload`s of the cluster,
//! and Quorate's own `Workload`.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Cluster, Kubernetes, Options};
use serde_json::{Value, json};

use crate::space::Space;

pub(crate) const BUDGET: &str = "gang";

mod pod_groups {
    use super::*;

    quorate_testbed::stories!(Private(options(Kubernetes::V1_36)):
        a_drain_is_blocked_by_the_second_group,
        a_group_that_nobody_describes_is_not_touched,
    );

    async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster) {
        super::a_drain_is_blocked_by_the_second_group(cluster, WorkloadApi::V1Alpha2).await;
    }

    async fn a_group_that_nobody_describes_is_not_touched(cluster: Cluster) {
        super::a_group_that_nobody_describes_is_not_touched(cluster, WorkloadApi::V1Alpha2).await;
    }
}

mod workload_references {
    use super::*;

    quorate_testbed::stories!(Private(options(Kubernetes::V1_35)): a_drain_is_blocked_by_the_second_group);

    async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster) {
        super::a_drain_is_blocked_by_the_second_group(cluster, WorkloadApi::V1Alpha1).await;
    }
}

mod own_workloads {
    use super::*;

    quorate_testbed::stories!(Whole:
        a_drain_is_blocked_by_the_second_group,
        a_group_that_nobody_describes_is_not_touched,
        pods_that_name_no_workload_are_not_evicted,
        one_of_two_replicas_on_a_node_may_be_down,
        the_definition_may_go_and_come_back,
        a_native_budget_counts_the_groups_of_a_workload,
    );

    async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster) {
        super::a_drain_is_blocked_by_the_second_group(cluster, WorkloadApi::Off).await;
    }

    async fn a_group_that_nobody_describes_is_not_touched(cluster: Cluster) {
        super::a_group_that_nobody_describes_is_not_touched(cluster, WorkloadApi::Off).await;
    }

    /// Somebody set the scope and forgot the reference.
    async fn pods_that_name_no_workload_are_not_evicted(cluster: Cluster) {
        let space = Space::with_node(cluster, "gang").await;
        for set in Gang::new("gang", 1, 3).stateful_sets(WorkloadApi::Off) {
            space.create("apps/v1", "statefulsets", &set).await;
        }
        space.ready(3).await;
        space.budget(BUDGET, budget(&json!({"minAvailable": 1}))).await;
        let status = space
            .budget_is(BUDGET, "the missing reference is told", |status| {
                condition(status, "BudgetConfigured")["reason"] == "MissingWorkloadReference"
            })
            .await;
        assert_eq!(condition(&status, "BudgetConfigured")["status"], "False");
        assert_eq!(condition(&status, "DisruptionAllowed")["status"], "False");
        assert_eq!((&status["expectedReplicas"], &status["expectedPods"]), (&json!(0), &json!(3)));
        let refusals = space.drain_waits("node-1", 3).await.give_up();
        assert!(refusals.contains("quorate.dev/workload"), "it must say what to do: {refusals}");
        space.ready(3).await;
    }

    /// Two replicas of two pods on the node that is drained: no pod of the second goes while the first is down.
    async fn one_of_two_replicas_on_a_node_may_be_down(cluster: Cluster) {
        let space = Space::with_node(cluster, "gang").await;
        perform(&space, &Gang::new("gang", 2, 2), WorkloadApi::Off).await;
        space.budget(BUDGET, budget(&json!({"maxUnavailable": 1}))).await;
        space.budget_is(BUDGET, "one may be down", |status| status["disruptionsAllowed"] == 1).await;
        let drain = space.drain_waits("node-1", 2).await;
        space.left_by("gang-group", &[2]).await;
        let refusals = drain.give_up();
        assert!(refusals.contains("keeps 1 of 2 groups"), "{refusals}");
    }

    /// As the proposal has it: a native budget, and one word more.
    async fn a_native_budget_counts_the_groups_of_a_workload(cluster: Cluster) {
        let space = Space::with_node(cluster, "gang").await;
        perform(&space, &Gang::new("gang", 2, 3), WorkloadApi::Off).await;
        let annotations = json!({"quorate.dev/budget-scope": "Workload", "quorate.dev/min-available": "1"});
        let native = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": BUDGET, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"gang": "gang"}}, "minAvailable": 3}});
        space.create("policy/v1", "poddisruptionbudgets", &native).await;
        space.budget_is(BUDGET, "there is a twin", |_| true).await;
        space.enforced(BUDGET).await;
        space.budget_is(BUDGET, "two groups are whole", |status| status["disruptionsAllowed"] == 1).await;
        let configured = quorate_testbed::eventually("the native budget is told", || async {
            let native = space.get("policy/v1", "poddisruptionbudgets", BUDGET).await.body;
            let told = condition(&native["status"], "BudgetConfigured").clone();
            if told.is_null() { Err(native) } else { Ok(told) }
        })
        .await;
        assert_eq!((&configured["status"], &configured["reason"]), (&json!("True"), &json!("ValidConfig")));

        let drain = space.drain_waits("node-1", 3).await;
        space.left_by("gang-group", &[3]).await;
        drain.give_up();
    }

    async fn the_definition_may_go_and_come_back(cluster: Cluster) {
        const DEFINITION: &str =
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.scheduling.quorate.dev";
        let space = Space::with_node(cluster, "gang").await;
        let gang = Gang::new("gang", 2, 3);
        perform(&space, &gang, WorkloadApi::Off).await;
        space.budget(BUDGET, budget(&json!({"minAvailable": 1}))).await;
        let rests = |status: &Value| status["disruptionsAllowed"] == 1 && status["expectedReplicas"] == 2;
        space.budget_is(BUDGET, "two groups are whole", rests).await;

        let wire = space.cluster.wire();
        wire.delete(DEFINITION, &json!({})).await.expect(200);
        space
            .budget_is(BUDGET, "nobody knows what a group is", |status| {
                condition(status, "DisruptionAllowed")["reason"] == "WorkloadResolutionFailed"
            })
            .await;
        space.drain_waits("node-1", 6).await.give_up();
        quorate_testbed::eventually("the definition is gone", || async {
            let code = wire.get(DEFINITION).await.code;
            if code == 404 { Ok(()) } else { Err(code) }
        })
        .await;

        crate::quorate::install_workloads(&space.cluster).await;
        space.create("scheduling.quorate.dev/v1alpha1", "workloads", &own_workload(&gang)).await;
        space.budget_is(BUDGET, "two groups are whole again", rests).await;
    }
}

pub(crate) fn options(kubernetes: Kubernetes) -> Options {
    Options { kubernetes, controllers: true, workload_api: true, ..Options::default() }
}

pub(crate) fn budget(numbers: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"gang": "gang"}}, "budgetScope": "Workload"});
    for (field, value) in numbers.as_object().expect("numbers") {
        spec[field] = value.clone();
    }
    spec
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Quorate's own description of a gang.
fn own_workload(gang: &Gang) -> Value {
    let group =
        json!({"name": "group", "replicas": gang.groups, "policy": {"gang": {"minCount": gang.min_count}}});
    json!({"apiVersion": "scheduling.quorate.dev/v1alpha1", "kind": "Workload",
        "metadata": {"name": gang.name}, "spec": {"podGroups": [group]}})
}

/// Makes what describes the groups.
async fn describe(space: &Space, gang: &Gang, api: WorkloadApi) {
    if api == WorkloadApi::Off {
        space.create("scheduling.quorate.dev/v1alpha1", "workloads", &own_workload(gang)).await;
    }
    for object in gang.workload(api) {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
        space.create(version, &plural, &object).await;
    }
}

/// Makes the pods of the groups, and waits until they run.
async fn run(space: &Space, gang: &Gang, api: WorkloadApi) {
    for (group, mut set) in gang.stateful_sets(api).into_iter().enumerate() {
        if api == WorkloadApi::Off {
            let labels = &mut set["spec"]["template"]["metadata"]["labels"];
            labels["quorate.dev/workload"] = json!(gang.name);
            labels["quorate.dev/pod-group"] = json!("group");
            labels["quorate.dev/pod-group-replica"] = json!(group.to_string());
        }
        space.create("apps/v1", "statefulsets", &set).await;
    }
    space.ready((gang.groups * gang.size) as usize).await;
}

pub(crate) async fn perform(space: &Space, gang: &Gang, api: WorkloadApi) {
    describe(space, gang, api).await;
    run(space, gang, api).await;
}

async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster, api: WorkloadApi) {
    let space = Space::with_node(cluster, "gang").await;
    let gang = Gang::new("gang", 2, 3);
    perform(&space, &gang, api).await;
    space.budget(BUDGET, budget(&json!({"minAvailable": 1}))).await;
    let status = space
        .budget_is(BUDGET, "two groups are whole", |status| {
            status["disruptionsAllowed"] == 1 && status["currentHealthyReplicas"] == 2
        })
        .await;
    assert_eq!((&status["expectedReplicas"], &status["desiredHealthyReplicas"]), (&json!(2), &json!(1)));
    assert_eq!((&status["expectedPods"], &status["desiredHealthy"]), (&json!(6), &json!(3)));
    assert_eq!(condition(&status, "BudgetConfigured")["reason"], "ValidConfig", "{status}");
    assert_eq!(condition(&status, "DisruptionAllowed")["reason"], "SufficientReplicas");

    // One group may go; its pods do not come back, since there is no other node.
    let drain = space.drain_waits("node-1", 3).await;
    space.left_by("gang-group", &[3]).await;
    let refusals = drain.give_up();
    assert!(refusals.contains("keeps 1 of 2 groups"), "{refusals}");

    space.change_budget(BUDGET, json!({"minAvailable": 0})).await;
    space
        .budget_is(BUDGET, "nothing is asked for", |status| {
            status["desiredHealthyReplicas"] == 0 && status["disruptionsAllowed"] == 1
        })
        .await;
    space.drain("node-1").await;
    assert!(space.ready_by("gang-group").await.is_empty());
}

/// The pods are linked, and what they are linked to is not there.
async fn a_group_that_nobody_describes_is_not_touched(cluster: Cluster, api: WorkloadApi) {
    let space = Space::with_node(cluster, "gang").await;
    let gang = Gang::new("gang", 2, 3);
    run(&space, &gang, api).await;
    space.budget(BUDGET, budget(&json!({"minAvailable": 1}))).await;
    space
        .budget_is(BUDGET, "what cannot be resolved is told", |status| {
            condition(status, "DisruptionAllowed")["reason"] == "WorkloadResolutionFailed"
        })
        .await;
    space.drain_waits("node-1", 6).await.give_up();
    assert_eq!(space.ready_by("gang-group").await.len(), 2, "nothing may be evicted");
    space.kubectl(&["uncordon", "node-1"]).await.expect("uncordoned");
    describe(&space, &gang, api).await;
    space.budget_is(BUDGET, "two groups are whole", |status| status["disruptionsAllowed"] == 1).await;
}
