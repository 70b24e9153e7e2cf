//! `kubectl drain` of a node with pods of several groups.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::ListParams;
use quorate_testbed::Cluster;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::fixture::{GROUP, LLM, TestNamespace, denials};
use crate::witness::{HealthSample, Witness};

quorate_testbed::stories!(Whole:
    a_drain_takes_one_group_at_a_time,
    two_drains_at_once_keep_two_groups_whole,
    a_budget_recreated_during_a_drain_keeps_two_groups_whole,
);

async fn a_drain_takes_one_group_at_a_time(cluster: Cluster) {
    let ns = TestNamespace::with_llm(cluster, json!({})).await;
    let node = node_with_most_groups(&ns).await;
    let witness = Witness::start(&ns.cluster, &ns.name, GROUP).await;
    let stderr = ns.drain(&node).await;

    let denials = denials(&stderr);
    assert!(!denials.is_empty(), "the drain must be denied");
    for denial in &denials {
        let of = format!("{}/llm keeps 2 of 3 groups: group ", ns.name);
        assert!(denial.starts_with(&of), "{denial}");
        assert!(denial.contains(" would be the second one down (group "), "{denial}");
        assert!(denial.contains("). Waits for group ") && denial.ends_with('.'), "{denial}");
    }

    ns.await_ready_pods(9).await;
    let samples = one_group_at_a_time(&witness);
    let version = |text: &str| text.parse::<u64>().expect("a version is a number");
    assert!(samples.windows(2).all(|pair| version(&pair[0].version) <= version(&pair[1].version)));
    assert!(!groups_by_node(&ns).await.contains_key(&node), "something is left on {node}");
    ns.await_status(LLM, "the budget is at rest", |status| {
        status["claims"] == json!({})
            && status["disruptionsAllowedReplicas"] == 1
            && status["currentHealthyReplicas"] == 3
            && status["expectedReplicas"] == 3
            && status.get("disruptedPods").is_none()
    })
    .await;
    // The ledger counts the writes of claims: at least one for each group that was on the node.
    let ledger = ns.budget_status(LLM).await["ledger"].as_u64();
    assert!(ledger.is_some_and(|ledger| ledger >= 2), "{ledger:?}");
}

async fn two_drains_at_once_keep_two_groups_whole(cluster: Cluster) {
    let ns = TestNamespace::with_llm(cluster, json!({})).await;
    let nodes: Vec<String> = groups_by_node(&ns).await.into_keys().take(2).collect();
    // Otherwise the first drain could move a pod to the second node just before that one is cordoned.
    let cordoned = ns.kubectl.run(&["cordon", &nodes[0], &nodes[1]]).await.expect("kubectl");
    assert!(cordoned.success, "{}{}", cordoned.stdout, cordoned.stderr);
    let witness = Witness::start(&ns.cluster, &ns.name, GROUP).await;
    tokio::join!(ns.drain(&nodes[0]), ns.drain(&nodes[1]));
    ns.await_ready_pods(9).await;
    one_group_at_a_time(&witness);
    let left = groups_by_node(&ns).await;
    assert!(nodes.iter().all(|node| !left.contains_key(node)), "something is left: {left:?}");
}

/// The second budget knows what the first one admitted: while that group is down, no other group goes down.
async fn a_budget_recreated_during_a_drain_keeps_two_groups_whole(cluster: Cluster) {
    let ns = TestNamespace::with_llm(cluster, json!({})).await;
    let node = node_with_most_groups(&ns).await;
    let witness = Witness::start(&ns.cluster, &ns.name, GROUP).await;
    let args = ["drain", &node, "--ignore-daemonsets", "--timeout=120s"];
    let mut drain = ns.kubectl.command(&args).spawn().expect("kubectl");
    let mut stderr = BufReader::new(drain.stderr.take().expect("its output"));
    let mut output = String::new();
    while !output.contains("will retry after") {
        let read = stderr.read_line(&mut output).await.expect("a line");
        assert!(read > 0, "the drain must be denied: {output}");
    }
    // One group goes down, another waits. Without a budget nothing is denied, so the drain is paused meanwhile.
    signal(&drain, "STOP").await;
    let first = ns.budget(LLM).await;
    ns.delete_budget(LLM).await;
    ns.create_budget(LLM, first["spec"].clone()).await.expect(201);
    signal(&drain, "CONT").await;

    stderr.read_to_string(&mut output).await.expect("the rest");
    let ended = drain.wait().await.expect("an end");
    assert!(ended.success() || output.contains("does not match the UID in record"), "{output}");
    ns.drain(&node).await;
    ns.await_ready_pods(9).await;
    one_group_at_a_time(&witness);
    assert!(!groups_by_node(&ns).await.contains_key(&node), "something is left on {node}");
    let second = ns.budget(LLM).await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    ns.await_status(LLM, "the second one is at rest", |status| {
        status["claims"] == json!({}) && status["disruptionsAllowedReplicas"] == 1
    })
    .await;
}

async fn signal(child: &Child, name: &str) {
    let id = child.id().expect("a process that runs").to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().await.expect("kill");
    assert!(sent.success(), "{name} was not sent");
}

/// What the witness saw: at least one group was down, and never two at once.
fn one_group_at_a_time(witness: &Witness) -> Vec<HealthSample> {
    assert_eq!(witness.counts().1, 1, "the watch broke off");
    let samples = witness.samples();
    let too_few: Vec<String> =
        samples.iter().filter(|sample| sample.whole(3) < 2).map(ToString::to_string).collect();
    assert!(too_few.is_empty(), "two groups were down at once: {too_few:#?}");
    assert!(samples.iter().any(|sample| sample.whole(3) == 2), "nothing was drained");
    samples
}

async fn groups_by_node(ns: &TestNamespace) -> BTreeMap<String, BTreeSet<String>> {
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in ns.pods.list(&ListParams::default()).await.expect("a list") {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        nodes.entry(node).or_default().insert(pod.labels().get(GROUP).cloned().unwrap_or_default());
    }
    nodes
}

async fn node_with_most_groups(ns: &TestNamespace) -> String {
    let nodes = groups_by_node(ns).await;
    let (node, groups) = nodes.iter().max_by_key(|(_, groups)| groups.len()).expect("a node");
    assert!(groups.len() >= 2, "no node has pods of two groups: {nodes:?}");
    node.clone()
}
