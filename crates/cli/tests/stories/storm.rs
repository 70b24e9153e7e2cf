//! Many evictors and three servers, with faults of servers, watches and the API server: no budget is ever broken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Error;
use kube::api::{Api, EvictParams, ListParams};
use quorate_testbed::{Cluster, User, eventually};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::chronicle::Chronicle;
use crate::fixture::{has_condition, is_ready};
use crate::replicas::Replicas;
use crate::witness::Witness;

quorate_testbed::stories!(Whole: no_budget_breaks_in_the_storm);

const BUDGETS: usize = 20;
const PODS: usize = 5;
const EVICTORS: usize = 32;
const REPLICAS: usize = 3;
const STORM: Duration = Duration::from_secs(40);
/// Longer than an admitted eviction may take; much shorter than the default, so that the story can wait for it.
const EXPIRY: Duration = Duration::from_secs(40);

async fn no_budget_breaks_in_the_storm(cluster: Cluster) {
    let seed: u64 = match std::env::var("QUORATE_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => 1,
    };
    println!("QUORATE_SEED={seed}");
    let expiry = format!("--claim-expiry-seconds={}", EXPIRY.as_secs());
    let mut replicas = Replicas::start(&cluster, REPLICAS, &[&expiry]).await;
    let namespace = set_up(&cluster).await;
    let witness = Arc::new(Witness::start(&cluster, &namespace, "app").await);
    let chronicle = Chronicle::start(&cluster, &namespace);

    let tally = Arc::new(Tally::default());
    let mut evictors = JoinSet::new();
    for number in 0..EVICTORS {
        let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(number as u64));
        let pods: Api<Pod> = Api::namespaced(cluster.client(&User::admin()), &namespace);
        evictors.spawn(evict_until_stopped(pods, witness.clone(), tally.clone(), rng));
    }
    inject_faults(&cluster, &mut replicas, ChaCha8Rng::seed_from_u64(seed)).await;
    tally.stopped.store(true, Ordering::Relaxed);
    while let Some(ended) = evictors.join_next().await {
        ended.expect("an evictor");
    }

    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    let (admitted, refused, failed) = (count(&tally.admitted), count(&tally.refused), count(&tally.failed));
    let (events, lists) = witness.counts();
    let violations = witness.below(PODS - 1);
    println!(
        "{admitted} evictions admitted, {refused} refused, {failed} failed; {events} events, {lists} lists"
    );
    if !violations.is_empty() {
        for budget in witness.ever_below(PODS - 1) {
            let (events, logged) =
                (chronicle.about(&budget), replicas.log_lines_about(&format!("/{budget}-")));
            println!("{budget} was broken:\n{}\n{}", events.join("\n"), logged.join("\n"));
        }
        panic!("budgets were broken: {violations:#?}");
    }
    assert!(admitted >= BUDGETS && refused > 0, "{admitted} admitted, {refused} refused: nothing was tried");

    let settled = Instant::now();
    eventually("every claim is gone", || async {
        let budgets = cluster.wire().get(&budgets_path(&namespace)).await.expect(200);
        let held = |budget: &&Value| budget["status"]["claims"].as_object().is_some_and(|c| !c.is_empty());
        let holding: Vec<Value> = budgets["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(held)
            .map(|b| b["status"]["claims"].clone())
            .collect();
        if holding.is_empty() { Ok(()) } else { Err(holding) }
    })
    .await;
    println!("every claim was gone after {:?}", settled.elapsed());
    let violations = witness.below(PODS - 1);
    assert!(violations.is_empty(), "budgets were broken: {violations:#?}");
}

#[derive(Default)]
struct Tally {
    stopped: AtomicBool,
    admitted: AtomicUsize,
    refused: AtomicUsize,
    failed: AtomicUsize,
}

fn budgets_path(namespace: &str) -> String {
    format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets")
}

