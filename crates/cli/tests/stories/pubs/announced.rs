//! Updates that a controller announces in the pod's status before it makes them.

use std::time::Duration;

use quorate_devcluster::actors::Timing;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use super::clone_set::{CloneSet, GATE};
use super::over;
use crate::floor_log::FloorLog;
use crate::quorate::Quorate;
use crate::town::Town;

quorate_testbed::stories!(Whole:
    two_clone_sets_update_in_place_under_one_budget,
    an_announced_update_counts_until_it_is_over,
    a_lifecycle_hook_that_makes_pods_unready_is_decided,
);

/// The pods of some CloneSets, each with the label `app` and one `set`; their gates are open.
async fn pods(town: &Town, sets: &[&str], each: usize) {
    for set in sets {
        for number in 0..each {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("{set}-{number}"), "labels": {"app": "web", "set": set}},
                "spec": {
                    "terminationGracePeriodSeconds": 1, "readinessGates": [{"conditionType": GATE}],
                    "containers": [{"name": "main", "image": "web:1"}],
                },
            });
            town.wire.post(&format!("/api/v1/namespaces/{}/pods", town.namespace), &pod).await.expect(201);
        }
    }
    for set in sets {
        let clone_set = CloneSet { town, name: set };
        eventually(&format!("{set} is ready"), || clone_set.reconcile("web:1")).await;
    }
}

async fn scene(cluster: &Cluster) -> (Quorate, Town) {
    let quorate = Quorate::start(cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    let timing = Timing { start: Duration::from_millis(200), ..Timing::default() };
    cluster.actors().kubelets().set_timing(timing);
    (quorate, Town::found(cluster, "announced").await)
}

/// Neither CloneSet has a limit of its own: the budget alone keeps eight of the ten pods.
async fn two_clone_sets_update_in_place_under_one_budget(cluster: Cluster) {
    let (_quorate, town) = scene(&cluster).await;
    pods(&town, &["blue", "green"], 5).await;
    town.pub_over("web", over("web", "minAvailable", 8), 2).await;
    let log = FloorLog::begin(&cluster, &town.namespace, "app", 8);
    eventually("the log has begun", || async { if log.seen().1 == 1 { Ok(()) } else { Err("no list") } })
        .await;
    let update = async |name: &str| {
        let clone_set = CloneSet { town: &town, name };
        eventually(&format!("{name} is updated"), || clone_set.reconcile("web:2")).await;
    };
    tokio::join!(update("blue"), update("green"));
    let (events, _, violations) = log.seen();
    assert!(violations.is_empty() && events > 0, "{events} events, {violations:#?}");
    town.pub_is("web", "it is at rest", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 2
    })
    .await;
}

/// One pod at a time: what stands in the budget, and who is refused, from the announcement to the end.
async fn an_announced_update_counts_until_it_is_over(cluster: Cluster) {
    let (_quorate, town) = scene(&cluster).await;
    pods(&town, &["blue"], 3).await;
    town.pub_over("web", over("web", "minAvailable", 2), 1).await;
    let blue = CloneSet { town: &town, name: "blue" };
    let pod = |number: usize| json!({"metadata": {"name": format!("blue-{number}")}});
    // Tried, and not done: nothing is charged for that, and all may be tried.
    let dry_run = async |number: usize, change: Value| {
        let path = format!("/api/v1/namespaces/{}/pods/blue-{number}/status?dryRun=All", town.namespace);
        town.wire
            .patch(&path, quorate_testbed::Patch::Strategic, &json!({"status": {"conditions": [change]}}))
            .await
    };
    let unready = || json!({"type": GATE, "status": "False"});
    for number in 0..3 {
        dry_run(number, unready()).await.expect(200);
    }
    assert_eq!(town.pub_status("web").await["ledger"], 0);

    blue.set_gate(&pod(0), "False").await.expect("room for one");
    let refused = blue.set_gate(&pod(1), "False").await.expect_err("no room for two");
    assert!(refused.contains("PodUnavailableBudget") && refused.contains("web"), "{refused}");
    // Other conditions report health, and the same one on its way back is no announcement.
    dry_run(1, json!({"type": "example.com/lb", "status": "False"})).await.expect(200);
    dry_run(1, json!({"type": GATE, "status": "True"})).await.expect(200);

    // Announced, and then not done: the gate opens again, and the next one may go.
    blue.set_gate(&pod(0), "True").await.expect("no announcement");
    town.pub_is("web", "nothing was updated", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;
    blue.set_gate(&pod(1), "False").await.expect("room for one");
    // A pod that goes meanwhile takes its claim along.
    town.delete("blue-1").await.expect(200);
    town.pub_is("web", "its claim is gone", |status| status["claims"] == json!({})).await;
    blue.set_gate(&pod(2), "False").await.expect_err("two would be down");
}

/// A hook with `markPodNotReady` closes another gate first. The message says whether an update or a deletion follows.
async fn a_lifecycle_hook_that_makes_pods_unready_is_decided(cluster: Cluster) {
    const HOOK: &str = "KruisePodReady";
    let (_quorate, town) = scene(&cluster).await;
    let pods = format!("/api/v1/namespaces/{}/pods", town.namespace);
    let set = async |number: usize, status: &str, key: &str| {
        let message = json!([{"userAgent": "Lifecycle", "key": key}]).to_string();
        let condition = json!({"type": HOOK, "status": status, "message": message});
        let patch = json!({"status": {"conditions": [condition]}});
        let path = format!("{pods}/blue-{number}/status");
        town.wire.patch(&path, quorate_testbed::Patch::Strategic, &patch).await
    };
    for number in 0..3 {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("blue-{number}"), "labels": {"app": "web"}},
            "spec": {
                "terminationGracePeriodSeconds": 1, "readinessGates": [{"conditionType": HOOK}],
                "containers": [{"name": "main", "image": "web:1"}],
            },
        });
        town.wire.post(&pods, &pod).await.expect(201);
        set(number, "True", "").await.expect(200);
    }
    town.pub_over("web", over("web", "minAvailable", 2), 1).await;

    set(0, "False", "preUpdateHook").await.expect(200);
    let refused = set(1, "False", "preUpdateHook").await;
    assert_eq!(refused.code, 429, "{}", refused.body);
    let status =
        town.pub_is("web", "an update is noted", |s| s["unavailablePods"]["blue-0"].is_string()).await;
    assert!(status["disruptedPods"].is_null(), "{status}");
    set(0, "True", "").await.expect(200);
    town.pub_is("web", "the hook is over", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;

    set(1, "False", "preDeleteHook").await.expect(200);
    assert_eq!(set(2, "False", "preDeleteHook").await.code, 429);
    town.pub_is("web", "a deletion is noted", |status| status["disruptedPods"]["blue-1"].is_string()).await;
    town.delete("blue-1").await.expect(200);
    town.pub_is("web", "the pod is gone", |status| status["claims"] == json!({})).await;
}
