//! Groups that Kubernetes disrupts as a whole (`disruptionMode`): none of their pods is surplus.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Backend, Cluster, Kubernetes, Options, Setup, run_story};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial};
use crate::quorate::Quorate;

quorate_testbed::stories!(Private(options()): a_group_disrupted_as_a_whole_has_no_surplus_pod);

/// The API of 1.37. Such an API server cannot be built yet, so this runs only on the embedded cluster.
#[test]
fn a_group_with_disruption_mode_all_has_no_surplus_pod() {
    let runtime_config = vec!["scheduling.k8s.io/v1beta1=true".to_owned()];
    let options = Options { controllers: true, runtime_config, ..Options::default() };
    run_story(Backend::Embedded, Setup::Private(options), all_or_nothing);
}

async fn all_or_nothing(cluster: Cluster) {
    has_no_surplus_pod(cluster, WorkloadApi::V1Beta1, [json!({"single": {}}), json!({"all": {}})]).await;
}

fn options() -> Options {
    Options {
        kubernetes: Kubernetes::V1_36,
        controllers: true,
        workload_api: true,
        // Without this gate the API server drops the mode.
        feature_gates: vec!["WorkloadAwarePreemption=true".to_owned()],
        ..Options::default()
    }
}

/// Two groups of three pods that need two each, in this mode of disruption, under a budget that allows one group to be
/// down.
async fn two_groups(cluster: &Cluster, api: WorkloadApi, mode: &Value) -> TestNamespace {
    let ns = TestNamespace::with_manual_pods(cluster, "whole").await;
    let gang = Gang { min_count: 2, ..Gang::new("gang", 2, 3) };
    for mut object in gang.workload(api) {
        let plural = match object["kind"].as_str() {
            Some("PodGroup") => {
                object["spec"]["disruptionMode"] = mode.clone();
                "podgroups"
            }
            _ => {
                object["spec"]["podGroupTemplates"][0]["disruptionMode"] = mode.clone();
                "workloads"
            }
        };
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let path = format!("/apis/{version}/namespaces/{}/{plural}", ns.name);
        let made = ns.wire.post(&path, &object).await.expect(201);
        assert!(plural == "workloads" || made["spec"]["disruptionMode"] == *mode, "{made}");
    }
    for group in 0..2 {
        for number in 0..3 {
            // An evicted pod terminates slowly, so that its group does not look smaller than it is.
            let more = json!({
                "schedulingGroup": {"podGroupName": gang.group_name(group)}, "terminationGracePeriodSeconds": 600,
            });
            ns.create_pod_with(&format!("gang-{group}-{number}"), json!({"app": "gang"}), more).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "gang"}}, "minAvailable": 1, "budgetScope": "Workload",
    });
    ns.create_budget_allowing("gang", spec, 1).await;
    ns
}

fn minimums(status: &Value) -> Vec<&Value> {
    status["groups"].as_array().into_iter().flatten().map(|group| &group["minCount"]).collect()
}

async fn a_group_disrupted_as_a_whole_has_no_surplus_pod(cluster: Cluster) {
    has_no_surplus_pod(cluster, WorkloadApi::V1Alpha2, [json!("Pod"), json!("PodGroup")]).await;
}

/// With the mode that disrupts single pods, and the mode that disrupts whole groups.
async fn has_no_surplus_pod(cluster: Cluster, api: WorkloadApi, [single, whole]: [Value; 2]) {
    let _quorate = Quorate::start(&cluster).await;

    let single = two_groups(&cluster, api, &single).await;
    assert_eq!(minimums(&single.budget_status("gang").await), [2, 2]);
    // Each group has one surplus pod.
    single.evict("gang-0-0").await.expect(201);
    single.evict("gang-1-0").await.expect(201);
    single.await_allowed("gang", 1).await;

    let whole = two_groups(&cluster, api, &whole).await;
    assert_eq!(minimums(&whole.budget_status("gang").await), [3, 3]);
    // The first pod takes its group down, so the rest of that group may go too. The other group must stay.
    whole.evict("gang-0-0").await.expect(201);
    let sentence = denial(&whole.evict("gang-1-0").await);
    let begins =
        format!("{}/gang keeps 1 of 2 groups: group gang-1 would be the second one down", whole.name);
    assert!(sentence.starts_with(&begins), "{sentence}");
    whole.evict("gang-0-1").await.expect(201);
    whole.evict("gang-0-2").await.expect(201);
    denial(&whole.evict("gang-1-0").await);
    whole.await_allowed("gang", 0).await;
}
