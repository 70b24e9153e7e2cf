//! Two groups of three pods on one node, for each kind that can define groups: `PodGroup` and `Workload` of Kubernetes,
//! and Quorate's own `Workload`.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Cluster, Kubernetes, Options};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, condition};

pub(crate) const BUDGET: &str = "gang";

mod pod_groups {
    use super::*;

    quorate_testbed::stories!(Private(options(Kubernetes::V1_36)):
        a_drain_is_blocked_by_the_second_group,
        a_group_without_its_workload_is_not_evicted,
    );

    async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster) {
        super::a_drain_is_blocked_by_the_second_group(cluster, WorkloadApi::V1Alpha2).await;
    }

    async fn a_group_without_its_workload_is_not_evicted(cluster: Cluster) {
        super::a_group_without_its_workload_is_not_evicted(cluster, WorkloadApi::V1Alpha2).await;
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
        a_group_without_its_workload_is_not_evicted,
        pods_that_name_no_workload_are_not_evicted,
        one_of_two_replicas_on_a_node_may_be_down,
        a_removed_workload_definition_denies_until_it_is_back,
        a_native_budget_counts_the_groups_of_a_workload,
    );

    async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster) {
        super::a_drain_is_blocked_by_the_second_group(cluster, WorkloadApi::Off).await;
    }

    async fn a_group_without_its_workload_is_not_evicted(cluster: Cluster) {
        super::a_group_without_its_workload_is_not_evicted(cluster, WorkloadApi::Off).await;
    }

    /// The budget has the scope, and the pods lack the reference.
    async fn pods_that_name_no_workload_are_not_evicted(cluster: Cluster) {
        let ns = TestNamespace::with_server_and_node(cluster, "gang").await;
        for set in Gang::new("gang", 1, 3).stateful_sets(WorkloadApi::Off) {
            ns.create("apps/v1", "statefulsets", &set).await;
        }
        ns.await_ready_pods(3).await;
        ns.create_enforced_budget(BUDGET, budget_spec(&json!({"minAvailable": 1}))).await;
        let status = ns
            .await_status(BUDGET, "the missing reference is reported", |status| {
                condition(status, "BudgetConfigured")["reason"] == "MissingWorkloadReference"
            })
            .await;
        assert_eq!(condition(&status, "BudgetConfigured")["status"], "False");
        assert_eq!(condition(&status, "DisruptionAllowed")["status"], "False");
        assert_eq!((&status["expectedReplicas"], &status["expectedPods"]), (&json!(0), &json!(3)));
        let refusals = ns.start_blocked_drain("node-1", 3).await.stop();
        assert!(refusals.contains("quorate.dev/workload"), "it must say what to do: {refusals}");
        ns.await_ready_pods(3).await;
    }

    /// Two replicas of two pods on the node that is drained: no pod of the second is evicted while the first is down.
    async fn one_of_two_replicas_on_a_node_may_be_down(cluster: Cluster) {
        let ns = TestNamespace::with_server_and_node(cluster, "gang").await;
        create_gang(&ns, &Gang::new("gang", 2, 2), WorkloadApi::Off).await;
        ns.create_enforced_budget(BUDGET, budget_spec(&json!({"maxUnavailable": 1}))).await;
        ns.await_status(BUDGET, "one may be down", |status| status["disruptionsAllowed"] == 1).await;
        let drain = ns.start_blocked_drain("node-1", 2).await;
        ns.await_ready_pods_by("gang-group", &[2]).await;
        let refusals = drain.stop();
        assert!(refusals.contains("keeps 1 of 2 groups"), "{refusals}");
    }

    /// As in the proposal: a native budget with a scope, which an annotation sets here.
    async fn a_native_budget_counts_the_groups_of_a_workload(cluster: Cluster) {
        let ns = TestNamespace::with_server_and_node(cluster, "gang").await;
        create_gang(&ns, &Gang::new("gang", 2, 3), WorkloadApi::Off).await;
        let annotations = json!({"quorate.dev/budget-scope": "Workload", "quorate.dev/min-available": "1"});
        let native = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": BUDGET, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"gang": "gang"}}, "minAvailable": 3}});
        ns.create("policy/v1", "poddisruptionbudgets", &native).await;
        ns.await_status(BUDGET, "there is a twin", |_| true).await;
        ns.await_enforced(BUDGET).await;
        ns.await_status(BUDGET, "two groups are whole", |status| status["disruptionsAllowed"] == 1).await;
        let configured = ns.await_native_condition(BUDGET, "the condition is written", |_| true).await;
        assert_eq!((&configured["status"], &configured["reason"]), (&json!("True"), &json!("ValidConfig")));

        let drain = ns.start_blocked_drain("node-1", 3).await;
        ns.await_ready_pods_by("gang-group", &[3]).await;
        drain.stop();
    }

    async fn a_removed_workload_definition_denies_until_it_is_back(cluster: Cluster) {
        const DEFINITION: &str =
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.scheduling.quorate.dev";
        let ns = TestNamespace::with_server_and_node(cluster, "gang").await;
        let gang = Gang::new("gang", 2, 3);
        create_gang(&ns, &gang, WorkloadApi::Off).await;
        ns.create_enforced_budget(BUDGET, budget_spec(&json!({"minAvailable": 1}))).await;
        let rests = |status: &Value| status["disruptionsAllowed"] == 1 && status["expectedReplicas"] == 2;
        ns.await_status(BUDGET, "two groups are whole", rests).await;

        let wire = &ns.wire;
        wire.delete(DEFINITION, &json!({})).await.expect(200);
        ns.await_status(BUDGET, "the groups cannot be resolved", |status| {
            condition(status, "DisruptionAllowed")["reason"] == "WorkloadResolutionFailed"
        })
        .await;
        ns.start_blocked_drain("node-1", 6).await.stop();
        quorate_testbed::eventually("the definition is gone", || async {
            let code = wire.get(DEFINITION).await.code;
            if code == 404 { Ok(()) } else { Err(code) }
        })
        .await;

        crate::quorate::install_workloads(&ns.cluster).await;
        ns.create("scheduling.quorate.dev/v1alpha1", "workloads", &own_workload(&gang)).await;
        ns.await_status(BUDGET, "two groups are whole again", rests).await;
    }
}

