//! `kubectl drain` of a node with pods of several groups.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::ListParams;
use quorate_testbed::Cluster;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::group_log::{GroupLog, Moment};
use crate::scene::{GROUP, Scene};

quorate_testbed::stories!(Whole:
    a_drain_takes_one_group_at_a_time,
    two_drains_at_once_keep_two_groups_whole,
    a_budget_is_made_again_in_the_middle_of_a_drain,
);

async fn a_drain_takes_one_group_at_a_time(cluster: Cluster) {
    let scene = Scene::set(cluster, json!({})).await;
    let node = node_with_most_groups(&scene).await;
    let log = GroupLog::begin(&scene.cluster, &scene.namespace, GROUP, 3).await;
    let drained = scene.kubectl.run(&["drain", &node, "--ignore-daemonsets", "--timeout=120s"]).await;
    let drained = drained.expect("kubectl");
    println!("$ kubectl drain {node}\n{}{}", drained.stdout, drained.stderr);

    assert!(drained.success, "the drain must end");
    let refusals = refusals(&drained.stderr);
    assert!(!refusals.is_empty(), "the drain must be held up");
    for refusal in &refusals {
        let of = format!("{}/llm keeps 2 of 3 groups: group ", scene.namespace);
        assert!(refusal.starts_with(&of), "{refusal}");
        assert!(refusal.contains(" would be the second one down (group "), "{refusal}");
        assert!(refusal.contains("). Waits for group ") && refusal.ends_with('.'), "{refusal}");
    }

    scene.ready(9).await;
    let moments = one_group_at_a_time(&log);
    let version = |text: &str| text.parse::<u64>().expect("a version is a number");
    assert!(moments.windows(2).all(|pair| version(&pair[0].version) <= version(&pair[1].version)));
    assert!(!groups_by_node(&scene).await.contains_key(&node), "something is left on {node}");
    scene
        .status_is("the budget is at rest", |status| {
            status["claims"] == json!({})
                && status["disruptionsAllowedReplicas"] == 1
                && status["currentHealthyReplicas"] == 3
                && status["expectedReplicas"] == 3
                && status.get("disruptedPods").is_none()
        })
        .await;
    // Whoever looks later sees how much was admitted: at least one write for each group that was on the node.
    let ledger = scene.status().await["ledger"].as_u64();
    assert!(ledger.is_some_and(|ledger| ledger >= 2), "{ledger:?}");
}

async fn two_drains_at_once_keep_two_groups_whole(cluster: Cluster) {
    let scene = Scene::set(cluster, json!({})).await;
    let nodes: Vec<String> = groups_by_node(&scene).await.into_keys().take(2).collect();
    // Otherwise the first drain could move a pod to the second node just before that one is cordoned.
    let cordoned = scene.kubectl.run(&["cordon", &nodes[0], &nodes[1]]).await.expect("kubectl");
    assert!(cordoned.success, "{}{}", cordoned.stdout, cordoned.stderr);
    let log = GroupLog::begin(&scene.cluster, &scene.namespace, GROUP, 3).await;
    let drain = async |node: &str| {
        let args = ["drain", node, "--ignore-daemonsets", "--timeout=150s"];
        let mut drained = scene.kubectl.run(&args).await.expect("kubectl");
        // An eviction is pinned to the pod that was decided on. If a new pod takes the name at that moment, the API server
        // answers with a conflict. kubectl gives up then, and its user repeats the command.
        while drained.stderr.contains("does not match the UID in record") {
            drained = scene.kubectl.run(&args).await.expect("kubectl");
        }
        assert!(drained.success, "the drain of {node} must end: {}{}", drained.stdout, drained.stderr);
    };
    tokio::join!(drain(&nodes[0]), drain(&nodes[1]));
    scene.ready(9).await;
    one_group_at_a_time(&log);
    let left = groups_by_node(&scene).await;
    assert!(nodes.iter().all(|node| !left.contains_key(node)), "something is left: {left:?}");
}

/// What the first budget admitted is not forgotten by the second: while that group is down no other goes.
async fn a_budget_is_made_again_in_the_middle_of_a_drain(cluster: Cluster) {
    let scene = Scene::set(cluster, json!({})).await;
    let node = node_with_most_groups(&scene).await;
    let log = GroupLog::begin(&scene.cluster, &scene.namespace, GROUP, 3).await;
    let args = ["drain", &node, "--ignore-daemonsets", "--timeout=120s"];
    let mut drain = scene.kubectl.command(&args).spawn().expect("kubectl");
    let mut stderr = BufReader::new(drain.stderr.take().expect("what it says"));
    let mut said = String::new();
    while !said.contains("will retry after") {
        let read = stderr.read_line(&mut said).await.expect("a line");
        assert!(read > 0, "the drain must be held up: {said}");
    }
    // One group goes, another waits. Where no budget is nothing is kept, so the drain does not ask while there is none.
    signal(&drain, "STOP").await;
    let first = scene.budget().await;
    scene.make_budget_again(&first).await;
    signal(&drain, "CONT").await;

    stderr.read_to_string(&mut said).await.expect("the rest");
    let ended = drain.wait().await.expect("an end");
    assert!(ended.success(), "the drain must end: {said}");
    scene.ready(9).await;
    one_group_at_a_time(&log);
    assert!(!groups_by_node(&scene).await.contains_key(&node), "something is left on {node}");
    let second = scene.budget().await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    scene
        .status_is("the second one is at rest", |status| {
            status["claims"] == json!({}) && status["disruptionsAllowedReplicas"] == 1
        })
        .await;
}

async fn signal(child: &Child, name: &str) {
    let id = child.id().expect("a process that runs").to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().await.expect("kill");
    assert!(sent.success(), "{name} was not sent");
}

/// What the log saw: something went, and never two groups at once.
fn one_group_at_a_time(log: &GroupLog) -> Vec<Moment> {
    let moments = log.moments();
    let too_few: Vec<String> =
        moments.iter().filter(|moment| moment.whole < 2).map(ToString::to_string).collect();
    assert!(too_few.is_empty(), "two groups were down at once: {too_few:#?}");
    assert!(moments.iter().any(|moment| moment.whole == 2), "nothing was drained");
    moments
}

async fn groups_by_node(scene: &Scene) -> BTreeMap<String, BTreeSet<String>> {
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in scene.pods.list(&ListParams::default()).await.expect("a list") {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        nodes.entry(node).or_default().insert(pod.labels().get(GROUP).cloned().unwrap_or_default());
    }
    nodes
}

async fn node_with_most_groups(scene: &Scene) -> String {
    let nodes = groups_by_node(scene).await;
    let (node, groups) = nodes.iter().max_by_key(|(_, groups)| groups.len()).expect("a node");
    assert!(groups.len() >= 2, "no node has pods of two groups: {nodes:?}");
    node.clone()
}

/// What our webhook said, from what kubectl printed of it.
fn refusals(stderr: &str) -> Vec<&str> {
    const DENIED: &str = "quorate.dev\" denied the request: ";
    stderr.lines().filter_map(|line| Some(line.split_once(DENIED)?.1.trim_end())).collect()
}