/// Twenty ReplicaSets, each under a budget that allows one pod to be down.
///
/// The budgets decide deletes too: if the API server ends while the ReplicaSet controller creates a pod, the controller may
/// create a second one, and later delete a pod that it has too many.
async fn set_up(cluster: &Cluster) -> String {
    for node in ["node-1", "node-2", "node-3", "node-4"] {
        cluster.actors().nodes().add(node).await.expect("a node");
    }
    let namespace = cluster.namespace("storm").await.expect("a namespace");
    let wire = cluster.wire();
    for number in 0..BUDGETS {
        let app = format!("web-{number}");
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": app},
            "spec": {
                "replicas": PODS,
                "selector": {"matchLabels": {"app": app}},
                "template": {
                    "metadata": {"labels": {"app": app}},
                    "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "web", "image": "web:1"}]},
                },
            },
        });
        wire.post(&format!("/apis/apps/v1/namespaces/{namespace}/replicasets"), &set).await.expect(201);
        let rule =
            if number % 2 == 0 { ("maxUnavailable", json!(1)) } else { ("minAvailable", json!("80%")) };
        let budget = json!({
            "apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget", "metadata": {"name": app},
            "spec": {
                "selector": {"matchLabels": {"app": app}},
                "operations": ["Evict", "Delete"],
                rule.0: rule.1,
            },
        });
        wire.post(&budgets_path(&namespace), &budget).await.expect(201);
    }
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), &namespace);
    eventually("all pods are ready", || async {
        let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let ready = all.iter().filter(|pod| is_ready(pod)).count();
        if ready == BUDGETS * PODS { Ok(()) } else { Err(format!("{ready} of {}", all.len())) }
    })
    .await;
    eventually("all budgets allow one", || async {
        let budgets = wire.get(&budgets_path(&namespace)).await.expect(200);
        let all = budgets["items"].as_array().cloned().unwrap_or_default();
        let open = |budget: &&Value| {
            has_condition(&budget["status"], "Enforced", "True")
                && budget["status"]["disruptionsAllowed"] == 1
        };
        let count = all.iter().filter(open).count();
        if count == BUDGETS { Ok(()) } else { Err(format!("{count} of {BUDGETS}")) }
    })
    .await;
    namespace
}

/// Evicts one pod after the other until it is stopped.
async fn evict_until_stopped(pods: Api<Pod>, witness: Arc<Witness>, tally: Arc<Tally>, mut rng: ChaCha8Rng) {
    while !tally.stopped.load(Ordering::Relaxed) {
        let Some(pod) = witness.healthy_pods().choose(&mut rng).cloned() else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let params = EvictParams::default();
        let evicted = tokio::time::timeout(Duration::from_secs(30), pods.evict(&pod, &params));
        let counter = match evicted.await {
            Ok(Ok(_)) => &tally.admitted,
            Ok(Err(Error::Api(status))) if status.code == 429 => &tally.refused,
            // The pod is gone, or replaced by another of that name.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => continue,
            Ok(Err(_)) | Err(_) => &tally.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(rng.random_range(5..100))).await;
    }
}

/// Kills and stops servers, cuts watches, restarts the API server.
async fn inject_faults(cluster: &Cluster, replicas: &mut Replicas, mut rng: ChaCha8Rng) {
    let end = Instant::now() + STORM;
    let mut restarts = 0;
    while Instant::now() < end {
        let slot = rng.random_range(0..REPLICAS);
        match rng.random_range(0..10) {
            0..4 => {
                println!("kill {slot}");
                replicas.kill(slot);
                pause(&mut rng, 100..1500).await;
                replicas.fill(slot).await;
            }
            4..8 => {
                println!("stop {slot}");
                replicas.signal(slot, "STOP");
                // Sometimes longer than the time after which the other servers consider it dead.
                let long = rng.random_bool(0.2);
                pause(&mut rng, if long { 12_000..16_000 } else { 200..3000 }).await;
                replicas.signal(slot, "CONT");
            }
            _ => match (cluster.embedded(), cluster.control_plane()) {
                (Some(server), _) => {
                    println!("cut watches");
                    server.faults().expire_watches(quorate_devcluster::apiserver::RequestFilter::any());
                }
                (_, Some(plane)) if restarts < 2 => {
                    println!("restart the API server");
                    restarts += 1;
                    plane.restart_api_server().await.expect("an API server");
                }
                _ => {}
            },
        }
        for slot in 0..REPLICAS {
            // A server that was considered dead exits, and is restarted, as a container would be.
            if let Some(status) = replicas.has_ended(slot) {
                println!("{slot} ended with {status}");
                replicas.fill(slot).await;
            }
        }
        pause(&mut rng, 200..1500).await;
    }
    replicas.until_ready(REPLICAS).await;
}

async fn pause(rng: &mut ChaCha8Rng, milliseconds: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(milliseconds))).await;
}
