//! Groups of which Kubernetes says that they fall as a whole: none of their pods is one too many.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Backend, Cluster, Kubernetes, Options, Setup, run_story};
use serde_json::{Value, json};

use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Private(options()): a_group_that_falls_whole_has_no_pod_to_spare);

/// As 1.37 has it. No such API server can be built yet: this is told on the embedded cluster alone.
#[test]
fn a_group_of_all_or_nothing_has_no_pod_to_spare() {
    let runtime_config = vec!["scheduling.k8s.io/v1beta1=true".to_owned()];
    let options = Options { controllers: true, runtime_config, ..Options::default() };
    run_story(Backend::Embedded, Setup::Private(options), all_or_nothing);
}

async fn all_or_nothing(cluster: Cluster) {
    has_no_pod_to_spare(cluster, WorkloadApi::V1Beta1, [json!({"single": {}}), json!({"all": {}})]).await;
}

fn options() -> Options {
    Options {
        kubernetes: Kubernetes::V1_36,
        controllers: true,
        workload_api: true,
        // Without it the API server drops the mode.
        feature_gates: vec!["WorkloadAwarePreemption=true".to_owned()],
        ..Options::default()
    }
}

/// Two groups of three pods that need two each, in this mode of disruption, under a budget that lets one group go.
async fn two_groups(cluster: &Cluster, api: WorkloadApi, mode: &Value) -> Town {
    let town = Town::found(cluster, "whole").await;
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
        let path = format!("/apis/{version}/namespaces/{}/{plural}", town.namespace);
        let made = town.wire.post(&path, &object).await.expect(201);
        assert!(plural == "workloads" || made["spec"]["disruptionMode"] == *mode, "{made}");
    }
    for group in 0..2 {
        for number in 0..3 {
            // One that is told to go takes its time, so that its group does not look smaller than it is.
            let more = json!({
                "schedulingGroup": {"podGroupName": gang.group_name(group)}, "terminationGracePeriodSeconds": 600,
            });
            town.pod_with(&format!("gang-{group}-{number}"), json!({"app": "gang"}), more).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "gang"}}, "minAvailable": 1, "budgetScope": "Workload",
    });
    town.budget("gang", spec, 1).await;
    town
}

fn minimums(status: &Value) -> Vec<&Value> {
    status["groups"].as_array().into_iter().flatten().map(|group| &group["minCount"]).collect()
}

async fn a_group_that_falls_whole_has_no_pod_to_spare(cluster: Cluster) {
    has_no_pod_to_spare(cluster, WorkloadApi::V1Alpha2, [json!("Pod"), json!("PodGroup")]).await;
}

/// The mode in which pods go one at a time, and the one in which all of a group go.
async fn has_no_pod_to_spare(cluster: Cluster, api: WorkloadApi, [single, whole]: [Value; 2]) {
    let _quorate = Quorate::start(&cluster).await;

    let single = two_groups(&cluster, api, &single).await;
    assert_eq!(minimums(&single.status("gang").await), [2, 2]);
    // One of three is to spare, in each group.
    single.evict("gang-0-0").await.expect(201);
    single.evict("gang-1-0").await.expect(201);
    single.allows("gang", 1).await;

    let whole = two_groups(&cluster, api, &whole).await;
    assert_eq!(minimums(&whole.status("gang").await), [3, 3]);
    // The first pod takes its group down, and with it the rest of that group; the other group stays as it is.
    whole.evict("gang-0-0").await.expect(201);
    let sentence = refusal(&whole.evict("gang-1-0").await);
    let begins =
        format!("{}/gang keeps 1 of 2 groups: group gang-1 would be the second one down", whole.namespace);
    assert!(sentence.starts_with(&begins), "{sentence}");
    whole.evict("gang-0-1").await.expect(201);
    whole.evict("gang-0-2").await.expect(201);
    refusal(&whole.evict("gang-1-0").await);
    whole.allows("gang", 0).await;
}
