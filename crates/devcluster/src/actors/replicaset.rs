//! The ReplicaSet controller: keeps the desired number of pods. Custom sets with the same fields work in the same way.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use kube::{Error, ResourceExt};
use serde_json::{Value, json};

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, matcher, run};
use super::identities::controller;
use super::kinds::{ReplicaSet, ReplicaSetStatus, replica_sets};
use super::pod_control::{PodControl, sort_claims};
use super::pods;
use super::queue::Queue;
use super::request;

/// When a set shrinks, the pods with the lowest cost are deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub(crate) fn start(context: &ActorContext) {
    let sets = context.view.replica_sets().clone();
    start_kind(context, &controller("replicaset-controller"), "replicaset-controller", replica_sets(), sets);
}

/// Controls the sets of this kind as `user`.
pub(crate) fn start_kind(
    context: &ActorContext,
    user: &str,
    component: &'static str,
    kind: ApiResource,
    sets: Arc<ObjectCache<ReplicaSet>>,
) {
    let client = context.identities.client(user);
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        control: PodControl::new(client, component, context.view.pods().clone()),
        kind: kind.clone(),
        sets: sets.clone(),
    });
    let wake = queue.clone();
    sets.listen(move |before, after| {
        if let Some(set) = after.or(before) {
            wake.add(Key::of(set.as_ref()));
        }
    });
    let wake = queue.clone();
    reconciler.control.pods.listen(move |before, after| {
        for pod in [before, after].into_iter().flatten() {
            wake_owner(pod, &kind, &sets, &wake);
        }
    });
    context.tasks.spawn(async move {
        reconciler.sets.filled().await;
        reconciler.control.pods.filled().await;
        run(component, queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

fn wake_owner(pod: &Pod, kind: &ApiResource, sets: &ObjectCache<ReplicaSet>, queue: &Queue<Key>) {
    let namespace = pod.namespace().unwrap_or_default();
    match pods::controller_of(pod) {
        Some(owner) if owner.kind == kind.kind => queue.add(Key::new(&namespace, &owner.name)),
        Some(_) => {}
        // An orphan: any set whose selector matches may adopt it.
        None => {
            for set in sets.in_namespace(&namespace) {
                if matcher(&set.spec.selector)(pod.labels()) {
                    queue.add(Key::of(set.as_ref()));
                }
            }
        }
    }
}

struct Reconciler {
    control: PodControl,
    kind: ApiResource,
    sets: Arc<ObjectCache<ReplicaSet>>,
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(set) = self.sets.get(key) else { return Ok(None) };
        let (uid, ending) = (pods::uid(set.as_ref()), set.metadata.deletion_timestamp.is_some());
        let matches = matcher(&set.spec.selector);
        let orphans =
            self.control.pods.owned_by("").into_iter().filter(|pod| pod.namespace() == set.namespace());
        let candidates = self.control.pods.owned_by(uid).into_iter().chain(orphans);
        let claims = sort_claims(uid, ending, |pod| matches(pod.labels()), candidates);
        let kind = &self.kind;
        let owner = pods::controller_ref(&kind.api_version, &kind.kind, &set.name_any(), uid);
        if !claims.adopt.is_empty() || !claims.release.is_empty() {
            self.control.claim(&claims, &owner).await?;
            // The cache now has the changed pods, and its listener has queued this set again.
            return Ok(Some(Duration::ZERO));
        }
        let now = Timestamp::now();
        let plan = plan(set.spec.replicas, &claims.mine);
        let managed = if ending { Ok(()) } else { self.manage(&set, &plan, &owner).await };
        // The cache already reflects the pods that were just created and deleted.
        self.report(&set, &self.control.pods.owned_by(uid), now).await?;
        managed?;
        let waits = claims.mine.iter().filter(|pod| pods::is_active(pod));
        Ok(waits.filter_map(|pod| pods::available_in(pod, set.spec.min_ready_seconds, now)).min())
    }

    async fn manage(&self, set: &ReplicaSet, plan: &Plan, owner: &Value) -> Result<(), Error> {
        let mut pod = pods::from_template(&set.spec.template, owner);
        pod["metadata"]["generateName"] = json!(format!("{}-", set.name_any()));
        let new = vec![pod; plan.create];
        self.control.create_all(set, &self.kind, &new).await?;
        self.control.delete_all(set, &self.kind, &plan.delete).await
    }

    async fn report(&self, set: &ReplicaSet, mine: &[Arc<Pod>], now: Timestamp) -> Result<(), Error> {
        let status = status(set, mine, now);
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let written = request::write_status(&self.control.client, &self.kind, set, &json!(status)).await?;
        self.sets.wrote(written);
        Ok(())
    }
}

/// The pods to create or delete to reach the desired number.
#[derive(Debug, Default)]
struct Plan {
    create: usize,
    delete: Vec<Arc<Pod>>,
}

fn plan(replicas: i32, mine: &[Arc<Pod>]) -> Plan {
    let mut active: Vec<_> = mine.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    let wanted = usize::try_from(replicas).unwrap_or(0);
    if active.len() <= wanted {
        return Plan { create: wanted - active.len(), delete: Vec::new() };
    }
    let mut on_node: HashMap<Option<String>, usize> = HashMap::new();
    for pod in &active {
        *on_node.entry(pods::node_of(pod).map(str::to_owned)).or_default() += 1;
    }
    active.sort_by_cached_key(|pod| {
        let pods_on_node = on_node.get(&pods::node_of(pod).map(str::to_owned)).copied().unwrap_or(0);
        deletion_rank(pod, pods_on_node)
    });
    active.truncate(active.len() - wanted);
    Plan { create: 0, delete: active }
}

/// The order of deletion, lowest first. Pods that are unscheduled, pending or not ready come first. Then follow pods
/// with a low deletion cost, on nodes with many pods of the set, ready only recently, with many restarts, and newly
/// created.
fn deletion_rank(pod: &Pod, pods_on_node: usize) -> impl Ord + use<> {
    let phase = match pods::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let cost: i64 = pod.annotations().get(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0);
    let ready_since = pods::condition(pod, "Ready").and_then(|ready| ready.last_transition_time.clone());
    (
        pods::node_of(pod).is_some(),
        phase,
        pods::is_ready(pod),
        cost,
        Reverse(pods_on_node),
        Reverse(ready_since.map(|time| time.0)),
        Reverse(pods::restarts(pod)),
        Reverse(pod.creation_timestamp().map(|time| time.0)),
        pod.name_any(),
    )
}

fn status(set: &ReplicaSet, mine: &[Arc<Pod>], now: Timestamp) -> ReplicaSetStatus {
    let active: Vec<_> = mine.iter().filter(|pod| pods::is_active(pod)).collect();
    let count = |what: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| what(pod)).count()).unwrap_or(i32::MAX)
    };
    let labels = set.spec.template.pointer("/metadata/labels").and_then(Value::as_object);
    let labelled = |pod: &Pod| {
        labels
            .into_iter()
            .flatten()
            .all(|(key, value)| pod.labels().get(key).map(String::as_str) == value.as_str())
    };
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: count(&labelled),
        ready_replicas: count(&|pod| pods::is_ready(pod)),
        available_replicas: count(&|pod| pods::is_available(pod, set.spec.min_ready_seconds, now)),
        observed_generation: set.metadata.generation.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>, ready: bool, more: &Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [], "nodeName": node},
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" },
                       "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
                                       "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        json_patch::merge(&mut pod, more);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn deleted(replicas: i32, pods: &[Arc<Pod>]) -> Vec<String> {
        plan(replicas, pods).delete.iter().map(|pod| pod.name_any()).collect()
    }

    #[test]
    fn terminating_and_terminal_pods_are_replaced() {
        let pods = [
            pod("ok", Some("a"), true, &json!({})),
            pod(
                "ending",
                Some("a"),
                true,
                &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            ),
            pod("ended", Some("a"), false, &json!({"status": {"phase": "Failed"}})),
        ];
        assert_eq!(plan(3, &pods).create, 2);
    }

    #[test]
    fn the_least_useful_pods_are_deleted_first() {
        let pods = [
            pod("ready", Some("a"), true, &json!({})),
            pod("cheap", Some("b"), true, &json!({"metadata": {"annotations": {DELETION_COST: "-5"}}})),
            pod("unready", Some("c"), false, &json!({})),
            pod("unplaced", None, false, &json!({})),
        ];
        assert_eq!(deleted(1, &pods), ["unplaced", "unready", "cheap"]);
        let young = pod(
            "young",
            Some("d"),
            true,
            &json!({"metadata": {"creationTimestamp": "2026-02-01T00:00:00Z"}}),
        );
        assert_eq!(deleted(1, &[pods[0].clone(), young]), ["young"]);
        let crowded = [
            pod("a1", Some("a"), true, &json!({})),
            pod("a2", Some("a"), true, &json!({})),
            pod("b1", Some("b"), true, &json!({})),
        ];
        assert_eq!(deleted(2, &crowded), ["a1"]);
    }
}
