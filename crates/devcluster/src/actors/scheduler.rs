//! The scheduler: binds pending pods to suitable nodes, and spreads the pods of one controller.
//!
//! It considers readiness, cordons, taints, the node selector, required node affinity, and the number of pods that a
//! node accepts. It ignores CPU, memory, pod affinity and topology spread constraints, and never preempts pods.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, Pod, Taint, Toleration};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::identities::SCHEDULER;
use super::kubelet::stamp;
use super::loads::{Load, Loads, spread_group};
use super::pods;
use super::queue::{Outcome, Queue};
use super::recorder::Recorder;
use super::request::{self, ErrorExt};

/// Number of parallel bindings.
const AT_ONCE: usize = 16;

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(SCHEDULER);
    let queue: Arc<Queue<Key>> = Queue::new();
    let scheduler = Arc::new(Scheduler {
        recorder: Recorder::new(client.clone(), "default-scheduler"),
        client,
        pods: context.view.pods().clone(),
        nodes: context.view.nodes().clone(),
        loads: Mutex::default(),
    });

    let (wake, of) = (queue.clone(), scheduler.clone());
    scheduler.pods.listen(move |before, after| {
        of.loads.lock().change(before.map(Arc::as_ref), after.map(Arc::as_ref));
        match after {
            Some(pod) if is_waiting(pod) => wake.add(Key::of(pod.as_ref())),
            Some(_) => {}
            // A node has room again, and pending pods may be waiting for it.
            None => wake_all(&of.pods, &wake),
        }
    });
    let (wake, of) = (queue.clone(), scheduler.clone());
    scheduler.nodes.listen(move |before, after| {
        if before.map(|node| takes(node)) != after.map(|node| takes(node)) {
            wake_all(&of.pods, &wake);
        }
    });
    context.tasks.spawn(async move {
        scheduler.pods.filled().await;
        scheduler.nodes.filled().await;
        let look = move |key: Key| {
            let scheduler = scheduler.clone();
            async move { scheduler.schedule(&key).await }
        };
        queue.work(AT_ONCE, look).await;
    });
}

fn wake_all(pods: &ObjectCache<Pod>, queue: &Queue<Key>) {
    for pod in pods.by_index("").iter().filter(|pod| is_waiting(pod)) {
        queue.add(Key::of(pod.as_ref()));
    }
}

/// The parts of a node that affect scheduling. Compared to distinguish relevant changes from heartbeats.
fn takes(
    node: &Node,
) -> (bool, bool, Vec<Taint>, Option<String>, std::collections::BTreeMap<String, String>) {
    let spec = node.spec.clone().unwrap_or_default();
    (
        node_is_ready(node),
        spec.unschedulable.unwrap_or(false),
        spec.taints.unwrap_or_default(),
        room_text(node),
        node.labels().clone(),
    )
}

struct Scheduler {
    client: Client,
    recorder: Recorder,
    pods: Arc<ObjectCache<Pod>>,
    nodes: Arc<ObjectCache<Node>>,
    loads: Mutex<Loads>,
}

