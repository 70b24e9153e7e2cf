//! The gate for groups, switched off and on again with something admitted outstanding, and differing between servers.

use std::collections::BTreeSet;

use quorate_server::Gates;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::quorate::{Quorate, install};
use crate::replicas::Replicas;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole:
    the_gate_for_groups_goes_off_and_on,
    servers_that_differ_in_the_gate_admit_no_more_than_one_of_them_would,
);

fn reason<'a>(status: &'a Value, condition: &str) -> &'a str {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = conditions.iter().find(|c| c["type"] == condition);
    found.and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

/// Three groups of two; one group may be down.
async fn three_groups(cluster: &Cluster) -> Town {
    let town = Town::found(cluster, "gates").await;
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            town.pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    town.new_budget("shard", spec()).await.expect(201);
    town
}

fn spec() -> Value {
    json!({
        "selector": {"matchLabels": {"app": "shard"}}, "minAvailable": 2,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2},
    })
}

/// One row of the table: what the server says with the gate on or off.
struct Row {
    groups: bool,
    /// Units: allowed, healthy, desired, expected.
    numbers: [u64; 4],
    configured: &'static str,
    /// Pods, and whether each may be evicted, tried without doing it.
    decisions: &'static [(&'static str, bool)],
}

async fn the_gate_for_groups_goes_off_and_on(cluster: Cluster) {
    install(&cluster).await;
    let mut quorate = Some(Quorate::start_with(&cluster, |_| {}).await);
    let town = three_groups(&cluster).await;
    town.allows("shard", 1).await;
    // Admitted, and held up by the API server for a reason of its own: a claim that stands through all that follows.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("a0", later, "").await.code, 409);
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
        town.status_is("shard", "the numbers are those of the gate", |status| {
            let names = [
                "disruptionsAllowedReplicas",
                "currentHealthyReplicas",
                "desiredHealthyReplicas",
                "expectedReplicas",
            ];
            names.map(|name| status[name].as_u64()) == row.numbers.map(Some)
                && reason(status, "BudgetConfigured") == row.configured
                && status["claims"].as_object().is_some_and(|claims| claims.len() == 1)
        })
        .await;
        for (pod, allowed) in row.decisions {
            // The numbers may have been there before: until the API server asks the server that has just started,
            // and that one is ready, there is another answer.
            eventually(&format!("{pod} is let go: {allowed}"), || async {
                let answer = town.evict_with(pod, json!({"dryRun": ["All"]}), "").await;
                let says = if answer.code == 429 { refusal(&answer) } else { String::new() };
                let fits =
                    if *allowed { answer.code == 201 } else { says.contains("/shard keeps 2 of 3 groups") };
                if fits { Ok(()) } else { Err(answer.body) }
            })
            .await;
        }
    }
}

/// While servers are replaced one by one some have the gate and some do not. Each decides by its own rule on what all of
/// them admitted: with room for one group, and so for one pod, never more than one group goes down.
async fn servers_that_differ_in_the_gate_admit_no_more_than_one_of_them_would(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2, &[]).await;
    let town = Town::found(&cluster, "mixed").await;
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            town.pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1, "expectedReplicas": 3,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2},
    });
    town.budget("shard", spec, 1).await;
    replicas.kill(1);
    replicas.fill_with(1, &["--feature-gates=MultiPodPDBs=false"]).await;
    replicas.until_ready(2).await;
    // Whom the API server asks is its own affair: as a rule it stays with the server that it is connected to.
    let mut down = BTreeSet::new();
    for _ in 0..5 {
        down.extend(round(&town).await);
    }
    assert!(down.len() <= 1, "one group may be down: {down:?}");

    // Without the gate nobody knows how many pods there should be, so that server lets nobody go. The other does.
    replicas.kill(1);
    replicas.until_ready(1).await;
    if down.is_empty() {
        let first = eventually("a group goes down", || async {
            let answer = town.evict("a0").await;
            if answer.code == 201 { Ok("a") } else { Err(answer.body) }
        });
        down.insert(first.await);
    }
    down.extend(round(&town).await);
    assert_eq!(down.len(), 1, "one group may be down: {down:?}");
}

/// Asks for every pod, and says of which groups some were let go.
async fn round(town: &Town) -> BTreeSet<&'static str> {
    let mut down = BTreeSet::new();
    for pod in ["a0", "b0", "c0", "a1", "b1", "c1"] {
        let answer = town.evict(pod).await;
        match answer.code {
            201 => drop(down.insert(&pod[..1])),
            404 => {}
            _ => drop(refusal(&answer)),
        }
    }
    down
}
