//! The StatefulSet controller: pods with stable names.
//!
//! Volume claims are not supported: a set with `volumeClaimTemplates` gets an Event that says so, and no pods.

mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use kube::{Error, ResourceExt};
use serde_json::{Value, json};

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, matcher, run};
use super::identities::controller;
use super::kinds::{StatefulSet, StatefulSetStatus, stateful_sets};
use super::pod_control::{PodControl, sort_claims};
use super::pods;
use super::queue::Queue;
use super::request::{self, ErrorExt};
use super::revisions::Revisions;
use plan::{Facts, Plan, REVISION};

pub(crate) use plan::ordinal_of;

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(&controller("statefulset-controller"));
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        revisions: Revisions::new(client.clone(), context.view.revisions().clone()),
        control: PodControl::new(client, "statefulset-controller", context.view.pods().clone()),
        kind: stateful_sets(),
        sets: context.view.stateful_sets().clone(),
    });
    let wake = queue.clone();
    reconciler.sets.listen(move |before, after| {
        if let Some(set) = after.or(before) {
            wake.add(Key::of(set.as_ref()));
        }
    });
    let (wake, sets) = (queue.clone(), reconciler.sets.clone());
    reconciler.control.pods.listen(move |before, after| {
        for pod in [before, after].into_iter().flatten() {
            let namespace = pod.namespace().unwrap_or_default();
            match pods::controller_of(pod.as_ref()) {
                Some(owner) if owner.kind == "StatefulSet" => wake.add(Key::new(&namespace, &owner.name)),
                // The pod may have a name that a set waits for, or may be an orphan that a set can adopt.
                _ => {
                    if let Some((set, _)) = pod.name_any().rsplit_once('-') {
                        let key = Key::new(&namespace, set);
                        if sets.get(&key).is_some() {
                            wake.add(key);
                        }
                    }
                }
            }
        }
    });
    context.tasks.spawn(async move {
        reconciler.sets.filled().await;
        reconciler.control.pods.filled().await;
        reconciler.revisions.cache.filled().await;
        run("statefulset", queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

struct Reconciler {
    control: PodControl,
    revisions: Revisions,
    kind: ApiResource,
    sets: Arc<ObjectCache<StatefulSet>>,
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(set) = self.sets.get(key) else { return Ok(None) };
        let (uid, name) = (pods::uid(set.as_ref()), set.name_any());
        let ending = set.metadata.deletion_timestamp.is_some();
        if !set.spec.volume_claim_templates.is_empty() {
            let message = "volumeClaimTemplates are not supported here: this cluster makes no volumes";
            self.control.recorder.warn(set.as_ref(), &self.kind, "FailedCreate", message).await;
            return Ok(None);
        }
        let matches = matcher(&set.spec.selector);
        let orphans =
            self.control.pods.owned_by("").into_iter().filter(|pod| pod.namespace() == set.namespace());
        let candidates = self.control.pods.owned_by(uid).into_iter().chain(orphans);
        let is_member = |pod: &Pod| matches(pod.labels()) && ordinal_of(&name, &pod.name_any()).is_some();
        let claims = sort_claims(uid, ending, is_member, candidates);
        let owner = pods::controller_ref("apps/v1", "StatefulSet", &name, uid);
        if !claims.adopt.is_empty() || !claims.release.is_empty() {
            self.control.claim(&claims, &owner).await?;
            return Ok(Some(std::time::Duration::ZERO));
        }

        let status = set.status.clone().unwrap_or_default();
        let update = self.newest_revision(&set, &owner, ending, &status).await?;
        let current =
            if status.current_revision.is_empty() { update.clone() } else { status.current_revision.clone() };
        let facts = Facts {
            name: &name,
            spec: &set.spec,
            current: &current,
            update: &update,
            current_replicas: status.current_replicas,
            now: Timestamp::now(),
        };
        let performed =
            if ending { Ok(()) } else { self.perform(&set, &facts.plan(&claims.mine), &owner).await };
        self.report(&set, &facts).await?;
        performed?;
        if !ending {
            let mut in_use: Vec<_> =
                claims.mine.iter().filter_map(|pod| pod.labels().get(REVISION)).map(String::as_str).collect();
            in_use.extend([current.as_str(), update.as_str()]);
            let limit = set.spec.revision_history_limit.unwrap_or(10);
            self.revisions.trim(uid, &in_use, usize::try_from(limit).unwrap_or(0)).await?;
        }
        let waits = claims.mine.iter().filter(|pod| pods::is_active(pod));
        Ok(waits.filter_map(|pod| pods::available_in(pod, set.spec.min_ready_seconds, facts.now)).min())
    }

    async fn newest_revision(
        &self,
        set: &StatefulSet,
        owner: &Value,
        ending: bool,
        status: &StatefulSetStatus,
    ) -> Result<String, Error> {
        if ending {
            return Ok(status.update_revision.clone());
        }
        let labels = json!(set.spec.selector.match_labels.clone().unwrap_or_default());
        let content = json!({"spec": {"template": set.spec.template}});
        self.revisions.newest(set, owner, &labels, &content).await
    }

    async fn perform(&self, set: &StatefulSet, plan: &Plan, owner: &Value) -> Result<(), Error> {
        let namespace = set.namespace().unwrap_or_default();
        let mut new = Vec::new();
        for (ordinal, revision) in &plan.create {
            let key = Key::new(&namespace, &format!("{}-{ordinal}", set.name_any()));
            // If a pod of another owner has the name, its removal queues this set again.
            if self.control.pods.get(&key).is_none() {
                new.push(self.pod(set, *ordinal, revision, owner));
            }
        }
        match self.control.create_all(set, &self.kind, &new).await {
            Err(error) if error.is_already_exists() => return Err(error),
            other => other?,
        }
        self.control.delete_all(set, &self.kind, &plan.delete).await
    }

    fn pod(&self, set: &StatefulSet, ordinal: i32, revision: &str, owner: &Value) -> Value {
        let namespace = set.namespace().unwrap_or_default();
        let stored =
            self.revisions.content(&namespace, revision).map(|content| content["spec"]["template"].clone());
        let template = stored.unwrap_or_else(|| set.spec.template.clone());
        let name = format!("{}-{ordinal}", set.name_any());
        let mut pod = pods::from_template(&template, owner);
        pod["metadata"]["name"] = json!(name);
        pods::set(&mut pod, "labels", REVISION, revision);
        pods::set(&mut pod, "labels", "statefulset.kubernetes.io/pod-name", &name);
        pods::set(&mut pod, "labels", "apps.kubernetes.io/pod-index", &ordinal.to_string());
        pod["spec"]["hostname"] = json!(name);
        if !set.spec.service_name.is_empty() {
            pod["spec"]["subdomain"] = json!(set.spec.service_name);
        }
        pod
    }

    async fn report(&self, set: &StatefulSet, facts: &Facts<'_>) -> Result<(), Error> {
        // The cache already reflects the pods that were just created and deleted.
        let members = self.control.pods.owned_by(pods::uid(set));
        let status = facts.status(&members, set.metadata.generation.unwrap_or(0));
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let written = request::write_status(&self.control.client, &self.kind, set, &json!(status)).await?;
        self.sets.wrote(written);
        Ok(())
    }
}
