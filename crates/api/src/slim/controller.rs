//! Controllers of pods, reduced to their scale, their owners and their pod templates.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{meta, or_default};

/// A replica set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = apps::ReplicaSet)]
#[serde(default)]
pub struct ReplicaSet {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: ScaledSpec,
}

/// A stateful set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = apps::StatefulSet)]
#[serde(default)]
pub struct StatefulSet {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: ScaledSpec,
}

/// The spec of a controller of pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaledSpec {
    /// The desired number of replicas; Kubernetes defaults to 1.
    pub replicas: Option<i32>,
    /// The pods it controls.
    pub selector: Option<LabelSelector>,
    /// The template of its pods.
    #[serde(deserialize_with = "or_default")]
    pub template: PodTemplate,
}

/// A deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = apps::Deployment)]
#[serde(default)]
pub struct Deployment {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: DeploymentSpec,
}

impl Deployment {
    /// Whether a rollout removes all old pods before it creates new ones. The user chose that gap.
    pub fn recreates(&self) -> bool {
        self.spec.strategy.type_.as_deref() == Some("Recreate")
    }
}

/// The spec of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// The desired number of replicas; Kubernetes defaults to 1.
    pub replicas: Option<i32>,
    /// The pods it controls.
    pub selector: Option<LabelSelector>,
    /// How the rollout replaces pods.
    #[serde(deserialize_with = "or_default")]
    pub strategy: DeploymentStrategy,
    /// The template of its pods.
    #[serde(deserialize_with = "or_default")]
    pub template: PodTemplate,
}

/// How a deployment replaces pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
}

/// A pod template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// The metadata for its pods.
    #[serde(deserialize_with = "or_default")]
    pub metadata: PodTemplateMeta,
}

/// The metadata of a pod template, reduced to owners, labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTemplateMeta {
    /// The labels for its pods.
    pub labels: Option<BTreeMap<String, String>>,
    /// The annotations that Quorate reads.
    #[serde(deserialize_with = "meta::annotations")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// The owners to add to the pods, in addition to their controller.
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}