impl Scheduler {
    async fn schedule(&self, key: &Key) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|pod| is_waiting(pod)) else { return Outcome::Done };
        let uid = pods::uid(pod.as_ref()).to_owned();
        let chosen = {
            // One decision at a time, so that no decision uses room that another one has just taken.
            let mut loads = self.loads.lock();
            if loads.is_assumed(&uid) {
                return Outcome::Done;
            }
            let chosen = self.choose(&pod, &loads);
            if let Ok(node) = &chosen {
                loads.assume(&pod, node);
            }
            chosen
        };
        let done = match chosen {
            Ok(node) => self.bind(key, &pod, &node).await,
            Err(reason) => self.explain(key, &pod, &reason).await,
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(error) => {
                self.loads.lock().settle(&uid);
                if error.is_not_found() {
                    return Outcome::Done;
                }
                tracing::debug!(%error, pod = %key, "scheduler will try again");
                Outcome::Failed
            }
        }
    }

    fn choose(&self, pod: &Pod, loads: &Loads) -> Result<String, String> {
        let spread_group = spread_group(pod);
        let nodes = self.nodes.all();
        let loads = nodes.iter().map(|node| (node.as_ref(), loads.of(&node.name_any(), spread_group)));
        choose(pod, &loads.collect::<Vec<_>>())
    }

    async fn bind(&self, key: &Key, pod: &Pod, node: &str) -> Result<(), kube::Error> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": pods::uid(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        request::post_to::<Pod>(&self.client, &(), key, "binding", &binding).await?;
        let message = format!("Successfully assigned {key} to {node}");
        self.recorder.normal(pod, &(), "Scheduled", &message).await;
        Ok(())
    }

    async fn explain(&self, key: &Key, pod: &Pod, reason: &str) -> Result<(), kube::Error> {
        let shown = pods::condition(pod, "PodScheduled");
        if shown.is_some_and(|shown| shown.status == "False" && shown.message.as_deref() == Some(reason)) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": pods::uid(pod)}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason,
            "lastTransitionTime": stamp(Timestamp::now()),
        }]}});
        let written = request::strategic::<Pod>(&self.client, &(), key, Some("status"), &patch).await?;
        self.pods.wrote(written);
        self.recorder.warn(pod, &(), "FailedScheduling", reason).await;
        Ok(())
    }
}

fn is_waiting(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    pods::node_of(pod).is_none()
        && pods::is_active(pod)
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        && spec.scheduler_name.as_deref().is_none_or(|name| name.is_empty() || name == "default-scheduler")
}

/// The node for this pod, or the reason why no node fits.
fn choose(pod: &Pod, nodes: &[(&Node, Load)]) -> Result<String, String> {
    let mut reasons: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    let mut fitting = Vec::new();
    for (node, load) in nodes {
        match obstacle(pod, node, *load) {
            None => fitting.push((load.same_group, load.pods, node.name_any())),
            Some(reason) => *reasons.entry(reason).or_default() += 1,
        }
    }
    fitting.sort();
    if let Some((_, _, name)) = fitting.into_iter().next() {
        return Ok(name);
    }
    let listed: Vec<_> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let listed = if listed.is_empty() { String::new() } else { format!(" {}.", listed.join(", ")) };
    Err(format!("0/{} nodes are available:{listed}", nodes.len()))
}

/// The reason why this pod cannot run on this node, if any.
fn obstacle(pod: &Pod, node: &Node, load: Load) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let node_spec = node.spec.clone().unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    if node.metadata.deletion_timestamp.is_some() || !node_is_ready(node) {
        return Some("node(s) were not ready".to_owned());
    }
    let cordoned = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if node_spec.unschedulable == Some(true) && !tolerations.iter().any(|t| tolerates(t, &cordoned)) {
        return Some("node(s) were unschedulable".to_owned());
    }
    let taints = node_spec.taints.iter().flatten();
    for taint in taints.filter(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute") {
        if !tolerations.iter().any(|toleration| tolerates(toleration, taint)) {
            return Some(format!("node(s) had untolerated taint {{{}}}", taint.key));
        }
    }
    let selected =
        spec.node_selector.iter().flatten().all(|(key, value)| node.labels().get(key) == Some(value));
    if !selected || !affinity_allows(pod, node) {
        return Some("node(s) didn't match Pod's node affinity/selector".to_owned());
    }
    let room = room_text(node).and_then(|text| text.parse().ok()).unwrap_or(110_usize);
    (load.pods >= room).then(|| "Too many pods".to_owned())
}

fn affinity_allows(pod: &Pod, node: &Node) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let Some(required) =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
    else {
        return true;
    };
    required.node_selector_terms.iter().any(|term| {
        let labels = term.match_expressions.iter().flatten().all(|wanted| holds(wanted, node.labels()));
        let name = std::collections::BTreeMap::from([("metadata.name".to_owned(), node.name_any())]);
        let fields = term.match_fields.iter().flatten().all(|wanted| holds(wanted, &name));
        let is_not_empty = term.match_expressions.is_some() || term.match_fields.is_some();
        is_not_empty && labels && fields
    })
}

