//! Removes pods whose node has NoExecute taints or no longer exists.
//!
//! Pods that do not tolerate a NoExecute taint are deleted. Pods that tolerate it for a limited time are deleted after
//! that time. A pod whose node has not existed for 40 s is marked Failed and removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::api::DeleteParams;
use kube::{Client, Error, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, run};
use super::identities::controller;
use super::kubelet::stamp;
use super::pods;
use super::queue::Queue;
use super::request::{self, Deleted, ErrorExt};
use super::scheduler::tolerates;

/// How long a node may be missing before its pods are removed.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How long a pod without a toleration stays on a node that is not ready or unreachable. On a real cluster, admission
/// adds this toleration to every pod.
const DEFAULT_TOLERATION: Duration = Duration::from_secs(300);

pub(crate) fn start(context: &ActorContext) {
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        // The real taint eviction controller also uses this name, not its own.
        taint_eviction: context.identities.client(&controller("node-controller")),
        pod_gc: context.identities.client(&controller("pod-garbage-collector")),
        pods: context.view.pods().clone(),
        nodes: context.view.nodes().clone(),
        missing: Mutex::default(),
        repelled: Mutex::default(),
    });
    let wake = queue.clone();
    reconciler.pods.listen(move |_, after| {
        if let Some(pod) = after.filter(|pod| pods::node_of(pod).is_some()) {
            wake.add(Key::of(pod.as_ref()));
        }
    });
    let (wake, pods) = (queue.clone(), reconciler.pods.clone());
    reconciler.nodes.listen(move |before, after| {
        let taints =
            |node: &Arc<Node>| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        if let Some(node) = after.or(before)
            && before.map(taints) != after.map(taints)
        {
            for pod in pods.by_index(&node.name_any()) {
                wake.add(Key::of(pod.as_ref()));
            }
        }
    });
    context.tasks.spawn(async move {
        reconciler.pods.filled().await;
        reconciler.nodes.filled().await;
        run("lost nodes", queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

struct Reconciler {
    taint_eviction: Client,
    pod_gc: Client,
    pods: Arc<ObjectCache<Pod>>,
    nodes: Arc<ObjectCache<Node>>,
    /// Nodes that pods name but that do not exist, and since when they are missing.
    missing: Mutex<HashMap<String, Instant>>,
    /// Pods on nodes with NoExecute taints: the pod's UID, and since when it is affected. Few taints have a
    /// `timeAdded`.
    repelled: Mutex<HashMap<Key, (String, Timestamp)>>,
}

/// How long a pod may still stay on a node with these taints, which were first seen at `seen`; `None` means forever.
fn may_stay(pod: &Pod, taints: &[Taint], seen: Timestamp, now: Timestamp) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    taints.iter().filter_map(|taint| time_left(tolerations, taint, seen, now)).min()
}

fn time_left(tolerations: &[Toleration], taint: &Taint, seen: Timestamp, now: Timestamp) -> Option<Duration> {
    let since = taint.time_added.as_ref().map_or(seen, |time| time.0);
    let left =
        |all: Duration| Duration::try_from((since + all).duration_since(now)).unwrap_or(Duration::ZERO);
    let tolerating: Vec<_> = tolerations.iter().filter(|toleration| tolerates(toleration, taint)).collect();
    if tolerating.is_empty() {
        let has_default =
            ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].contains(&taint.key.as_str());
        return Some(if has_default { left(DEFAULT_TOLERATION) } else { Duration::ZERO });
    }
    let limits = tolerating.iter().filter_map(|toleration| toleration.toleration_seconds);
    limits.min().map(|seconds| left(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(pod) = self.pods.get(key) else {
            self.repelled.lock().remove(key);
            return Ok(None);
        };
        let Some(name) = pods::node_of(&pod) else { return Ok(None) };
        let Some(node) = self.nodes.get(&Key::new("", name)) else { return self.orphan(key, &pod).await };
        self.missing.lock().remove(name);
        if pods::is_terminating(&pod) {
            return Ok(None);
        }
        let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        taints.retain(|taint| taint.effect == "NoExecute");
        let now = Timestamp::now();
        let seen = self.repelled_since(key, &pod, &taints, now);
        match may_stay(&pod, &taints, seen, now) {
            None => Ok(None),
            Some(left) if !left.is_zero() => Ok(Some(left)),
            Some(_) => {
                let why = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
                self.end(&self.taint_eviction, &pod, why, None, &DeleteParams::default()).await?;
                Ok(None)
            }
        }
    }

    /// Since when the pod has been on a node with NoExecute taints.
    fn repelled_since(&self, key: &Key, pod: &Pod, taints: &[Taint], now: Timestamp) -> Timestamp {
        let mut repelled = self.repelled.lock();
        if taints.is_empty() {
            repelled.remove(key);
            return now;
        }
        let uid = pods::uid(pod);
        match repelled.get(key) {
            Some((known, since)) if known == uid => *since,
            _ => {
                repelled.insert(key.clone(), (uid.to_owned(), now));
                now
            }
        }
    }

    /// Handles a pod on a node that does not exist.
    async fn orphan(&self, key: &Key, pod: &Pod) -> Reconciled {
        // If the node returns during the quarantine, it keeps its pods.
        let node = pods::node_of(pod).unwrap_or_default().to_owned();
        let missing_for = self.missing.lock().entry(node).or_insert_with(Instant::now).elapsed();
        if missing_for < QUARANTINE {
            return Ok(Some(QUARANTINE - missing_for));
        }
        let why = ("DeletionByPodGC", "PodGC: node no longer exists");
        let gone = DeleteParams::default().grace_period(0);
        tracing::debug!(pod = %key, "node of the pod no longer exists");
        self.end(&self.pod_gc, pod, why, Some("Failed"), &gone).await?;
        Ok(None)
    }

    async fn end(
        &self,
        client: &Client,
        pod: &Pod,
        (reason, message): (&str, &str),
        phase: Option<&str>,
        params: &DeleteParams,
    ) -> Result<(), Error> {
        let (key, uid) = (Key::of(pod), pods::uid(pod));
        let mut patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": stamp(Timestamp::now()),
        }]}});
        if let Some(phase) = phase {
            patch["status"]["phase"] = json!(phase);
        }
        match request::strategic::<Pod>(client, &(), &key, Some("status"), &patch).await {
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(()),
            other => other?,
        };
        match request::delete::<Pod>(client, &(), &key, params).await {
            Ok(Deleted::Gone) => self.pods.removed(&key, uid),
            Ok(Deleted::Ending(pod)) => self.pods.wrote(*pod),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pod(tolerations: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).unwrap()
    }

    #[test]
    fn a_pod_stays_as_long_as_it_tolerates_the_taint() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let seen: Timestamp = "2026-01-01T00:00:02Z".parse().unwrap();
        let taint = |key: &str, added: Value| -> Vec<Taint> {
            let taint = json!({"key": key, "effect": "NoExecute", "timeAdded": added});
            vec![serde_json::from_value(taint).unwrap()]
        };
        let dated = |key: &str| taint(key, json!("2026-01-01T00:00:00Z"));
        let nothing = pod(json!([]));
        assert_eq!(may_stay(&nothing, &[], seen, now), None);
        assert_eq!(may_stay(&nothing, &dated("a"), seen, now), Some(Duration::ZERO));
        assert_eq!(
            may_stay(&nothing, &dated("node.kubernetes.io/unreachable"), seen, now),
            Some(Duration::from_secs(290))
        );
        let a_while =
            pod(json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 15}]));
        assert_eq!(may_stay(&a_while, &dated("a"), seen, now), Some(Duration::from_secs(5)));
        // A taint without `timeAdded` counts from when it was first seen.
        let undated = taint("a", Value::Null);
        assert_eq!(may_stay(&a_while, &undated, seen, now), Some(Duration::from_secs(7)));
        assert_eq!(may_stay(&pod(json!([{"operator": "Exists"}])), &dated("a"), seen, now), None);
    }
}
