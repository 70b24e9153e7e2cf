//! LeaderWorkerSets.

use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{PodTemplate, meta, or_default};

/// A LeaderWorkerSet: replicas of a group that has one leader and some workers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LeaderWorkerSet {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: LeaderWorkerSetSpec,
}

impl LeaderWorkerSet {
    /// The desired number of groups.
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// The number of pods in each group, including the leader.
    pub fn size(&self) -> i32 {
        self.spec.leader_worker_template.size.unwrap_or(1)
    }

    /// The templates of its pods.
    pub fn templates(&self) -> Vec<&PodTemplate> {
        let template = &self.spec.leader_worker_template;
        let leader = template.leader_template.as_ref().unwrap_or(&template.worker_template);
        // A group of one pod has only a leader.
        if self.size() > 1 { vec![leader, &template.worker_template] } else { vec![leader] }
    }

    /// Whether the loss of one pod makes the controller recreate the whole group. Only the policy `None`, and its old
    /// name `Default`, keep the other pods. A policy that Quorate does not know counts as one that recreates the group.
    pub fn falls_whole(&self) -> bool {
        !matches!(self.spec.leader_worker_template.restart_policy.as_deref(), Some("None" | "Default"))
    }
}

/// The spec of a LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerSetSpec {
    /// The desired number of groups; defaults to 1.
    pub replicas: Option<i32>,
    /// The template of a group.
    #[serde(deserialize_with = "or_default")]
    pub leader_worker_template: LeaderWorkerTemplate,
}

/// The template of a group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerTemplate {
    /// The number of pods in a group, including the leader; defaults to 1.
    pub size: Option<i32>,
    /// What the controller does with the group when one of its pods is lost.
    pub restart_policy: Option<String>,
    /// The template of the leader pods; defaults to the worker template.
    pub leader_template: Option<PodTemplate>,
    /// The template of the worker pods.
    #[serde(deserialize_with = "or_default")]
    pub worker_template: PodTemplate,
}
