//! Tests of Jobs, and of gangs with the objects of the Workload API.

use kube::ResourceExt;
use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Backend, Cluster, Options, Setup, eventually, run_story};
use serde_json::json;

use crate::fixture::Fixture;

mod alone {
    use super::*;
    quorate_testbed::stories!(ApiServer: an_indexed_job_completes_with_all_its_indexes);
}

#[test]
fn an_indexed_job_completes_with_the_real_controllers() {
    run_story(Backend::Real, Setup::Controllers, an_indexed_job_completes_with_all_its_indexes);
}

#[test]
fn the_pods_of_a_gang_name_their_group_on_the_real_api() {
    let options = Options { workload_api: true, ..Options::default() };
    run_story(Backend::Real, Setup::Private(options), the_pods_of_a_gang_name_their_group);
}

#[test]
fn the_pods_of_a_gang_name_their_group_on_the_embedded_api() {
    let options = Options { workload_api: true, ..Options::default() };
    run_story(Backend::Embedded, Setup::Private(options), the_pods_of_a_gang_name_their_group);
}

async fn an_indexed_job_completes_with_all_its_indexes(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "job").await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {
        "parallelism": 2, "completions": 2, "completionMode": "Indexed",
        "template": {"metadata": {"labels": {"app": "train"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "train:1"}]}}}});
    fixture.create(job.clone()).await;
    let pods = fixture.ready("app=train", 2).await;
    let mut indexes: Vec<_> = pods
        .iter()
        .map(|pod| pod.annotations()["batch.kubernetes.io/job-completion-index"].clone())
        .collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1"]);
    for pod in &pods {
        fixture.kubelets.finish(&fixture.namespace, &pod.name_any(), 0).unwrap();
    }
    let api = fixture.api(&job);
    let status = eventually("the job is complete", || async {
        let status = api.get("train").await.unwrap().data["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let complete = conditions.iter().any(|c| c["type"] == "Complete" && c["status"] == "True");
        if complete { Ok(status) } else { Err(status) }
    })
    .await;
    assert_eq!(status["succeeded"], 2);
}

async fn the_pods_of_a_gang_name_their_group(cluster: Cluster) {
    let fixture = Fixture::private(cluster, "gang").await;
    let gang = Gang::new("train", 2, 2);
    let api = fixture.cluster.kubernetes().workload_api();
    for object in gang.workload(api).into_iter().chain(gang.stateful_sets(api)) {
        fixture.create(object).await;
    }
    fixture.ready("gang=train", 4).await;
    let pods = fixture.api(&json!({"apiVersion": "v1", "kind": "Pod"}));
    for name in ["train-0-0", "train-0-1"] {
        let pod = pods.get(name).await.unwrap();
        let spec = &pod.data["spec"];
        let groups = [&spec["schedulingGroup"]["podGroupName"], &spec["workloadRef"]["podGroupReplicaKey"]];
        let expected = match api {
            WorkloadApi::Off => [json!(null), json!(null)],
            WorkloadApi::V1Alpha1 => [json!(null), json!("0")],
            WorkloadApi::V1Alpha2 | WorkloadApi::V1Beta1 => [json!("train-0"), json!(null)],
        };
        assert_eq!(groups, [&expected[0], &expected[1]], "{name}");
    }
}
