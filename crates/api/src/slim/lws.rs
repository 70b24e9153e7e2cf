//! LeaderWorkerSets.

use std::borrow::Cow;

use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::Deserialize;

use super::{PodTemplate, meta, or_default};

/// A LeaderWorkerSet: replicas of a group that has one leader and some workers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LeaderWorkerSet {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: LeaderWorkerSetSpec,
}

impl LeaderWorkerSet {
    /// How many groups there should be.
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// How many pods each group has, the leader included.
    pub fn size(&self) -> i32 {
        self.spec.leader_worker_template.size.unwrap_or(1)
    }

    /// The templates that its pods are made from.
    pub fn templates(&self) -> Vec<&PodTemplate> {
        let template = &self.spec.leader_worker_template;
        let leader = template.leader_template.as_ref().unwrap_or(&template.worker_template);
        // A group of one is its leader.
        if self.size() > 1 { vec![leader, &template.worker_template] } else { vec![leader] }
    }

    /// Whether the loss of one pod makes the controller rebuild the whole group. Only `None`, and its old name
    /// `Default`, leave the other pods alone; a policy that is not known here is taken to rebuild.
    pub fn falls_whole(&self) -> bool {
        !matches!(self.spec.leader_worker_template.restart_policy.as_deref(), Some("None" | "Default"))
    }
}

impl Resource for LeaderWorkerSet {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "LeaderWorkerSet".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "leaderworkerset.x-k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "leaderworkersets".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What was asked of a LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerSetSpec {
    /// How many groups there should be; 1 where nothing is said.
    pub replicas: Option<i32>,
    /// What a group looks like.
    #[serde(deserialize_with = "or_default")]
    pub leader_worker_template: LeaderWorkerTemplate,
}

/// What a group looks like.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderWorkerTemplate {
    /// How many pods it has, the leader included; 1 where nothing is said.
    pub size: Option<i32>,
    /// What becomes of the group when one of its pods is lost.
    pub restart_policy: Option<String>,
    /// What leaders are made from; the same as workers where nothing is said.
    pub leader_template: Option<PodTemplate>,
    /// What workers are made from.
    #[serde(deserialize_with = "or_default")]
    pub worker_template: PodTemplate,
}
