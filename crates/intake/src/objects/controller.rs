//! Workload controllers: whatever owns pods or has a scale.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use quorate_api::slim;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{Activity, Controller, Counts};

use super::Incoming;
use crate::error::Unreadable;

/// A ReplicaSet as a fact.
pub fn replica_set(set: &slim::ReplicaSet) -> Result<Controller, Unreadable> {
    let kind = GroupKind::new("apps", "ReplicaSet");
    counts_pods("ReplicaSet", kind, &set.metadata, Some(set.spec.replicas.unwrap_or(1)))
}

/// A StatefulSet as a fact.
pub fn stateful_set(set: &slim::StatefulSet) -> Result<Controller, Unreadable> {
    let kind = GroupKind::new("apps", "StatefulSet");
    counts_pods("StatefulSet", kind, &set.metadata, Some(set.spec.replicas.unwrap_or(1)))
}

/// A Deployment as a fact.
pub fn deployment(deployment: &slim::Deployment) -> Result<Controller, Unreadable> {
    let kind = GroupKind::new("apps", "Deployment");
    let replicas = deployment.spec.replicas.unwrap_or(1);
    let fact = counts_pods("Deployment", kind, &deployment.metadata, Some(replicas))?;
    Ok(Controller { recreate: deployment.recreates(), ..fact })
}

/// A LeaderWorkerSet as a fact: what it counts is groups.
pub fn leader_worker_set(set: &slim::LeaderWorkerSet) -> Result<Controller, Unreadable> {
    const KIND: &str = "LeaderWorkerSet";
    let kind = GroupKind::new("leaderworkerset.x-k8s.io", KIND);
    let size = Incoming::new(KIND, &set.metadata).count("spec.leaderWorkerTemplate.size", set.size(), 1)?;
    let fact = counts_pods(KIND, kind, &set.metadata, Some(set.replicas()))?;
    let counts = Counts::Groups { size: Some(size), falls_whole: set.falls_whole() };
    Ok(Controller { counts, ..fact })
}

/// An object of any kind, which counts pods. Where it says no number its default is not known here, so its scale is not
/// either; nor has it one where its kind has none, such as a DaemonSet or a Job.
pub fn scaled(kind: GroupKind, object: &slim::Scaled) -> Result<Controller, Unreadable> {
    counts_pods("object", kind, &object.metadata, object.replicas)
}

fn counts_pods(
    word: &'static str,
    kind: GroupKind,
    meta: &ObjectMeta,
    replicas: Option<i32>,
) -> Result<Controller, Unreadable> {
    let incoming = Incoming::new(word, meta);
    let replicas = replicas.map(|replicas| incoming.count("spec.replicas", replicas, 0)).transpose()?;
    Ok(Controller {
        key: incoming.key()?,
        uid: incoming.uid()?,
        kind,
        replicas,
        counts: Counts::Pods,
        owner: incoming.controller(),
        deleting: incoming.terminating(),
        recreate: false,
        activity: Activity::Active,
        templates: None,
    })
}
