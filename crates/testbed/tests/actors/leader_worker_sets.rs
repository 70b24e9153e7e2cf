//! Tests of LeaderWorkerSets: groups are deleted and recreated as a whole.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{Fixture, is_ready};

mod alone {
    use super::{a_group_that_loses_a_worker_is_recreated, a_rollout_with_surge_keeps_enough_groups};
    quorate_testbed::stories!(ApiServer: a_group_that_loses_a_worker_is_recreated, a_rollout_with_surge_keeps_enough_groups);
}
/// The same stories with the real controllers of Kubernetes.
mod beside {
    #[test]
    fn a_group_that_loses_a_worker_is_recreated() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_group_that_loses_a_worker_is_recreated,
        );
    }

    #[test]
    fn a_rollout_with_surge_keeps_enough_groups() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_rollout_with_surge_keeps_enough_groups,
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

fn by_group<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<String, Vec<(String, String)>> {
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

async fn a_group_that_loses_a_worker_is_recreated(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "groups").await;
    fixture.create(llm(&json!({}))).await;
    let before = by_group(&fixture.ready(OF_LLM, 9).await);
    assert_eq!(before.keys().collect::<Vec<_>>(), ["0", "1", "2"]);
    for members in before.values() {
        assert_eq!(members.iter().map(|(index, _)| index.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    }
    fixture.pods().delete("llm-1-2", &DeleteParams::default()).await.unwrap();
    let after = eventually("all pods of group 1 are new", || async {
        let after = by_group(&fixture.ready(OF_LLM, 9).await);
        let old: Vec<_> = after["1"].iter().filter(|member| before["1"].contains(member)).cloned().collect();
        if old.is_empty() { Ok(after) } else { Err(old) }
    })
    .await;
    assert_eq!(after["0"], before["0"]);
    assert_eq!(after["2"], before["2"]);
    let api = fixture.api(&llm(&json!({})));
    eventually("the status counts groups", || async {
        let status = api.get("llm").await.unwrap().data["status"].clone();
        if status["readyReplicas"] == 3 && status["replicas"] == 3 { Ok(()) } else { Err(status) }
    })
    .await;
}

async fn a_rollout_with_surge_keeps_enough_groups(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "surge").await;
    let strategy = json!({"replicas": 2, "rolloutStrategy": {"type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}}});
    let api = fixture.api(&llm(&json!({})));
    fixture.create(llm(&strategy)).await;
    fixture.ready(OF_LLM, 6).await;
    // A watch delivers every event from here on, so that short-lived states are seen, too.
    let wire = fixture.cluster.wire();
    let path = format!("/api/v1/namespaces/{}/pods", fixture.namespace);
    let list = wire.get(&path).await.expect(200);
    let items: Vec<Pod> = serde_json::from_value(list["items"].clone()).expect("pods");
    let mut pods: BTreeMap<String, Pod> = items.into_iter().map(|pod| (pod.uid().unwrap(), pod)).collect();
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let mut watch = wire.watch(&format!("{path}?resourceVersion={version}")).await;
    let new = json!({"spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "app", "image": "llm:2"}]}}}}});
    api.patch("llm", &PatchParams::default(), &Patch::Merge(new)).await.unwrap();
    let mut counts = Vec::new();
    while !pods.values().all(is_new) || pods.len() != 6 {
        let (kind, object) = watch.next().await.expect("the watch continues");
        let pod: Pod = serde_json::from_value(object).expect("a pod");
        match kind.as_str() {
            "ADDED" | "MODIFIED" => drop(pods.insert(pod.uid().unwrap(), pod)),
            "DELETED" => drop(pods.remove(&pod.uid().unwrap())),
            other => panic!("the watch failed: {other}"),
        }
        // A leader has no index until its first update.
        let groups = by_group(pods.values().filter(|pod| pod.labels().contains_key(GROUP_INDEX)));
        let whole = by_group(pods.values().filter(|pod| is_ready(pod)));
        counts.push((groups.len(), whole.values().filter(|members| members.len() == 3).count()));
    }
    assert_eq!(counts.iter().map(|(groups, _)| *groups).max(), Some(3), "one more group during the rollout");
    // The surge group is removed to make room for the last group of the rollout, as in the real controller.
    let fewest = counts.iter().map(|(_, whole)| *whole).min();
    assert!(fewest >= Some(1), "never more than one group down at once: {counts:?}");
}

fn is_new(pod: &Pod) -> bool {
    is_ready(pod) && pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("llm:2")
}
