//! etcd is restored from an older snapshot: resource versions go back, objects come back, and what happened since never
//! happened. Servers must not decide on what they remember of it, and every budget heals by itself within two minutes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Error;
use kube::api::{Api, EvictParams, ListParams};
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::fixture::{PDBS, TestNamespace, has_condition, spec_for_app};
use crate::replicas::Replicas;

quorate_testbed::stories!(Private(quorate_testbed::Options::default()):
    budgets_hold_and_heal_when_etcd_is_restored,
    servers_that_started_after_the_snapshot_start_over,
    a_settled_version_from_another_time_is_lowered,
);

/// By then every budget has healed.
const HEALED: Duration = Duration::from_secs(120);

/// An unused admission expires after this time. The default would make the story too long.
const EXPIRY: &str = "--claim-expiry-seconds=40";

fn two(app: &str) -> Value {
    spec_for_app(app, "minAvailable", 2)
}

/// The newest resource version, if the API server answers.
async fn version(pods: &Api<Pod>) -> Option<u64> {
    let listed = pods.list(&ListParams::default().limit(1)).await.ok()?;
    listed.metadata.resource_version?.parse().ok()
}

/// Evicts pods from the moment that etcd is restored, until it is stopped. None of these evictions may be admitted.
struct Evictors {
    stopped: Arc<AtomicBool>,
    tasks: JoinSet<usize>,
}

impl Evictors {
    async fn start(ns: &TestNamespace, pods: &[&str]) -> Self {
        let (stopped, mut tasks) = (Arc::<AtomicBool>::default(), JoinSet::new());
        let before = version(&ns.pods).await.expect("a version");
        for pod in pods {
            let (stopped, pods, pod) = (stopped.clone(), ns.pods.clone(), (*pod).to_owned());
            tasks.spawn(async move {
                while version(&pods).await.is_none_or(|now| now >= before) {
                    if stopped.load(Ordering::Relaxed) {
                        return 0;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let mut denied = 0;
                while !stopped.load(Ordering::Relaxed) {
                    match pods.evict(&pod, &EvictParams::default()).await {
                        Ok(_) => panic!("{pod} was evicted after {denied} denials"),
                        Err(Error::Api(status)) if status.code == 429 => denied += 1,
                        // The API server is not ready, or reaches no server.
                        Err(_) => {}
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                denied
            });
        }
        Self { stopped, tasks }
    }

    async fn stop(mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        while let Some(denied) = self.tasks.join_next().await {
            let denied = denied.expect("no eviction was admitted");
            assert!(denied > 0, "nothing was tried");
        }
    }
}

/// Evicts a pod as soon as that is allowed.
async fn evict(ns: &TestNamespace, pod: &str) {
    eventually(&format!("{pod} is evicted"), || async {
        let answer = ns.evict(pod).await;
        if answer.code == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    ns.await_pod_gone(pod).await;
}

/// The same, and puts another one in its place.
async fn evict_and_replace(ns: &TestNamespace, pod: &str, app: &str) {
    evict(ns, pod).await;
    ns.create_pod(pod, json!({"app": app})).await;
}

/// The name of a native budget and of its twin.
const TWIN: &str = "twin";

/// Lets the twin keep only two groups.
async fn loosen_twin(ns: &TestNamespace) {
    let annotations = json!({"metadata": {"annotations": {"quorate.dev/min-available": "2"}}});
    ns.patch(PDBS.0, PDBS.1, TWIN, &annotations).await;
    ns.await_allowed(TWIN, 1).await;
}

async fn budgets_hold_and_heal_when_etcd_is_restored(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 3, &[EXPIRY]).await;
    replicas.add_slots(1);
    let ns = TestNamespace::with_manual_pods(&cluster, "restored").await;
    for (app, count) in [("web", 3), ("db", 2), ("cache", 3), ("held", 3), ("late", 3), ("old", 3)] {
        ns.create_pods(app, count).await;
    }
    for pod in ["web-2", "old-2"] {
        ns.set_pod_ready(pod, false).await;
    }
    for (app, allowed) in [("web", 0), ("db", 0), ("cache", 1), ("held", 1)] {
        ns.create_budget_allowing(app, two(app), allowed).await;
    }
    ns.create_pub("old", json!({}), two("old")).await.expect(201);
    ns.await_pub_allowed("old", 0).await;
    ns.create_groups_of_one(TWIN, 3).await;
    ns.create_adopted_budget_allowing(TWIN, 3, 0).await;
    // Quorate admits this eviction, and then the API server rejects it: no controller has looked at the native budget.
    let native = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "held"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}},
    });
    ns.create("policy/v1", "poddisruptionbudgets", &native).await;
    assert_eq!(ns.evict("held-0").await.code, 429);
    ns.await_status("held", "it has a claim", |status| claims(status) == 1).await;

    let backup = cluster.back_up().expect("a backup");

    // None of this will have happened.
    for pod in ["web-2", "old-2"] {
        ns.set_pod_ready(pod, true).await;
    }
    ns.delete_budget("db").await;
    for pod in ["cache-0", "cache-1", "cache-2", "cache-0"] {
        evict_and_replace(&ns, pod, "cache").await;
    }
    ns.create_budget_allowing("late", two("late"), 1).await;
    ns.await_allowed("web", 1).await;
    ns.await_pub_allowed("old", 1).await;
    ns.wire.delete(&ns.path("policy/v1", "poddisruptionbudgets/held"), &json!({})).await.expect(200);
    evict_and_replace(&ns, "held-0", "held").await;
    ns.await_status("held", "its claim is settled", |status| claims(status) == 0).await;
    loosen_twin(&ns).await;
    replicas.fill(3).await;
    replicas.until_ready(4).await;
    replicas.kill(2);

    let evictors = Evictors::start(&ns, &["web-0", "db-0", "old-0", "twin-0"]).await;
    cluster.restore(&backup).await.expect("etcd is restored");
    replicas.publish_again();
    let healed = tokio::time::timeout(HEALED, async {
        replicas.fill(2).await;
        // A new budget opens, and the versions of the old ones do not matter to it.
        ns.create_budget_allowing("late", two("late"), 1).await;
        for (app, allowed, healthy) in
            [("web", 0, 2), ("db", 0, 2), ("cache", 1, 3), ("held", 1, 3), (TWIN, 0, 3)]
        {
            let heals = |status: &Value| {
                has_condition(status, "Enforced", "True")
                    && status["disruptionsAllowed"] == allowed
                    && status["currentHealthy"] == healthy
                    && claims(status) == 0
            };
            ns.await_status(app, "it heals", heals).await;
        }
        ns.await_pub_allowed("old", 0).await;
        replicas.until_ready(4).await;
        evict_and_replace(&ns, "cache-1", "cache").await;
        evict_and_replace(&ns, "late-1", "late").await;
    });
    assert!(healed.await.is_ok(), "{}", replicas.logs());
    evictors.stop().await;
    for (pod, unready, app) in [("web-0", "web-2", "web"), ("old-0", "old-2", "old")] {
        ns.set_pod_ready(unready, true).await;
        evict_and_replace(&ns, pod, app).await;
    }
    // The twin follows the native budget again.
    loosen_twin(&ns).await;
    evict(&ns, "twin-0").await;
}

fn claims(status: &Value) -> usize {
    status["claims"].as_object().map_or(0, serde_json::Map::len)
}

/// All Leases of the running servers are gone then, and those of servers that ended long ago are back.
async fn servers_that_started_after_the_snapshot_start_over(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2, &[EXPIRY]).await;
    replicas.add_slots(2);
    let ns = TestNamespace::with_manual_pods(&cluster, "upgraded").await;
    ns.create_pods("web", 2).await;
    ns.create_pods("late", 3).await;
    ns.create_budget_allowing("web", two("web"), 0).await;

