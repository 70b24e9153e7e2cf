//! The LeaderWorkerSet controller: groups of a leader and its workers that are recreated together.
//!
//! The leaders are a StatefulSet with the name of the set. Each leader pod owns a StatefulSet with the leader's name,
//! which holds the workers. When a pod of a group is deleted, lost or restarted, the controller deletes the leader with
//! Foreground propagation, and the whole group with it, unless the restart policy is None. Unlike the real controller,
//! this one does not create subgroups, environment variables, network policies or the headless Service.

mod api;
mod plan;

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::core::ApiResource;
use kube::{Api, Client, Error, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, run};
use super::identities::LEADER_WORKER_SETS;
use super::kinds::{StatefulSet, stateful_sets};
use super::kubelet::stamp;
use super::pods;
use super::queue::Queue;
use super::recorder::Recorder;
use super::request::{self, Deleted, ErrorExt};
use super::revisions::Revisions;
use super::statefulset::ordinal_of;
use api::{
    GROUP_INDEX, GROUP_KEY, LeaderWorkerSet, NAME, REPLICAS, REVISION, WORKER_INDEX, leader_worker_sets,
};
use plan::{GATE, Group, Leader, Leaders, Names, group_key, leader_set, rollout, size_of, worker_set};

pub use api::{install_leader_worker_sets, leader_worker_set_definition};

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(LEADER_WORKER_SETS);
    let kind = leader_worker_sets();
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        lws: context.view.start(Api::all_with(client.clone(), &kind), |_| None),
        recorder: Recorder::new(client.clone(), "leaderworkerset"),
        revisions: Revisions::new(client.clone(), context.view.revisions().clone()),
        sets: context.view.stateful_sets().clone(),
        pods: context.view.pods().clone(),
        bereft: Mutex::default(),
        kind,
        client,
    });
    let wake = queue.clone();
    reconciler.lws.listen(move |before, after| {
        if let Some(set) = after.or(before) {
            wake.add(Key::of(set.as_ref()));
        }
    });
    let wake = queue.clone();
    reconciler.sets.listen(move |before, after| {
        if let Some(set) = after.or(before)
            && let Some(name) = set.labels().get(NAME)
        {
            wake.add(Key::new(&set.namespace().unwrap_or_default(), name));
        }
    });
    let (wake, of) = (queue.clone(), Arc::downgrade(&reconciler));
    reconciler.pods.listen(move |before, after| {
        let Some(pod) = after.or(before) else { return };
        let Some(name) = pod.labels().get(NAME) else { return };
        if after.is_none()
            && let Some(reconciler) = of.upgrade()
        {
            reconciler.note_loss(pod);
        }
        wake.add(Key::new(&pod.namespace().unwrap_or_default(), name));
    });
    context.tasks.spawn(async move {
        reconciler.lws.filled().await;
        reconciler.sets.filled().await;
        reconciler.pods.filled().await;
        reconciler.revisions.cache.filled().await;
        run("leaderworkerset", queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

struct Reconciler {
    client: Client,
    kind: ApiResource,
    recorder: Recorder,
    revisions: Revisions,
    lws: Arc<ObjectCache<LeaderWorkerSet>>,
    sets: Arc<ObjectCache<StatefulSet>>,
    pods: Arc<ObjectCache<Pod>>,
    /// Leaders, by UID, that have lost a worker.
    bereft: Mutex<HashSet<String>>,
}

/// One group: its leader, its workers, and their StatefulSet.
struct GroupObjects {
    leader: Arc<Pod>,
    index: i32,
    workers: Vec<Arc<Pod>>,
    worker_set: Option<Arc<StatefulSet>>,
    size: i32,
}

impl GroupObjects {
    fn is_ready(&self) -> bool {
        let whole = i32::try_from(self.workers.len()).is_ok_and(|workers| workers == self.size - 1);
        whole
            && self
                .all()
                .all(|pod| pods::phase(pod) == "Running" && pods::is_ready(pod) && !pods::is_terminating(pod))
    }

    fn all(&self) -> impl Iterator<Item = &Pod> {
        std::iter::once(self.leader.as_ref()).chain(self.workers.iter().map(Arc::as_ref))
    }
}

impl Reconciler {
    /// Records a worker that was removed without having been seen terminating.
    fn note_loss(&self, worker: &Pod) {
        let namespace = worker.namespace().unwrap_or_default();
        let Some(owner) = pods::controller_of(worker) else { return };
        let key = Key::new(&namespace, &owner.name);
        let Some(set) = self.sets.get(&key).filter(|set| pods::uid(set.as_ref()) == owner.uid) else {
            return;
        };
        if let Some(leader) = pods::controller_of(set.as_ref()).filter(|leader| leader.kind == "Pod")
            && set.metadata.deletion_timestamp.is_none()
        {
            self.bereft.lock().insert(leader.uid.clone());
        }
    }

    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(lws) = self.lws.get(key) else { return Ok(None) };
        if lws.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let (uid, name) = (pods::uid(lws.as_ref()), lws.name_any());
        let names = Names { namespace: &key.namespace, set: &name, uid };
        let owner = pods::controller_ref("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", &name, uid);
        let content = lws.spec.revision_content();
        let revision = self.revisions.newest(lws.as_ref(), &owner, &json!({NAME: name}), &content).await?;
        let revision = revision.strip_prefix(&format!("{name}-")).unwrap_or(&revision).to_owned();

        let leader_sts =
            self.sets.get(key).filter(|set| pods::controller_of(set.as_ref()).is_some_and(|o| o.uid == uid));
        let groups = self.groups(&lws, leader_sts.as_deref());
        self.label_all(&names, &groups).await?;
        self.write_leaders(&names, &lws, leader_sts.as_deref(), &groups, &content, &revision).await?;
        let mut all = Ok(());
        for group in &groups {
            all = all.and(self.reconcile_group(&names, &lws, group).await);
        }
        self.report(&lws, &groups, leader_sts.as_deref(), &revision).await?;
        all?;
        let mut in_use: Vec<String> = groups
            .iter()
            .filter_map(|group| group.leader.labels().get(REVISION))
            .map(|r| format!("{name}-{r}"))
            .collect();
        in_use.push(format!("{name}-{revision}"));
        self.revisions.trim(uid, &in_use.iter().map(String::as_str).collect::<Vec<_>>(), 2).await?;
        Ok(None)
    }

    /// The groups that have a leader, ordered by index.
    fn groups(&self, lws: &LeaderWorkerSet, leaders: Option<&StatefulSet>) -> Vec<GroupObjects> {
        let Some(leaders) = leaders else { return Vec::new() };
        let namespace = lws.namespace().unwrap_or_default();
        let mut groups = Vec::new();
        for leader in self.pods.owned_by(pods::uid(leaders)) {
            let Some(index) = ordinal_of(&lws.name_any(), &leader.name_any()) else { continue };
            let sets = self.sets.owned_by(pods::uid(leader.as_ref()));
            let worker_set = sets.into_iter().next();
            let workers =
                worker_set.iter().flat_map(|set| self.pods.owned_by(pods::uid(set.as_ref()))).collect();
            let size = size_of(&self.content_of(&namespace, lws, &leader));
            groups.push(GroupObjects { leader, index, workers, worker_set, size });
        }
        groups.sort_by_key(|group| group.index);
        groups
    }

    /// The templates of this leader's group.
    fn content_of(&self, namespace: &str, lws: &LeaderWorkerSet, leader: &Pod) -> Value {
        let revision = leader.labels().get(REVISION).map(|revision| format!("{}-{revision}", lws.name_any()));
        let stored = revision.and_then(|name| self.revisions.content(namespace, &name));
        stored.unwrap_or_else(|| lws.spec.revision_content())
    }

    async fn write_leaders(
        &self,
        names: &Names<'_>,
        lws: &LeaderWorkerSet,
        leaders: Option<&StatefulSet>,
        groups: &[GroupObjects],
        content: &Value,
        revision: &str,
    ) -> Result<(), Error> {
        let now = leaders.map(|set| Leaders {
            replicas: set.spec.replicas,
            partition: set
                .spec
                .update_strategy
                .rolling_update
                .as_ref()
                .and_then(|r| r.partition)
                .unwrap_or(0),
            lws_replicas: set
                .annotations()
                .get(REPLICAS)
                .and_then(|text| text.parse().ok())
                .unwrap_or(lws.spec.replicas),
            of_newest_revision: set.labels().get(REVISION).map(String::as_str) == Some(revision),
        });
        let next = rollout(&lws.spec, now, &states(groups, revision));
        let wanted = leader_set(names, &lws.spec, content, revision, next);
        let (Some(set), Some(now)) = (leaders, now) else {
            return self.create_set(names.namespace, &wanted).await;
        };
        let unchanged = now.of_newest_revision && now.lws_replicas == lws.spec.replicas;
        if unchanged && (now.replicas, now.partition) == (next.replicas, next.partition) {
            return Ok(());
        }
        let mut patch = json!({
            "metadata": {
                "resourceVersion": set.resource_version(),
                "labels": wanted["metadata"]["labels"], "annotations": wanted["metadata"]["annotations"],
            },
            "spec": {"replicas": wanted["spec"]["replicas"], "updateStrategy": wanted["spec"]["updateStrategy"]},
        });
        if !now.of_newest_revision {
            patch["spec"]["template"] = wanted["spec"]["template"].clone();
        }
        let key = Key::of(set);
        let written =
            request::merge::<StatefulSet>(&self.client, &stateful_sets(), &key, None, &patch).await?;
        self.sets.wrote(written);
        Ok(())
    }

    async fn create_set(&self, namespace: &str, set: &Value) -> Result<(), Error> {
        let made = request::create::<StatefulSet>(&self.client, &stateful_sets(), namespace, set).await?;
        self.sets.wrote(made);
        Ok(())
    }

    /// Adds to every new pod the labels that depend on its name, and removes the scheduling gate.
    async fn label_all(&self, names: &Names<'_>, groups: &[GroupObjects]) -> Result<(), Error> {
        for group in groups {
            let leader = group.leader.name_any();
            for pod in group.all() {
                let gates =
                    pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_deref()).unwrap_or_default();
                if !gates.iter().any(|gate| gate.name == GATE) || pods::is_terminating(pod) {
                    continue;
                }
                let worker = ordinal_of(&leader, &pod.name_any()).unwrap_or(0);
                let open: Vec<_> = gates.iter().filter(|gate| gate.name != GATE).collect();
                let patch = json!({
                    "metadata": {
                        "uid": pods::uid(pod), "resourceVersion": pod.resource_version(),
                        "labels": {
                            GROUP_INDEX: group.index.to_string(), WORKER_INDEX: worker.to_string(),
                            GROUP_KEY: group_key(names.namespace, &leader),
                        },
                    },
                    "spec": {"schedulingGates": if open.is_empty() { Value::Null } else { json!(open) }},
                });
                match request::merge::<Pod>(&self.client, &(), &Key::of(pod), None, &patch).await {
                    Ok(written) => self.pods.wrote(written),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    async fn reconcile_group(
        &self,
        names: &Names<'_>,
        lws: &LeaderWorkerSet,
        group: &GroupObjects,
    ) -> Result<(), Error> {
        let leader = &group.leader;
        if pods::is_terminating(leader) {
            self.bereft.lock().remove(pods::uid(leader.as_ref()));
            return Ok(());
        }
        if let Some(broken) = self.broken(lws.spec.restart_policy(), group) {
            return self.rebuild(lws, leader, &broken).await;
        }
        if group.worker_set.is_some() || group.size <= 1 {
            return Ok(());
        }
        let index = group.index.to_string();
        let (name, uid) = (leader.name_any(), pods::uid(leader.as_ref()));
        let Some(revision) = leader.labels().get(REVISION) else { return Ok(()) };
        // The set of an earlier leader may still have the name; its removal queues this LeaderWorkerSet again.
        let name_taken = self.sets.get(&Key::new(names.namespace, &name)).is_some();
        if name_taken || (lws.spec.workers_wait_for_leader() && !pods::is_ready(leader)) {
            return Ok(());
        }
        let content = self.content_of(names.namespace, lws, leader);
        let leader = Leader { name: &name, uid, index: &index, revision };
        self.create_set(names.namespace, &worker_set(names, &leader, &content)).await
    }

    /// The pod, if any, because of which the group must be recreated.
    fn broken(&self, policy: &str, group: &GroupObjects) -> Option<String> {
        if !matches!(policy, "RecreateGroupOnPodRestart" | "RecreateGroupAfterStart") {
            return None;
        }
        if policy == "RecreateGroupAfterStart" && group.all().any(|pod| pods::phase(pod) == "Pending") {
            return None;
        }
        let fallen = group.all().find(|pod| pods::is_terminating(pod) || pods::restarts(pod) > 0);
        let lost = || self.bereft.lock().contains(pods::uid(group.leader.as_ref()));
        fallen.map(|pod| pod.name_any()).or_else(|| lost().then(|| "a worker".to_owned()))
    }

    async fn rebuild(&self, lws: &LeaderWorkerSet, leader: &Pod, broken: &str) -> Result<(), Error> {
        let key = Key::of(leader);
        let params = DeleteParams::foreground().preconditions(request::only(pods::uid(leader)));
        match request::delete::<Pod>(&self.client, &(), &key, &params).await {
            Ok(left) => {
                match left {
                    Deleted::Ending(pod) => self.pods.wrote(*pod),
                    Deleted::Gone => self.pods.removed(&key, pods::uid(leader)),
                }
                self.bereft.lock().remove(pods::uid(leader));
                let message = format!(
                    "{broken} failed or was deleted: deleted leader pod {} to recreate its group",
                    key.name
                );
                self.recorder.normal(lws, &self.kind, "RecreateGroup", &message).await;
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                let message = format!("Error deleting leader pod {}: {}", key.name, error.message());
                self.recorder.warn(lws, &self.kind, "FailedDelete", &message).await;
                Err(error)
            }
        }
    }

    async fn report(
        &self,
        lws: &LeaderWorkerSet,
        groups: &[GroupObjects],
        leaders: Option<&StatefulSet>,
        revision: &str,
    ) -> Result<(), Error> {
        let states = states(groups, revision);
        let before = lws.status.clone().unwrap_or_default();
        let ready = states.iter().filter(|group| group.ready).count();
        let updated = states.iter().filter(|group| group.updated).count();
        let wanted = usize::try_from(lws.spec.replicas).unwrap_or(0);
        let done = ready >= wanted && updated >= wanted;
        let updating = leaders.is_some() && updated < groups.len();
        let now = Timestamp::now();
        let conditions = [
            condition(&before, "Available", done, "AllGroupsReady", "All replicas are ready", now),
            condition(&before, "Progressing", !done, "GroupsProgressing", "Replicas are progressing", now),
            condition(
                &before,
                "UpdateInProgress",
                updating,
                "GroupsUpdating",
                "Rolling Upgrade is in progress",
                now,
            ),
        ];
        let status = json!({
            "replicas": groups.len(), "readyReplicas": ready, "updatedReplicas": updated,
            "hpaPodSelector": format!("{NAME}={},{WORKER_INDEX}=0", lws.name_any()),
            "conditions": conditions, "observedGeneration": lws.metadata.generation,
        });
        if status == before {
            return Ok(());
        }
        let patch = json!({"metadata": {"resourceVersion": lws.resource_version()}, "status": status});
        let written = request::merge::<LeaderWorkerSet>(
            &self.client,
            &self.kind,
            &Key::of(lws),
            Some("status"),
            &patch,
        )
        .await?;
        self.lws.wrote(written);
        Ok(())
    }
}

fn states(groups: &[GroupObjects], revision: &str) -> Vec<Group> {
    let last = groups.iter().map(|group| group.index).max().unwrap_or(-1);
    let mut states = vec![Group::default(); usize::try_from(last + 1).unwrap_or(0)];
    for group in groups {
        if let Some(state) = usize::try_from(group.index).ok().and_then(|index| states.get_mut(index)) {
            state.updated = group.leader.labels().get(REVISION).map(String::as_str) == Some(revision);
            state.ready = group.is_ready();
        }
    }
    states
}

fn condition(before: &Value, kind: &str, holds: bool, reason: &str, message: &str, now: Timestamp) -> Value {
    let status = if holds { "True" } else { "False" };
    let shown = before["conditions"].as_array().into_iter().flatten();
    let same = shown.into_iter().find(|shown| shown["type"] == kind && shown["status"] == status);
    let since =
        same.and_then(|same| same["lastTransitionTime"].as_str()).map_or_else(|| stamp(now), str::to_owned);
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
}
