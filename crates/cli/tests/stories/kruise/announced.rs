//! Updates that a controller announces in the status of the pod before it makes them.

use std::time::Duration;

use quorate_devcluster::actors::Timing;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use super::clone_set::{CloneSet, GATE, is_complete};
use crate::fixture::{TestNamespace, denial, spec_for_app};
use crate::quorate::Quorate;
use crate::witness::Witness;

quorate_testbed::stories!(Whole:
    two_clone_sets_under_one_budget_keep_eight_pods,
    an_announced_update_counts_until_it_is_over,
    a_disruption_budget_decides_an_announced_update,
    a_lifecycle_hook_that_makes_pods_unready_is_decided,
);

/// Creates the pods of some CloneSets, with the labels `app` and `set`, and opens their readiness gates.
async fn pods(ns: &TestNamespace, sets: &[&str], each: usize) {
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
            ns.wire.post(&ns.path("v1", "pods"), &pod).await.expect(201);
        }
    }
    for set in sets {
        let clone_set = CloneSet { ns, name: set };
        eventually(&format!("{set} is ready"), || clone_set.reconcile("web:1")).await;
    }
}

async fn start(cluster: &Cluster) -> (Quorate, TestNamespace) {
    let quorate = Quorate::start(cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    let timing = Timing { start: Duration::from_millis(200), ..Timing::default() };
    cluster.actors().kubelets().set_timing(timing);
    (quorate, TestNamespace::with_manual_pods(cluster, "announced").await)
}

/// The CloneSets have no limit: the budget alone keeps eight of the ten pods.
async fn two_clone_sets_under_one_budget_keep_eight_pods(cluster: Cluster) {
    let (_quorate, ns) = start(&cluster).await;
    pods(&ns, &["blue", "green"], 5).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 8), 2).await;
    let witness = Witness::start(&cluster, &ns.name, "app").await;
    let update = async |name: &str| {
        let clone_set = CloneSet { ns: &ns, name };
        eventually(&format!("{name} is updated"), || clone_set.reconcile("web:2")).await;
    };
    tokio::join!(update("blue"), update("green"));
    let (events, _) = witness.counts();
    let violations = witness.below(8);
    assert!(violations.is_empty() && events > 0, "{events} events, {violations:#?}");
    ns.await_pub_status("web", "it is at rest", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 2
    })
    .await;
}

/// One pod at a time: the status of the budget and its denials, from the announcement to the end of the update.
async fn an_announced_update_counts_until_it_is_over(cluster: Cluster) {
    let (_quorate, ns) = start(&cluster).await;
    pods(&ns, &["blue"], 3).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 1).await;
    let blue = CloneSet { ns: &ns, name: "blue" };
    let pod = |number: usize| json!({"metadata": {"name": format!("blue-{number}")}});
    // Dry runs are not charged, so all of them are allowed.
    let dry_run = async |number: usize, change: Value| {
        let path = ns.pod_path(&format!("blue-{number}/status?dryRun=All"));
        ns.wire
            .patch(&path, quorate_testbed::Patch::Strategic, &json!({"status": {"conditions": [change]}}))
            .await
    };
    let unready = || json!({"type": GATE, "status": "False"});
    let before = ns.pub_status("web").await;
    for number in 0..3 {
        dry_run(number, unready()).await.expect(200);
    }
    assert_eq!(ns.pub_status("web").await["ledger"], before["ledger"]);

    blue.set_gate(&pod(0), "False").await.expect("room for one");
    let refused = blue.set_gate(&pod(1), "False").await.expect_err("no room for two");
    assert!(refused.contains("PodUnavailableBudget") && refused.contains("web"), "{refused}");
    // Other conditions report health, and the same condition with status True is not an announcement.
    dry_run(1, json!({"type": "example.com/lb", "status": "False"})).await.expect(200);
    dry_run(1, json!({"type": GATE, "status": "True"})).await.expect(200);

    // Announced and then not done: the gate opens again, and the next pod may be updated.
    blue.set_gate(&pod(0), "True").await.expect("no announcement");
    ns.await_pub_status("web", "nothing was updated", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;
    blue.set_gate(&pod(1), "False").await.expect("room for one");
    // If the pod is deleted meanwhile, its claim is removed.
    ns.delete_pod("blue-1").await.expect(200);
    ns.await_pub_status("web", "its claim is gone", |status| status["claims"] == json!({})).await;
    blue.set_gate(&pod(2), "False").await.expect_err("two would be down");
}

