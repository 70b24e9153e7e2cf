//! Objects of other APIs, reduced to the fields that Quorate reads.
//!
//! Each type decodes from the full object of any supported Kubernetes version. Fields that are not named here are
//! skipped and not stored, and a `null` is the same as a missing field. The metadata keeps what identifies and links an
//! object, and the annotations of [`keeps_annotation`]. The kinds can be listed and watched through `kube::Api`. They
//! must not be written back, because the skipped fields would be lost.
//!
//! Kinds that Kubernetes serves in different versions over its releases ([`PodGroup`], [`Workload`]) take a
//! `kube::core::ApiResource` with the version to request. [`Scaled`] reads the scale of kinds that are only known at
//! run time.

mod controller;
mod definition;
mod group;
mod job;
mod lws;
mod meta;
mod namespace;
mod node;
mod pdb;
mod pod;
mod salvage;
mod scaled;
mod webhooks;

pub use controller::{
    Deployment, DeploymentSpec, DeploymentStrategy, PodTemplate, PodTemplateMeta, ReplicaSet, ScaledSpec,
    StatefulSet,
};
pub use definition::{CustomResourceDefinition, DefinedNames, DefinedVersion, DefinitionSpec};
pub use group::{
    BasicPolicy, DisruptionMode, GangPolicy, GroupTemplate, OwnWorkload, PodGroup, PodGroupSpec,
    SchedulingPolicy, TemplateReference, Workload, WorkloadSpec,
};
pub use job::{Job, JobSpec, JobStatus, Templated, TemplatedSpec};
pub use lws::{LeaderWorkerSet, LeaderWorkerSetSpec, LeaderWorkerTemplate};
pub use meta::keeps_annotation;
pub use namespace::Namespace;
pub use node::{Lease, LeaseSpec, Node, NodeSpec, NodeStatus};
pub use pdb::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
pub use pod::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, Phase, Pod, PodSpec, PodStatus,
    ReadinessGate, ResizePolicy, Resources, SchedulingGroup, WorkloadReference,
};
pub use scaled::{ReplicasPath, Scaled};
pub use webhooks::{ValidatingWebhookConfiguration, Webhook};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer};

/// A condition of a pod, a node or a budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// The type of the condition.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    /// The reason, in one word.
    pub reason: Option<String>,
    /// The reason, in a sentence.
    pub message: Option<String>,
    /// Time when the status last changed.
    pub last_transition_time: Option<Time>,
    /// Time of the last probe; only conditions of pods have it.
    pub last_probe_time: Option<Time>,
}

impl Condition {
    /// The condition of that type, if there is one.
    pub fn find<'a>(conditions: &'a [Self], type_: &str) -> Option<&'a Self> {
        conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Whether the status is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// Reads `null` as the default value, as Kubernetes does.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Makes a kind whose version is found by discovery usable with `kube::Api`.
macro_rules! by_discovery {
    ($kind:ident) => {
        impl kube::Resource for $kind {
            type DynamicType = kube::core::ApiResource;
            type Scope = kube::core::DynamicResourceScope;

            fn kind(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                resource.kind.as_str().into()
            }

            fn group(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                resource.group.as_str().into()
            }

            fn version(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                resource.version.as_str().into()
            }

            fn api_version(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                resource.api_version.as_str().into()
            }

            fn plural(resource: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                resource.plural.as_str().into()
            }

            fn meta(&self) -> &kube::core::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
use by_discovery;
