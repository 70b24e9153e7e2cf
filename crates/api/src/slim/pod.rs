//! Pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{Condition, meta, or_default};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = core::Pod)]
#[serde(default)]
pub struct Pod {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    /// What is.
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

/// What was asked of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it is bound to.
    pub node_name: Option<String>,
    /// Its pod group, from Kubernetes 1.36 on.
    pub scheduling_group: Option<SchedulingGroup>,
    /// Its workload and pod group, in Kubernetes 1.35.
    pub workload_ref: Option<WorkloadReference>,
    /// How long it may run; the kubelet ends it then.
    pub active_deadline_seconds: Option<i64>,
    /// The conditions that must be True before it is ready.
    #[serde(deserialize_with = "or_default")]
    pub readiness_gates: Vec<ReadinessGate>,
    /// Its containers.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Its init containers, sidecars among them.
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
}

/// A condition that must be True before a pod is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    /// The type of the condition.
    #[serde(deserialize_with = "or_default")]
    pub condition_type: String,
}

/// The link from a pod to a `PodGroup` object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroup {
    /// The name of the pod group.
    pub pod_group_name: Option<String>,
}

/// The link from a pod to a pod group within a `Workload` object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadReference {
    /// The workload.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The pod group.
    #[serde(deserialize_with = "or_default")]
    pub pod_group: String,
    /// The replica of the pod group; a group without replicas has none.
    pub pod_group_replica_key: Option<String>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The image asked for.
    pub image: Option<String>,
    /// The resources asked for.
    #[serde(deserialize_with = "or_default")]
    pub resources: Resources,
    /// Which changes of resources restart it.
    #[serde(deserialize_with = "or_default")]
    pub resize_policy: Vec<ResizePolicy>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
}

impl Container {
    /// Whether it is an init container that stays beside the others.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

/// Whether a change of one resource restarts the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResizePolicy {
    /// The resource, such as `cpu`.
    #[serde(deserialize_with = "or_default")]
    pub resource_name: String,
    /// `NotRequired` or `RestartContainer`.
    #[serde(deserialize_with = "or_default")]
    pub restart_policy: String,
}

/// Resources by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// What is reserved.
    #[serde(deserialize_with = "or_default")]
    pub requests: BTreeMap<String, Quantity>,
    /// What is not exceeded.
    #[serde(deserialize_with = "or_default")]
    pub limits: BTreeMap<String, Quantity>,
}

/// What is known of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Where it is in its life.
    #[serde(deserialize_with = "or_default")]
    pub phase: Phase,
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    /// Its containers.
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Its init containers.
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum Phase {
    /// Not all of its containers have been started.
    Pending,
    /// Bound to a node, and started.
    Running,
    /// All of its containers ended well.
    Succeeded,
    /// All of its containers ended, one of them badly.
    Failed,
    /// Not given, or a word that is not known here.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// Whether the pod has ended for good.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// What is known of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The ID that the runtime gave it; another one after each restart.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// The image it runs, by the name it was asked for or another one.
    pub image: Option<String>,
    /// The image it runs, by its digest.
    #[serde(rename = "imageID")]
    pub image_id: Option<String>,
    /// Whether it passes its readiness probe.
    #[serde(deserialize_with = "or_default")]
    pub ready: bool,
    /// What it is doing.
    #[serde(deserialize_with = "or_default")]
    pub state: ContainerState,
    /// The resources that the kubelet has given it.
    pub resources: Option<Resources>,
}

/// What a container is doing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Present while it runs.
    pub running: Option<ContainerStateRunning>,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateRunning {
    /// Since when.
    pub started_at: Option<Time>,
}