/// A DisruptionBudget decides announcements too, if `Update` is among its operations.
async fn a_disruption_budget_decides_an_announced_update(cluster: Cluster) {
    let (_quorate, ns) = start(&cluster).await;
    pods(&ns, &["blue"], 3).await;
    let mut spec = spec_for_app("web", "minAvailable", 2);
    spec["operations"] = json!(["Evict", "Delete", "Update"]);
    ns.create_budget_allowing("web", spec, 1).await;
    ns.await_update_webhook().await;
    let blue = CloneSet { ns: &ns, name: "blue" };
    let pod = |number: usize| json!({"metadata": {"name": format!("blue-{number}")}});
    blue.set_gate(&pod(0), "False").await.expect("room for one");
    let claimed = |status: &Value| {
        let claims = status["claims"].as_object().into_iter().flatten();
        let of: Vec<&Value> = claims.map(|(_, claim)| &claim["pod"]).collect();
        of == ["blue-0"] && status["disruptionsAllowed"] == 0
    };
    ns.await_status("web", "the announcement is charged", claimed).await;
    let no_room = async || {
        let refused = blue.set_gate(&pod(1), "False").await.expect_err("no room for two");
        assert!(refused.contains(&format!("{}/web keeps 2 of 3 pods", ns.name)), "{refused}");
        denial(&ns.set_image("blue-1", "web:2").await);
        denial(&ns.evict("blue-1").await);
        denial(&ns.delete_pod("blue-1").await);
    };
    no_room().await;
    // The new container runs, but the controller has not opened the gate: the update is not over.
    blue.set_image(&pod(0), "web:2").await.expect("it was announced");
    eventually("the container is replaced", || async {
        let pod = ns.wire.get(&ns.pod_path("blue-0")).await.expect(200);
        if is_complete(&pod) { Ok(()) } else { Err(pod["status"].clone()) }
    })
    .await;
    ns.await_status("web", "it is still charged", claimed).await;
    no_room().await;

    blue.set_gate(&pod(0), "True").await.expect("no announcement");
    ns.await_status("web", "it is over", |status| {
        status["claims"] == json!({}) && status["disruptionsAllowed"] == 1
    })
    .await;
    eventually("the others are updated", || blue.reconcile("web:2")).await;
}

/// A hook with `markPodNotReady` closes another gate first. The message says whether an update or a deletion follows.
async fn a_lifecycle_hook_that_makes_pods_unready_is_decided(cluster: Cluster) {
    const HOOK: &str = "KruisePodReady";
    let (_quorate, ns) = start(&cluster).await;
    let pods = ns.path("v1", "pods");
    let set = async |number: usize, status: &str, key: &str| {
        let message = json!([{"userAgent": "Lifecycle", "key": key}]).to_string();
        let condition = json!({"type": HOOK, "status": status, "message": message});
        let patch = json!({"status": {"conditions": [condition]}});
        let path = format!("{pods}/blue-{number}/status");
        ns.wire.patch(&path, quorate_testbed::Patch::Strategic, &patch).await
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
        ns.wire.post(&pods, &pod).await.expect(201);
        set(number, "True", "").await.expect(200);
    }
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 2), 1).await;

    set(0, "False", "preUpdateHook").await.expect(200);
    let refused = set(1, "False", "preUpdateHook").await;
    assert_eq!(refused.code, 429, "{}", refused.body);
    let status = ns
        .await_pub_status("web", "an update is noted", |s| s["unavailablePods"]["blue-0"].is_string())
        .await;
    assert!(status["disruptedPods"].is_null(), "{status}");
    set(0, "True", "").await.expect(200);
    ns.await_pub_status("web", "the hook is over", |status| {
        status["claims"] == json!({}) && status["unavailableAllowed"] == 1
    })
    .await;

    set(1, "False", "preDeleteHook").await.expect(200);
    assert_eq!(set(2, "False", "preDeleteHook").await.code, 429);
    ns.await_pub_status("web", "a deletion is noted", |status| status["disruptedPods"]["blue-1"].is_string())
        .await;
    ns.delete_pod("blue-1").await.expect(200);
    ns.await_pub_status("web", "the pod is gone", |status| status["claims"] == json!({})).await;
}
