//! The Deployment controller: one ReplicaSet for each template, and rollouts from one to the next.
//!
//! A change of replicas during a rollout is not distributed proportionally. The rules of the rollout lead to the same
//! result.

mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, run};
use super::identities::controller;
use super::kinds::{Deployment, ReplicaSet, deployments, replica_sets};
use super::kubelet::stamp;
use super::pods;
use super::queue::Queue;
use super::recorder::Recorder;
use super::request::{self, ErrorExt};
use super::revisions::hash;
use plan::{Set, Step, plan};

const TEMPLATE_HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(&controller("deployment-controller"));
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        recorder: Recorder::new(client.clone(), "deployment-controller"),
        client,
        kind: deployments(),
        set_kind: replica_sets(),
        deployments: context.view.deployments().clone(),
        sets: context.view.replica_sets().clone(),
        pods: context.view.pods().clone(),
    });
    let wake = queue.clone();
    reconciler.deployments.listen(move |before, after| {
        if let Some(deployment) = after.or(before) {
            wake.add(Key::of(deployment.as_ref()));
        }
    });
    let wake = queue.clone();
    reconciler.sets.listen(move |before, after| {
        if let Some(set) = after.or(before)
            && let Some(owner) = pods::controller_of(set.as_ref()).filter(|owner| owner.kind == "Deployment")
        {
            wake.add(Key::new(&set.namespace().unwrap_or_default(), &owner.name));
        }
    });
    // The strategy Recreate waits until the last pod is removed.
    let (wake, sets) = (queue.clone(), reconciler.sets.clone());
    reconciler.pods.listen(move |before, after| {
        if let (Some(gone), None) = (before, after)
            && let Some(set) = pods::controller_of(gone.as_ref()).filter(|owner| owner.kind == "ReplicaSet")
            && let Some(set) = sets.get(&Key::new(&gone.namespace().unwrap_or_default(), &set.name))
            && let Some(owner) = pods::controller_of(set.as_ref())
        {
            wake.add(Key::new(&set.namespace().unwrap_or_default(), &owner.name));
        }
    });
    context.tasks.spawn(async move {
        reconciler.deployments.filled().await;
        reconciler.sets.filled().await;
        reconciler.pods.filled().await;
        run("deployment", queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

struct Reconciler {
    client: Client,
    recorder: Recorder,
    kind: ApiResource,
    set_kind: ApiResource,
    deployments: Arc<ObjectCache<Deployment>>,
    sets: Arc<ObjectCache<ReplicaSet>>,
    pods: Arc<ObjectCache<Pod>>,
}

/// The hash of a template. It is the same for a Deployment's template and for its ReplicaSets' templates.
fn template_hash(template: &Value) -> String {
    let mut plain = template.clone();
    if let Some(labels) = plain.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(TEMPLATE_HASH);
    }
    hash(&plain)
}

fn revision(set: &ReplicaSet) -> i64 {
    set.annotations().get(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(deployment) = self.deployments.get(key) else { return Ok(None) };
        let wanted_hash = template_hash(&deployment.spec.template);
        let mut owned = self.sets.owned_by(pods::uid(deployment.as_ref()));
        owned.sort_by_key(|set| (set.creation_timestamp().map(|time| time.0), revision(set), set.name_any()));
        if deployment.metadata.deletion_timestamp.is_none() {
            let mut facts: Vec<_> = owned.iter().map(|set| self.facts(set, &wanted_hash)).collect();
            // If two sets have the same template, the older one is used.
            let first_new = facts.iter().position(|set| set.is_new);
            for (at, set) in facts.iter_mut().enumerate() {
                set.is_new = Some(at) == first_new;
            }
            let new = first_new.and_then(|at| owned.get(at));
            let last = owned.iter().map(|set| revision(set)).max().unwrap_or(0);
            if let Some(new) = new {
                self.mark(&deployment, new, last).await?;
            }
            for step in plan(&deployment.spec, &facts) {
                match step {
                    Step::Create(replicas) => {
                        self.create(&deployment, replicas, &wanted_hash, last + 1).await?;
                    }
                    Step::Scale(name, replicas) => self.scale(&deployment, &owned, &name, replicas).await?,
                }
            }
            self.forget_old(&deployment, &owned, &wanted_hash).await?;
        }
        self.report(&deployment, &wanted_hash).await?;
        Ok(None)
    }

    fn facts(&self, set: &ReplicaSet, wanted_hash: &str) -> Set {
        let pods = self.pods.owned_by(pods::uid(set));
        let status = set.status.clone().unwrap_or_default();
        Set {
            name: set.name_any(),
            is_new: template_hash(&set.spec.template) == wanted_hash,
            wanted: set.spec.replicas,
            available: status.available_replicas,
            lingering: pods.iter().filter(|pod| !pods::is_terminal(pod)).count(),
        }
    }

    async fn create(
        &self,
        deployment: &Deployment,
        replicas: i32,
        hash: &str,
        revision: i64,
    ) -> Result<(), Error> {
        let (name, namespace) = (deployment.name_any(), deployment.namespace().unwrap_or_default());
        let mut template = deployment.spec.template.clone();
        pods::set(&mut template, "labels", TEMPLATE_HASH, hash);
        let mut selector = json!(deployment.spec.selector);
        selector["matchLabels"][TEMPLATE_HASH] = json!(hash);
        let owner = pods::controller_ref("apps/v1", "Deployment", &name, pods::uid(deployment));
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": format!("{name}-{hash}"), "namespace": namespace, "ownerReferences": [owner],
                "labels": template["metadata"]["labels"], "annotations": {REVISION: revision.to_string()},
            },
            "spec": {
                "replicas": replicas, "minReadySeconds": deployment.spec.min_ready_seconds,
                "selector": selector, "template": template,
            },
        });
        match request::create::<ReplicaSet>(&self.client, &self.set_kind, &namespace, &set).await {
            Ok(made) => {
                let message = format!("Scaled up replica set {} from 0 to {replicas}", made.name_any());
                self.sets.wrote(made);
                self.recorder.normal(deployment, &self.kind, "ScalingReplicaSet", &message).await;
                Ok(())
            }
            Err(error) => {
                let message = format!("Failed to create new replica set: {}", error.message());
                self.recorder.warn(deployment, &self.kind, "ReplicaSetCreateError", &message).await;
                Err(error)
            }
        }
    }

    async fn scale(
        &self,
        deployment: &Deployment,
        owned: &[Arc<ReplicaSet>],
        name: &str,
        replicas: i32,
    ) -> Result<(), Error> {
        let Some(set) = owned.iter().find(|set| set.name_any() == name) else { return Ok(()) };
        let patch =
            json!({"metadata": {"resourceVersion": set.resource_version()}, "spec": {"replicas": replicas}});
        let key = Key::of(set.as_ref());
        let written = request::merge::<ReplicaSet>(&self.client, &self.set_kind, &key, None, &patch).await?;
        self.sets.wrote(written);
        let direction = if replicas > set.spec.replicas { "up" } else { "down" };
        let message =
            format!("Scaled {direction} replica set {name} from {} to {replicas}", set.spec.replicas);
        self.recorder.normal(deployment, &self.kind, "ScalingReplicaSet", &message).await;
        Ok(())
    }

    /// Gives the ReplicaSet of the current template the highest revision number, and copies the number to the
    /// Deployment.
    async fn mark(&self, deployment: &Deployment, new: &ReplicaSet, last: i64) -> Result<(), Error> {
        let mut number = revision(new);
        if number < last || number == 0 {
            number = last + 1;
            let patch = json!({"metadata": {
                "resourceVersion": new.resource_version(), "annotations": {REVISION: number.to_string()}}});
            let key = Key::of(new);
            let written =
                request::merge::<ReplicaSet>(&self.client, &self.set_kind, &key, None, &patch).await?;
            self.sets.wrote(written);
        }
        if deployment.annotations().get(REVISION) == Some(&number.to_string()) {
            return Ok(());
        }
        // The real controller has permission to update Deployments, not to patch them. The cached Deployment lacks some
        // fields, so read the whole object for the update.
        let key = Key::of(deployment);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &self.kind);
        let mut whole = api.get(&key.name).await?;
        whole.annotations_mut().insert(REVISION.to_owned(), number.to_string());
        let written = serde_json::to_value(&whole).map_err(Error::SerdeError)?;
        let written = request::replace::<Deployment>(&self.client, &self.kind, &key, None, &written).await?;
        self.deployments.wrote(written);
        Ok(())
    }

    async fn forget_old(
        &self,
        deployment: &Deployment,
        owned: &[Arc<ReplicaSet>],
        wanted_hash: &str,
    ) -> Result<(), Error> {
        let mut old: Vec<_> =
            owned.iter().filter(|set| template_hash(&set.spec.template) != wanted_hash).collect();
        old.sort_by_key(|set| revision(set));
        let limit = usize::try_from(deployment.spec.revision_history_limit).unwrap_or(usize::MAX);
        let surplus = old.len().saturating_sub(limit);
        for set in &old[..surplus] {
            let empty =
                set.spec.replicas == 0 && set.status.as_ref().is_none_or(|status| status.replicas == 0);
            if !empty || set.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let key = Key::of(set.as_ref());
            match request::delete::<ReplicaSet>(&self.client, &self.set_kind, &key, &DeleteParams::default())
                .await
            {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn report(&self, deployment: &Deployment, wanted_hash: &str) -> Result<(), Error> {
        // `mark` may have changed the Deployment.
        let Some(deployment) = self.deployments.get(&Key::of(deployment)) else { return Ok(()) };
        let sets = self.sets.owned_by(pods::uid(deployment.as_ref()));
        let status = status(&deployment, &sets, wanted_hash, Timestamp::now());
        if deployment.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let written = request::write_status(&self.client, &self.kind, deployment.as_ref(), &status).await?;
        self.deployments.wrote(written);
        Ok(())
    }
}

fn status(deployment: &Deployment, sets: &[Arc<ReplicaSet>], wanted_hash: &str, now: Timestamp) -> Value {
    let sum = |what: &dyn Fn(&ReplicaSet) -> i32| sets.iter().map(|set| what(set)).sum::<i32>();
    let of = |set: &ReplicaSet| set.status.clone().unwrap_or_default();
    let updated = sets
        .iter()
        .filter(|set| template_hash(&set.spec.template) == wanted_hash)
        .map(|set| of(set).replicas)
        .sum::<i32>();
    let (replicas, ready, available) = (
        sum(&|set| of(set).replicas),
        sum(&|set| of(set).ready_replicas),
        sum(&|set| of(set).available_replicas),
    );
    let unavailable = (sum(&|set| set.spec.replicas) - available).max(0);
    let wanted = deployment.spec.replicas;
    let enough = available >= wanted - plan::max_unavailable(&deployment.spec);
    let complete = updated == wanted && replicas == wanted && available == wanted;
    let before = deployment.status.clone().unwrap_or_default();
    let conditions = [
        if enough {
            condition(
                &before,
                "Available",
                true,
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
                now,
            )
        } else {
            condition(
                &before,
                "Available",
                false,
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
                now,
            )
        },
        if complete {
            condition(
                &before,
                "Progressing",
                true,
                "NewReplicaSetAvailable",
                "ReplicaSet has successfully progressed.",
                now,
            )
        } else {
            condition(&before, "Progressing", true, "ReplicaSetUpdated", "ReplicaSet is progressing.", now)
        },
    ];
    let mut status = json!({"observedGeneration": deployment.metadata.generation, "conditions": conditions});
    let numbers = [
        ("replicas", replicas),
        ("updatedReplicas", updated),
        ("readyReplicas", ready),
        ("availableReplicas", available),
        ("unavailableReplicas", unavailable),
    ];
    // Zeros are omitted, as in the real API server.
    for (name, number) in numbers.iter().filter(|(_, number)| *number != 0) {
        status[*name] = json!(number);
    }
    status
}

fn condition(before: &Value, kind: &str, holds: bool, reason: &str, message: &str, now: Timestamp) -> Value {
    let status = if holds { "True" } else { "False" };
    let shown = before["conditions"].as_array().into_iter().flatten().find(|shown| shown["type"] == kind);
    let text = |shown: &Value, field: &str| shown[field].as_str().map(str::to_owned);
    let same = shown.filter(|shown| shown["status"] == status);
    let since = same.and_then(|shown| text(shown, "lastTransitionTime")).unwrap_or_else(|| stamp(now));
    let unchanged = same.filter(|shown| shown["reason"] == reason);
    let updated = unchanged.and_then(|shown| text(shown, "lastUpdateTime")).unwrap_or_else(|| stamp(now));
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since, "lastUpdateTime": updated,
    })
}