    let backup = cluster.back_up().expect("a backup");

    for (old, new) in [(0, 2), (1, 3)] {
        replicas.fill(new).await;
        replicas.kill(old);
    }
    replicas.until_ready(2).await;
    // The servers do not know the budget when it comes back.
    ns.delete_budget("web").await;
    for _ in 0..8 {
        eventually("no server knows the budget", || async {
            let answer = ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
            if answer.code == 201 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }

    let evictors = Evictors::start(&ns, &["web-0"]).await;
    cluster.restore(&backup).await.expect("etcd is restored");
    replicas.publish_again();
    let healed = tokio::time::timeout(HEALED, async {
        ns.await_status("web", "it heals", |status| {
            has_condition(status, "Enforced", "True") && status["disruptionsAllowed"] == 0
        })
        .await;
        replicas.until_ready(2).await;
        // Leases that came back are of servers that may have admitted something just before they ended.
        ns.create_budget_allowing("late", two("late"), 1).await;
        evict_and_replace(&ns, "late-1", "late").await;
    });
    assert!(healed.await.is_ok(), "{}", replicas.logs());
    for slot in [2, 3] {
        assert_eq!(replicas.has_ended(slot), None, "a server starts over by itself");
    }
    evictors.stop().await;
}

/// A server was about to write it when etcd was restored, or it is part of a saved status.
async fn a_settled_version_from_another_time_is_lowered(cluster: Cluster) {
    let replicas = Replicas::start(&cluster, 2, &[]).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "ahead").await;
    ns.create_pods("web", 3).await;
    ns.create_budget_allowing("web", two("web"), 1).await;
    let number = ns.budget_status("web").await["ledger"].as_u64().expect("a number");
    // A saved status has another number too. So a server that has not seen it yet cannot write a claim.
    let saved = json!({"status": {"settledVersion": u64::MAX.to_string(), "ledger": number + 1}});
    let path = format!("{}/status", ns.budget_path("web"));
    ns.wire.patch(&path, Patch::Merge, &saved).await.expect(200);
    let lowered = |status: &Value| status["settledVersion"] != saved["status"]["settledVersion"];
    // Nothing is admitted under a version that no server has seen.
    eventually("no server admits anything before it is lowered", || async {
        let answer = ns.evict("web-0").await;
        if answer.code == 201 {
            let status = ns.budget_status("web").await;
            assert!(lowered(&status), "{status}");
            ns.await_pod_gone("web-0").await;
            ns.create_pod("web-0", json!({"app": "web"})).await;
            return Ok(());
        }
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    let healed = tokio::time::timeout(HEALED, async {
        ns.await_status("web", "it is lowered", lowered).await;
        evict_and_replace(&ns, "web-0", "web").await;
    });
    assert!(healed.await.is_ok(), "{}", replicas.logs());
}
