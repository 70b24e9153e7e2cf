//! `kubectl drain` of a node with pods of several groups.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use quorate_testbed::{Cluster, User, eventually};
use serde_json::{Value, json};

use crate::group_log::GroupLog;
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: a_drain_takes_one_group_at_a_time);

const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// Three groups of three over three nodes, one of which may be down.
async fn a_drain_takes_one_group_at_a_time(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    for node in ["node-1", "node-2", "node-3"] {
        cluster.actors().nodes().add(node).await.expect("a node");
    }
    let namespace = cluster.namespace("inference").await.expect("a namespace");
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), &namespace);
    create(&cluster, &namespace, "leaderworkerset.x-k8s.io/v1", "leaderworkersets", &llm()).await;
    ready(&pods, 9).await;
    create(&cluster, &namespace, "policy.quorate.dev/v1alpha1", "disruptionbudgets", &budget()).await;
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let enforced = ["wait", "--for=condition=Enforced", "dbu/llm", "-n", &namespace, "--timeout=30s"];
    let printed = kubectl.run(&enforced).await.expect("kubectl");
    assert!(printed.success, "{printed:?}");

    let node = node_with_most_groups(&pods).await;
    let log = GroupLog::begin(&cluster, &namespace, GROUP, 3).await;
    let drained =
        kubectl.run(&["drain", &node, "--ignore-daemonsets", "--timeout=120s"]).await.expect("kubectl");
    println!("$ kubectl drain {node}\n{}{}", drained.stdout, drained.stderr);

    assert!(drained.success, "the drain must end:\n{}{}", drained.stdout, drained.stderr);
    let refusals = refusals(&drained.stderr);
    assert!(!refusals.is_empty(), "the drain must be held up:\n{}", drained.stderr);
    for refusal in &refusals {
        let of = format!("{namespace}/llm keeps 2 of 3 groups: group ");
        assert!(refusal.starts_with(&of), "{refusal}");
        assert!(refusal.contains(" would be the second one down (group "), "{refusal}");
        assert!(refusal.contains(". Waits for group ") && refusal.ends_with('.'), "{refusal}");
    }

    ready(&pods, 9).await;
    let moments = log.moments();
    let fewest = moments.iter().map(|moment| moment.whole).min();
    let too_few: Vec<String> =
        moments.iter().filter(|moment| moment.whole < 2).map(ToString::to_string).collect();
    assert_eq!(fewest, Some(2), "{too_few:#?}");
    assert!(moments.windows(2).all(|pair| number(&pair[0].version) <= number(&pair[1].version)));
    assert!(groups_by_node(&pods).await.get(&node).is_none(), "nothing is left on {node}");
    let path = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets/llm");
    eventually("the budget is at rest", || async {
        let status = cluster.wire().get(&path).await.expect(200)["status"].clone();
        let at_rest = status["claims"] == json!({})
            && status["disruptionsAllowedReplicas"] == 1
            && status["currentHealthyReplicas"] == 3
            && status["expectedReplicas"] == 3
            && status.get("disruptedPods").is_none();
        if at_rest { Ok(()) } else { Err(status) }
    })
    .await;
    // Whoever looks later sees how much was admitted: at least one write for each group that was on the node.
    let ledger = cluster.wire().get(&path).await.expect(200)["status"]["ledger"].as_u64();
    assert!(ledger.is_some_and(|ledger| ledger >= 2), "{ledger:?}");
}

fn llm() -> Value {
    json!({
        "metadata": {"name": "llm"},
        "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 3, "workerTemplate": {
            "metadata": {"labels": {"app": "llm"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "serve", "image": "llm:1"}],
            },
        }}},
    })
}

fn budget() -> Value {
    json!({
        "metadata": {"name": "llm"},
        "spec": {
            "selector": {"matchLabels": {"app": "llm"}},
            "podGroupPolicy": {"groupLabelKey": GROUP},
            "maxUnavailable": 1,
        },
    })
}

async fn create(cluster: &Cluster, namespace: &str, version: &str, plural: &str, object: &Value) {
    let path = format!("/apis/{version}/namespaces/{namespace}/{plural}");
    let mut object = object.clone();
    object["apiVersion"] = json!(version);
    object["kind"] = match plural {
        "leaderworkersets" => json!("LeaderWorkerSet"),
        _ => json!("DisruptionBudget"),
    };
    cluster.wire().post(&path, &object).await.expect(201);
}

/// Waits until there are exactly so many pods and all are ready.
async fn ready(pods: &Api<Pod>, count: usize) {
    eventually(&format!("{count} pods are ready"), || async {
        let all = pods.list(&ListParams::default()).await.expect("a list").items;
        let states: Vec<String> =
            all.iter().map(|pod| format!("{} {}", pod.name_any(), is_ready(pod))).collect();
        if all.len() == count && all.iter().all(is_ready) { Ok(()) } else { Err(states) }
    })
    .await;
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

async fn groups_by_node(pods: &Api<Pod>) -> BTreeMap<String, BTreeSet<String>> {
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await.expect("a list") {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        nodes.entry(node).or_default().insert(pod.labels().get(GROUP).cloned().unwrap_or_default());
    }
    nodes
}

async fn node_with_most_groups(pods: &Api<Pod>) -> String {
    let nodes = groups_by_node(pods).await;
    let (node, groups) = nodes.iter().max_by_key(|(_, groups)| groups.len()).expect("a node");
    assert!(groups.len() >= 2, "no node has pods of two groups: {nodes:?}");
    node.clone()
}

/// What our webhook said, from what kubectl printed of it.
fn refusals(stderr: &str) -> Vec<&str> {
    const DENIED: &str = "admission webhook \"evictions.quorate.dev\" denied the request: ";
    stderr.lines().filter_map(|line| Some(line.split_once(DENIED)?.1.trim_end())).collect()
}

fn number(version: &str) -> u64 {
    version.parse().expect("a version is a number")
}
