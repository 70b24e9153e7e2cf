//! The age of each kind: a server that receives nothing about a kind denies where a budget depends on it, and only
//! there. Only the embedded API server can hold a watch, and only a short limit makes these stories short.

use std::time::Duration;

use quorate_devcluster::apiserver::{FaultGuard, RequestFilter, WatchFault};
use quorate_testbed::{Backend, Cluster, Patch, Setup, eventually, run_story};
use serde_json::{Value, json};

use crate::fixture::{BUDGETS, PDBS, TestNamespace, denial, spec_for_app};
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
        // An evicted pod must not be replaced before the next request.
        ns.replace_slowly(true);
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

/// The twin has the old number until the leader hears of the new one.
#[test]
fn a_native_budget_tightened_behind_a_held_watch_is_not_decided_by_its_old_number() {
    run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let quorate = impatient_server(&cluster).await;
        let mut ns = TestNamespace::with_manual_pods(&cluster, "tightened").await;
        ns.quorate = Some(quorate);
        for group in 0..3 {
            let labels = json!({"app": "web", "group": group.to_string()});
            ns.create_pod(&format!("web-{group}"), labels).await;
        }
        let groups = |allowed: &str| json!({"quorate.dev/group-label-key": "group", "quorate.dev/max-unavailable": allowed});
        let native = json!({
            "apiVersion": PDBS.0, "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "annotations": groups("2")},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 3},
        });
        ns.create(PDBS.0, PDBS.1, &native).await;
        ns.await_allowed("web", 2).await;

        let held = hold(&ns.cluster, PDBS.1);
        ns.patch(PDBS.0, PDBS.1, "web", &json!({"metadata": {"annotations": groups("0")}})).await;
        ns.await_stale("web-0", "PodDisruptionBudget.policy").await;
        let refused = denial(&ns.evict("web-0").await);
        assert!(refused.contains("PodDisruptionBudget.policy is stale"), "{refused}");
        let twin = ns.get(BUDGETS.0, BUDGETS.1, "web").await.body;
        assert_eq!(twin["spec"]["maxUnavailable"], 2, "the leader has not heard of the change");

        drop(held);
        ns.await_allowed("web", 0).await;
        let refused = denial(&ns.evict("web-0").await);
        assert!(refused.contains("keeps 3 of 3 groups"), "{refused}");
    });
}

/// Annotations do not change the generation of a budget, so each write tests them.
#[test]
fn an_annotation_that_a_server_has_not_seen_is_not_ignored() {
    run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let _quorate = Quorate::start(&cluster).await;
        let ns = TestNamespace::with_manual_pods(&cluster, "annotated").await;
        ns.create_pods("web", 4).await;
        let total = |number: &str| json!({"pub.kruise.io/protect-total-replicas": number});
        let half = spec_for_app("web", "minAvailable", "50%");
        ns.create_pub("web", total("4"), half).await.expect(201);
        ns.await_pub_allowed("web", 2).await;
        let held = hold(&cluster, "podunavailablebudgets");
        ns.patch_pub("web", &json!({"metadata": {"annotations": total("8")}})).await.expect(200);
        denial(&ns.evict("web-0").await);
        denial(&ns.delete_pod("web-1").await);
        drop(held);
        ns.await_pub_allowed("web", 0).await;
    });
}

/// No bookmarks arrive for a resource, or for any, as from an aggregated API server. A server that receives nothing lists
/// again before the kind is stale, so its evictions are decided all the time.
fn evictions_are_decided_without_bookmarks(resource: Option<&str>) {
    run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let of_server = RequestFilter::any().user(service_account().name());
        let which =
            resource.map_or_else(|| of_server.clone(), |resource| of_server.clone().resource(resource));
        let embedded = cluster.embedded().expect("the embedded cluster");
        let _unmarked = embedded.faults().watches(which, WatchFault::NoBookmarks);
        let quorate = Quorate::start(&cluster).await;
        cluster.actors().nodes().add("node-1").await.expect("a node");
        let ns = TestNamespace::new(cluster, "unmarked", Some(quorate)).await;
        let mut web = workload("Deployment", "web", 3);
        web["spec"].as_object_mut().expect("a spec").remove("serviceName");
        ns.create("apps/v1", "deployments", &web).await;
        ns.await_ready_pods(3).await;
        ns.create_budget_allowing("web", spec_for_app("web", "maxUnavailable", 1), 1).await;
        let pods = ns.pods.list(&Default::default()).await.expect("a list");
        let pod = pods.iter().find_map(|pod| pod.metadata.name.clone()).expect("a pod");
        // Longer than what is known of a kind is fresh.
        let end = tokio::time::Instant::now() + Duration::from_secs(100);
        while tokio::time::Instant::now() < end {
            ns.evict_with(&pod, json!({}), "?dryRun=All").await.expect(201);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

#[test]
fn evictions_are_decided_without_bookmarks_for_deployments() {
    evictions_are_decided_without_bookmarks(Some("deployments"));
}

#[test]
fn evictions_are_decided_without_any_bookmarks() {
    evictions_are_decided_without_bookmarks(None);
}
