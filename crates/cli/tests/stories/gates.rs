//! The feature gate for groups: switched off and on while a claim is outstanding, and different between servers.

use std::collections::BTreeSet;

use quorate_server::Gates;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, condition, denial};
use crate::quorate::{Quorate, install};
use crate::replicas::Replicas;

quorate_testbed::stories!(Whole:
    a_claim_survives_switching_the_gate_for_groups,
    servers_with_different_gates_admit_one_group,
);

/// Three groups of two; one group may be down.
async fn three_groups(cluster: &Cluster) -> TestNamespace {
    let ns = TestNamespace::with_manual_pods(cluster, "gates").await;
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            ns.create_pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    ns.create_budget("shard", spec()).await.expect(201);
    ns
}

fn spec() -> Value {
    json!({
        "selector": {"matchLabels": {"app": "shard"}}, "minAvailable": 2,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2},
    })
}

/// The status and decisions of a server with the gate on or off.
struct Row {
    groups: bool,
    /// Units: allowed, healthy, desired, expected.
    numbers: [u64; 4],
    configured: &'static str,
    /// Pods, and whether a dry run of an eviction of each is allowed.
    decisions: &'static [(&'static str, bool)],
}

async fn a_claim_survives_switching_the_gate_for_groups(cluster: Cluster) {
    install(&cluster).await;
    let mut quorate = Some(Quorate::start_with(&cluster, |_| {}).await);
    let ns = three_groups(&cluster).await;
    ns.await_allowed("shard", 1).await;
    // Admitted by Quorate and then rejected by the API server: the claim stays for the whole story.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("a0", later, "").await.code, 409);
    let on = Row {
        groups: true,
        numbers: [0, 2, 2, 3],
        configured: "ValidConfig",
        decisions: &[("a0", true), ("a1", true), ("b0", false)],
    };
    // Six pods, of which one is claimed; two must stay.
    let off = Row {
        groups: false,
        numbers: [3, 5, 2, 6],
        configured: "FeatureDisabled",
        decisions: &[("a0", true), ("a1", true), ("b0", true)],
    };
    for row in [&on, &off, &on] {
        if let Some(quorate) = quorate.take() {
            quorate.end().await;
        }
        let gates = Gates { multi_pod_pdbs: row.groups, ..Gates::default() };
        quorate = Some(Quorate::start_with(&cluster, |options| options.gates = gates).await);
        ns.await_status("shard", "the numbers are those of the gate", |status| {
            let names = [
                "disruptionsAllowedReplicas",
                "currentHealthyReplicas",
                "desiredHealthyReplicas",
                "expectedReplicas",
            ];
            names.map(|name| status[name].as_u64()) == row.numbers.map(Some)
                && condition(status, "BudgetConfigured")["reason"] == row.configured
                && status["claims"].as_object().is_some_and(|claims| claims.len() == 1)
        })
        .await;
        for (pod, allowed) in row.decisions {
            // The status may have had these numbers before. The decision changes only when the API server calls the
            // new server and that server is ready.
            eventually(&format!("the eviction of {pod} is allowed: {allowed}"), || async {
                let answer = ns.evict_with(pod, json!({"dryRun": ["All"]}), "").await;
                let says = if answer.code == 429 { denial(&answer) } else { String::new() };
                let fits =
                    if *allowed { answer.code == 201 } else { says.contains("/shard keeps 2 of 3 groups") };
                if fits { Ok(()) } else { Err(answer.body) }
            })
            .await;
        }
    }
}

/// During a rolling update some servers have the gate and some do not. Each decides by its own rule, and all see the
/// same claims: with room for one group, and so for one pod, never more than one group goes down.
async fn servers_with_different_gates_admit_one_group(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2, &[]).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "mixed").await;
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            ns.create_pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1, "expectedReplicas": 3,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2},
    });
    ns.create_budget_allowing("shard", spec, 1).await;
    replicas.kill(1);
    replicas.fill_with(1, &["--feature-gates=MultiPodPDBs=false"]).await;
    replicas.until_ready(2).await;
    // The API server selects which server it calls. Usually it keeps its connection to one server.
    let mut down = BTreeSet::new();
    for _ in 0..5 {
        down.extend(evict_all(&ns).await);
    }
    assert!(down.len() <= 1, "one group may be down: {down:?}");

    // Without the gate the number of expected pods is unknown, so that server admits nothing. The other one does.
    replicas.kill(1);
    replicas.until_ready(1).await;
    if down.is_empty() {
        let first = eventually("a group goes down", || async {
            let answer = ns.evict("a0").await;
            if answer.code == 201 { Ok("a") } else { Err(answer.body) }
        });
        down.insert(first.await);
    }
    down.extend(evict_all(&ns).await);
    assert_eq!(down.len(), 1, "one group may be down: {down:?}");
}

/// Evicts every pod, and returns the groups of those that were admitted.
async fn evict_all(ns: &TestNamespace) -> BTreeSet<&'static str> {
    let mut down = BTreeSet::new();
    for pod in ["a0", "b0", "c0", "a1", "b1", "c1"] {
        let answer = ns.evict(pod).await;
        match answer.code {
            201 => drop(down.insert(&pod[..1])),
            404 => {}
            _ => drop(denial(&answer)),
        }
    }
    down
}
