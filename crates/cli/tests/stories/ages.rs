//! The age of each kind: a server that receives nothing about a kind denies where a budget depends on it, and only
//! there. Only the embedded API server can hold a watch, and only a short limit makes these stories short.

use std::time::Duration;

use quorate_devcluster::apiserver::{FaultGuard, RequestFilter, WatchFault};
use quorate_testbed::{Backend, Cluster, Patch, Setup, eventually, run_story};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial, spec_for_app};
use crate::quorate::{Quorate, install, scrape, service_account};

/// Longer than two intervals of bookmarks, so that other kinds stay fresh on a busy machine.
const FRESH_FOR: Duration = Duration::from_secs(25);

async fn impatient_server(cluster: &Cluster) -> Quorate {
    install(cluster).await;
    Quorate::start_with(cluster, |options| options.fresh_for = FRESH_FOR).await
}

/// Delays the events of a resource to the server until the guard is dropped.
fn hold(cluster: &Cluster, resource: &str) -> FaultGuard {
    let which = RequestFilter::any().user(service_account().name()).resource(resource);
    cluster.embedded().expect("the embedded cluster").faults().watches(which, WatchFault::Hold)
}

fn workload(kind: &str, name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {"replicas": replicas, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "web:1"}]},
        }},
    })
}

impl TestNamespace {
    /// Waits until a dry run of an eviction is refused because a kind is stale.
    async fn await_stale(&self, pod: &str, kind: &str) {
        eventually("the kind is stale", || async {
            let answer = self.evict_with(pod, json!({}), "?dryRun=All").await;
            let message = answer.body["message"].as_str().unwrap_or_default().to_owned();
            let is_stale = answer.code == 429 && message.contains(&format!("not now: {kind} is stale"));
            if is_stale { Ok(()) } else { Err((answer.code, message)) }
        })
        .await;
    }
}

#[test]
fn a_deployment_scaled_up_behind_a_held_watch_is_not_decided_by_its_old_scale() {
    run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let quorate = impatient_server(&cluster).await;
        cluster.actors().nodes().add("node-1").await.expect("a node");
        let ns = TestNamespace::new(cluster, "aging", Some(quorate)).await;
        let mut web = workload("Deployment", "web", 3);
        web["spec"].as_object_mut().expect("a spec").remove("serviceName");
        ns.create("apps/v1", "deployments", &web).await;
        ns.create("apps/v1", "statefulsets", &workload("StatefulSet", "db", 2)).await;
        ns.await_ready_pods(5).await;
        ns.create_budget_allowing("web", spec_for_app("web", "maxUnavailable", 1), 1).await;
        ns.create_budget_allowing("db", spec_for_app("db", "maxUnavailable", 1), 1).await;

        let held = hold(&ns.cluster, "deployments");
        ns.patch("apps/v1", "deployments", "web", &json!({"spec": {"replicas": 10}})).await;
        ns.await_ready_pods(12).await;
        let pods = ns.pods.list(&Default::default()).await.expect("a list");
        let names: Vec<String> = pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
        let web: Vec<&String> = names.iter().filter(|name| name.starts_with("web-")).collect();
        ns.await_stale(web[0], "Deployment.apps").await;
        for pod in &web {
            let refused = denial(&ns.evict(pod).await);
            assert!(refused.contains("not now: Deployment.apps is stale"), "{refused}");
        }
        ns.evict("db-0").await.expect(201);
        let age = scrape(ns.server().admin).await;
        let age = age.lines().find_map(|line| {
            line.strip_prefix("quorate_watch_age_seconds{kind=\"Deployment.apps\"} ")?.parse::<f64>().ok()
        });
        // Bookmarks come every ten seconds. A decision counts from when the last list was requested, a little longer.
        assert!(age.is_some_and(|age| age > FRESH_FOR.as_secs_f64() / 2.0), "{age:?}");

        drop(held);
        eventually("the next eviction is decided", || async {
            let answer = ns.evict(web[0]).await;
            if answer.code == 201 { Ok(()) } else { Err(answer.body) }
        })
        .await;
        let refused = denial(&ns.evict(web[1]).await);
        assert!(refused.contains("keeps 9 of 10 pods"), "{refused}");
    });
}

#[test]
fn a_leader_worker_set_scaled_up_behind_a_held_watch_is_not_decided_by_its_old_scale() {
    run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let quorate = impatient_server(&cluster).await;
        let ns = TestNamespace::with_llm_and_server(cluster, quorate, json!({})).await;
        let held = hold(&ns.cluster, "leaderworkersets");
        let path = ns.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets/llm");
        ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 4}})).await.expect(200);
        ns.await_ready_pods(12).await;
        ns.await_stale("llm-3-1", "LeaderWorkerSet.leaderworkerset.x-k8s.io").await;
        for pod in ["llm-3-1", "llm-0-1"] {
            let refused = denial(&ns.evict(pod).await);
            assert!(refused.contains("LeaderWorkerSet.leaderworkerset.x-k8s.io is stale"), "{refused}");
        }
        drop(held);
        eventually("the eviction is decided", || async {
            let answer = ns.evict_with("llm-3-1", json!({}), "?dryRun=All").await;
            if answer.code == 201 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    });
}
