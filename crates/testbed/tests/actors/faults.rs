//! Tests with faults: a webhook denies requests, the API server fails, watches break.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use quorate_devcluster::actors::LEADER_WORKER_SETS;
use quorate_devcluster::apiserver::{Fault, RequestFilter, RequestInfo};
use quorate_testbed::{Backend, Cluster, Setup, eventually, run_story};
use serde_json::{Value, json};

use crate::delete_webhook::DeleteWebhook;
use crate::fixture::{Fixture, describe, template};

mod alone {
    use super::*;
    quorate_testbed::stories!(ApiServer: a_denied_deletion_is_reported_and_retried, a_denied_group_rebuild_is_retried);
}

#[test]
fn a_denied_deletion_is_retried_by_the_real_controllers() {
    run_story(Backend::Real, Setup::Controllers, a_denied_deletion_is_reported_and_retried);
}

#[test]
fn a_denied_group_rebuild_is_retried_with_the_real_controllers() {
    run_story(Backend::Real, Setup::Controllers, a_denied_group_rebuild_is_retried);
}

#[test]
fn the_actors_recover_after_an_outage() {
    run_story(Backend::Embedded, Setup::ApiServer, groups_are_complete_again_after_an_outage);
}

fn web(replicas: i32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
        "template": template(json!({"app": "web"}), "web:1")}})
}

/// Waits until an Event with this reason contains the webhook's message.
async fn denial_is_reported(fixture: &Fixture, reason: &str) {
    let events = json!({"apiVersion": "v1", "kind": "Event"});
    eventually("an event reports the denial", || async {
        let events = fixture.api(&events).list(&Default::default()).await.unwrap();
        let found = events.iter().find(|event| event.data["reason"] == reason);
        let message =
            found.and_then(|event| event.data["message"].as_str().map(str::to_owned)).unwrap_or_default();
        if message.contains("not now") { Ok(()) } else { Err(message) }
    })
    .await;
}

async fn a_denied_deletion_is_reported_and_retried(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "denied").await;
    fixture.create(web(2)).await;
    fixture.ready("app=web", 2).await;
    let webhook =
        DeleteWebhook::denying(&fixture, "system:serviceaccount:kube-system:replicaset-controller").await;
    fixture
        .api(&web(1))
        .patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 1}})))
        .await
        .unwrap();
    denial_is_reported(&fixture, "FailedDelete").await;
    assert_eq!(fixture.ready("app=web", 2).await.len(), 2);
    webhook.allow();
    fixture.ready("app=web", 1).await;
    webhook.remove().await;
}

async fn a_denied_group_rebuild_is_retried(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "rebuilding").await;
    fixture.create(llm()).await;
    let before = fixture.ready("app=llm", 4).await;
    let webhook = DeleteWebhook::denying(&fixture, LEADER_WORKER_SETS).await;
    fixture.pods().delete("llm-0-1", &Default::default()).await.unwrap();
    denial_is_reported(&fixture, "FailedDelete").await;
    eventually("the controller retries", || async {
        let requests = webhook.requests(LEADER_WORKER_SETS, "llm-0");
        if requests >= 3 { Ok(()) } else { Err(requests) }
    })
    .await;
    let leader = fixture.pods().get("llm-0").await.unwrap();
    assert_eq!(Some(&leader.metadata.uid), before.first().map(|pod| &pod.metadata.uid));
    assert_eq!(leader.metadata.deletion_timestamp, None);
    webhook.allow();
    group_0_is_new(&fixture, &before).await;
    webhook.remove().await;
}

fn llm() -> Value {
    json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(json!({"app": "llm"}), "llm:1")}}})
}

async fn group_0_is_new(fixture: &Fixture, before: &[Pod]) {
    let uid = |pods: &[Pod], name: &str| {
        let found = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
        found.and_then(|pod| pod.metadata.uid.clone())
    };
    eventually("group 0 is new, and group 1 is unchanged", || async {
        let after = fixture.ready("app=llm", 4).await;
        let new = ["llm-0", "llm-0-1"].iter().all(|name| uid(&after, name) != uid(before, name));
        let same = ["llm-1", "llm-1-1"].iter().all(|name| uid(&after, name) == uid(before, name));
        if new && same { Ok(()) } else { Err(describe(&after)) }
    })
    .await;
}

/// Writes fail and watches are cut while a worker is lost.
async fn groups_are_complete_again_after_an_outage(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "outage").await;
    let faults = fixture.cluster.embedded().unwrap().faults();
    fixture.create(llm()).await;
    let before = fixture.ready("app=llm", 4).await;
    let by_actors = |request: &RequestInfo<'_>| request.user.starts_with("system:");
    fixture.pods().delete("llm-0-1", &Default::default()).await.unwrap();
    {
        let mut fault = faults.requests(RequestFilter::any().writes().and(by_actors), Fault::InternalError);
        faults.cut_watches(RequestFilter::any());
        fault.struck(5).await;
        faults.expire_watches(RequestFilter::any());
    }
    // A write whose response is lost was still executed. The actors must not repeat it.
    let _lost = faults.requests(RequestFilter::any().writes().and(by_actors), Fault::LoseReply).times(5);
    group_0_is_new(&fixture, &before).await;
}
