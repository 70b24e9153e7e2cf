//! Controllers of pods, as far as their scale, their owners and their pod templates go.

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
    /// What was asked for.
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
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: ScaledSpec,
}

/// What was asked of a controller of pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaledSpec {
    /// How many replicas there should be; Kubernetes takes nothing for 1.
    pub replicas: Option<i32>,
    /// The pods it controls.
    pub selector: Option<LabelSelector>,
    /// What its pods are made from.
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
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: DeploymentSpec,
}

impl Deployment {
    /// Whether a rollout takes all old pods away before it makes new ones: its owner asked for the gap.
    pub fn recreates(&self) -> bool {
        self.spec.strategy.type_.as_deref() == Some("Recreate")
    }
}

/// What was asked of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// How many replicas there should be; Kubernetes takes nothing for 1.
    pub replicas: Option<i32>,
    /// The pods it controls.
    pub selector: Option<LabelSelector>,
    /// How it replaces pods.
    #[serde(deserialize_with = "or_default")]
    pub strategy: DeploymentStrategy,
    /// What its pods are made from.
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

/// What pods are made from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// The metadata that its pods get.
    #[serde(deserialize_with = "or_default")]
    pub metadata: PodTemplateMeta,
}

/// The part of a pod template's metadata that says who owns the pods and who selects them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTemplateMeta {
    /// The labels that its pods get.
    pub labels: Option<BTreeMap<String, String>>,
    /// The annotations that matter.
    #[serde(deserialize_with = "meta::annotations")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Owners for the pods beside their controller.
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}