fn holds(wanted: &NodeSelectorRequirement, values: &std::collections::BTreeMap<String, String>) -> bool {
    let value = values.get(&wanted.key);
    let listed = wanted.values.as_deref().unwrap_or_default();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match wanted.operator.as_str() {
        "In" => value.is_some_and(|value| listed.contains(value)),
        "NotIn" => value.is_none_or(|value| !listed.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(number(listed.first())).is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value).zip(number(listed.first())).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether this toleration tolerates this taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let effect = given(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = given(&toleration.key).map_or(exists, |key| key == taint.key);
    let value =
        exists || toleration.value.clone().unwrap_or_default() == taint.value.clone().unwrap_or_default();
    effect && key && value
}

fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn room_text(node: &Node) -> Option<String> {
    let status = node.status.as_ref()?;
    let room = status.allocatable.as_ref().or(status.capacity.as_ref())?;
    room.get("pods").map(|quantity| quantity.0.clone())
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use serde_json::Value;

    use super::*;

    fn node(name: &str, spec: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"zone": name}}, "spec": spec,
            "status": {"allocatable": {"pods": "2"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn chosen(pod: &Pod, nodes: &[(&Node, usize, usize)]) -> Result<String, String> {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(node, pods, same_group)| (*node, Load { pods: *pods, same_group: *same_group }))
            .collect();
        choose(pod, &nodes)
    }

    #[test]
    fn pods_of_one_controller_are_spread_first_then_all_pods() {
        let (a, b, c) = (node("a", json!({})), node("b", json!({})), node("c", json!({})));
        let plain = pod(json!({"containers": []}));
        assert_eq!(chosen(&plain, &[(&a, 1, 1), (&b, 1, 0), (&c, 0, 0)]), Ok("c".to_owned()));
        assert_eq!(chosen(&plain, &[(&a, 0, 1), (&b, 1, 0)]), Ok("b".to_owned()));
        assert_eq!(chosen(&plain, &[(&a, 2, 0), (&b, 1, 1)]), Ok("b".to_owned()), "a is full");
    }

    #[test]
    fn the_message_names_cordons_taints_selectors_and_full_nodes() {
        let cordoned = node("a", json!({"unschedulable": true}));
        let tainted = node("b", json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}));
        let plain = node("c", json!({}));
        let wants_b = pod(json!({"containers": [], "nodeSelector": {"zone": "b"}}));
        assert_eq!(
            chosen(&wants_b, &[(&cordoned, 0, 0), (&tainted, 0, 0), (&plain, 2, 0)]),
            Err("0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, \
                 1 node(s) had untolerated taint {gpu}, 1 node(s) were unschedulable."
                .to_owned())
        );
        let tolerant = pod(json!({"containers": [], "nodeSelector": {"zone": "b"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}]}));
        assert_eq!(chosen(&tolerant, &[(&cordoned, 0, 0), (&tainted, 0, 0)]), Ok("b".to_owned()));
        let daemon = pod(json!({"containers": [], "tolerations": [{"operator": "Exists"}]}));
        assert_eq!(chosen(&daemon, &[(&cordoned, 0, 0)]), Ok("a".to_owned()));
    }

    #[test]
    fn gated_pods_and_pods_of_other_schedulers_are_not_scheduled() {
        assert!(is_waiting(&pod(json!({"containers": []}))));
        assert!(!is_waiting(&pod(json!({"containers": [], "nodeName": "a"}))));
        assert!(!is_waiting(&pod(json!({"containers": [], "schedulingGates": [{"name": "g"}]}))));
        assert!(!is_waiting(&pod(json!({"containers": [], "schedulerName": "mine"}))));
    }

    #[test]
    fn required_node_affinity_is_respected() {
        let (a, b) = (node("a", json!({})), node("b", json!({})));
        let wants = pod(json!({"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}}));
        assert_eq!(chosen(&wants, &[(&a, 0, 0), (&b, 1, 0)]), Ok("b".to_owned()));
    }
}