pub(crate) fn options(kubernetes: Kubernetes) -> Options {
    Options { kubernetes, controllers: true, workload_api: true, ..Options::default() }
}

pub(crate) fn budget_spec(numbers: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"gang": "gang"}}, "budgetScope": "Workload"});
    for (field, value) in numbers.as_object().expect("numbers") {
        spec[field] = value.clone();
    }
    spec
}

/// Quorate's own description of a gang.
fn own_workload(gang: &Gang) -> Value {
    let group =
        json!({"name": "group", "replicas": gang.groups, "policy": {"gang": {"minCount": gang.min_count}}});
    json!({"apiVersion": "scheduling.quorate.dev/v1alpha1", "kind": "Workload",
        "metadata": {"name": gang.name}, "spec": {"podGroups": [group]}})
}

/// Creates the objects that define the groups.
async fn describe(ns: &TestNamespace, gang: &Gang, api: WorkloadApi) {
    if api == WorkloadApi::Off {
        ns.create("scheduling.quorate.dev/v1alpha1", "workloads", &own_workload(gang)).await;
    }
    for object in gang.workload(api) {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
        ns.create(version, &plural, &object).await;
    }
}

/// Creates the pods of the groups, and waits until they are ready.
async fn run(ns: &TestNamespace, gang: &Gang, api: WorkloadApi) {
    for (group, mut set) in gang.stateful_sets(api).into_iter().enumerate() {
        if api == WorkloadApi::Off {
            let labels = &mut set["spec"]["template"]["metadata"]["labels"];
            labels["quorate.dev/workload"] = json!(gang.name);
            labels["quorate.dev/pod-group"] = json!("group");
            labels["quorate.dev/pod-group-replica"] = json!(group.to_string());
        }
        ns.create("apps/v1", "statefulsets", &set).await;
    }
    ns.await_ready_pods((gang.groups * gang.size) as usize).await;
}

pub(crate) async fn create_gang(ns: &TestNamespace, gang: &Gang, api: WorkloadApi) {
    describe(ns, gang, api).await;
    run(ns, gang, api).await;
}

async fn a_drain_is_blocked_by_the_second_group(cluster: Cluster, api: WorkloadApi) {
    let ns = TestNamespace::with_server_and_node(cluster, "gang").await;
    let gang = Gang::new("gang", 2, 3);
    create_gang(&ns, &gang, api).await;
    ns.create_enforced_budget(BUDGET, budget_spec(&json!({"minAvailable": 1}))).await;
    let status = ns
        .await_status(BUDGET, "two groups are whole", |status| {
            status["disruptionsAllowed"] == 1 && status["currentHealthyReplicas"] == 2
        })
        .await;
    assert_eq!((&status["expectedReplicas"], &status["desiredHealthyReplicas"]), (&json!(2), &json!(1)));
    assert_eq!((&status["expectedPods"], &status["desiredHealthy"]), (&json!(6), &json!(3)));
    assert_eq!(condition(&status, "BudgetConfigured")["reason"], "ValidConfig", "{status}");
    assert_eq!(condition(&status, "DisruptionAllowed")["reason"], "SufficientReplicas");

    // One group may go down. Its pods do not come back, because there is no other node.
    let drain = ns.start_blocked_drain("node-1", 3).await;
    ns.await_ready_pods_by("gang-group", &[3]).await;
    let refusals = drain.stop();
    assert!(refusals.contains("keeps 1 of 2 groups"), "{refusals}");

    ns.patch_budget_spec(BUDGET, json!({"minAvailable": 0})).await;
    ns.await_status(BUDGET, "no replica is required", |status| {
        status["desiredHealthyReplicas"] == 0 && status["disruptionsAllowed"] == 1
    })
    .await;
    ns.drain("node-1").await;
    assert!(ns.ready_pods_by("gang-group").await.is_empty());
}

/// The pods refer to an object that does not exist.
async fn a_group_without_its_workload_is_not_evicted(cluster: Cluster, api: WorkloadApi) {
    let ns = TestNamespace::with_server_and_node(cluster, "gang").await;
    let gang = Gang::new("gang", 2, 3);
    run(&ns, &gang, api).await;
    ns.create_enforced_budget(BUDGET, budget_spec(&json!({"minAvailable": 1}))).await;
    ns.await_status(BUDGET, "the groups cannot be resolved", |status| {
        condition(status, "DisruptionAllowed")["reason"] == "WorkloadResolutionFailed"
    })
    .await;
    ns.start_blocked_drain("node-1", 6).await.stop();
    assert_eq!(ns.ready_pods_by("gang-group").await.len(), 2, "nothing may be evicted");
    ns.kubectl_in_namespace(&["uncordon", "node-1"]).await.expect("uncordoned");
    describe(&ns, &gang, api).await;
    ns.await_status(BUDGET, "two groups are whole", |status| status["disruptionsAllowed"] == 1).await;
}
