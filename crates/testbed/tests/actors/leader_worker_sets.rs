//! LeaderWorkerSets: groups that fall whole and come back whole.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::cast::Scene;

mod alone {
    use super::{a_group_that_loses_a_worker_is_rebuilt_whole, a_rollout_with_surge_keeps_the_groups};
    quorate_testbed::stories!(ApiServer: a_group_that_loses_a_worker_is_rebuilt_whole, a_rollout_with_surge_keeps_the_groups);
}
/// Beside the real controllers: what they do is what ours have to do.
mod beside {
    #[test]
    fn a_group_that_loses_a_worker_is_rebuilt_whole() {
        quorate_testbed::tell(
            quorate_testbed::Place::Real,
            quorate_testbed::Stage::Controllers,
            super::a_group_that_loses_a_worker_is_rebuilt_whole,
        );
    }

    #[test]
    fn a_rollout_with_surge_keeps_the_groups() {
        quorate_testbed::tell(
            quorate_testbed::Place::Real,
            quorate_testbed::Stage::Controllers,
            super::a_rollout_with_surge_keeps_the_groups,
        );
    }
}

const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
const OF_LLM: &str = "leaderworkerset.sigs.k8s.io/name=llm";

fn llm(more: &Value) -> Value {
    let mut lws = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm"},
        "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 3, "workerTemplate": {
            "metadata": {"labels": {"app": "llm"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "app", "image": "llm:1"}]}}}}});
    if let Some(fields) = more.as_object() {
        for (field, value) in fields {
            lws["spec"][field] = value.clone();
        }
    }
    lws
}

fn by_group(pods: &[Pod]) -> BTreeMap<String, Vec<(String, String)>> {
    let mut groups: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for pod in pods {
        let group = pod.labels().get(GROUP_INDEX).cloned().unwrap_or_default();
        groups
            .entry(group)
            .or_default()
            .push((pod.labels().get(WORKER_INDEX).cloned().unwrap_or_default(), pod.uid().unwrap()));
    }
    groups
}

async fn a_group_that_loses_a_worker_is_rebuilt_whole(cluster: Cluster) {
    let scene = Scene::set(cluster, "groups").await;
    scene.create(llm(&json!({}))).await;
    let before = by_group(&scene.ready(OF_LLM, 9).await);
    assert_eq!(before.keys().collect::<Vec<_>>(), ["0", "1", "2"]);
    for members in before.values() {
        assert_eq!(members.iter().map(|(index, _)| index.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    }
    scene.pods().delete("llm-1-2", &DeleteParams::default()).await.unwrap();
    let after = eventually("group 1 is new from top to bottom", || async {
        let after = by_group(&scene.ready(OF_LLM, 9).await);
        let old: Vec<_> = after["1"].iter().filter(|member| before["1"].contains(member)).cloned().collect();
        if old.is_empty() { Ok(after) } else { Err(old) }
    })
    .await;
    assert_eq!(after["0"], before["0"]);
    assert_eq!(after["2"], before["2"]);
    let api = scene.api(&llm(&json!({})));
    eventually("the status counts groups", || async {
        let status = api.get("llm").await.unwrap().data["status"].clone();
        if status["readyReplicas"] == 3 && status["replicas"] == 3 { Ok(()) } else { Err(status) }
    })
    .await;
}

async fn a_rollout_with_surge_keeps_the_groups(cluster: Cluster) {
    let scene = Scene::set(cluster, "surge").await;
    let strategy = json!({"replicas": 2, "rolloutStrategy": {"type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}}});
    let api = scene.api(&llm(&json!({})));
    scene.create(llm(&strategy)).await;
    scene.ready(OF_LLM, 6).await;
    let new = json!({"spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "app", "image": "llm:2"}]}}}}});
    api.patch("llm", &PatchParams::default(), &Patch::Merge(new)).await.unwrap();
    let mut largest = 0;
    loop {
        let pods = scene.list(OF_LLM).await;
        let groups = by_group(&pods);
        largest = largest.max(groups.keys().filter(|group| !group.is_empty()).count());
        let ready = pods.iter().filter(|pod| crate::cast::is_ready(pod)).count();
        let done = pods.len() == 6
            && ready == 6
            && pods
                .iter()
                .all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("llm:2"));
        if done {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(largest, 3, "one more group while it rolled");
}
