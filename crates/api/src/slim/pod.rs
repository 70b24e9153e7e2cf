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
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    /// The observed state.
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

/// The spec of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node that the pod is bound to.
    pub node_name: Option<String>,
    /// Its pod group, from Kubernetes 1.36 on.
    pub scheduling_group: Option<SchedulingGroup>,
    /// Its workload and pod group, in Kubernetes 1.35.
    pub workload_ref: Option<WorkloadReference>,
    /// Seconds until the kubelet ends the pod.
    pub active_deadline_seconds: Option<i64>,
    /// Seconds that its containers may take to stop.
    pub termination_grace_period_seconds: Option<i64>,
    /// The conditions that must be True before the pod is ready.
    #[serde(deserialize_with = "or_default")]
    pub readiness_gates: Vec<ReadinessGate>,
    /// The desired resources of the pod as a whole.
    #[serde(deserialize_with = "or_default")]
    pub resources: Resources,
    /// Its containers.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Its init containers, including sidecars.
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
    /// The replica of the pod group; `None` for a group without replicas.
    pub pod_group_replica_key: Option<String>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The desired image.
    pub image: Option<String>,
    /// The desired resources.
    #[serde(deserialize_with = "or_default")]
    pub resources: Resources,
    /// The resources whose change restarts the container.
    #[serde(deserialize_with = "or_default")]
    pub resize_policy: Vec<ResizePolicy>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
}

impl Container {
    /// Whether an init container is a sidecar, which keeps running beside the regular containers.
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
    /// The requested amounts.
    #[serde(deserialize_with = "or_default")]
    pub requests: BTreeMap<String, Quantity>,
    /// The maximum amounts.
    #[serde(deserialize_with = "or_default")]
    pub limits: BTreeMap<String, Quantity>,
}

/// The status of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// The generation of the spec that the kubelet has read.
    pub observed_generation: Option<i64>,
    /// Its phase.
    #[serde(deserialize_with = "or_default")]
    pub phase: Phase,
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    /// The statuses of its containers.
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// The statuses of its init containers.
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum Phase {
    /// Not all of its containers have been started.
    Pending,
    /// Bound to a node, and started.
    Running,
    /// All of its containers terminated with success.
    Succeeded,
    /// All of its containers terminated, at least one of them with a failure.
    Failed,
    /// Missing, or a value that Quorate does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// Whether the pod has terminated and will not run again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The status of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The ID from the container runtime; it changes with each restart.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// The name of the image that runs. It may differ from the name in the spec.
    pub image: Option<String>,
    /// The digest of the image that runs.
    #[serde(rename = "imageID")]
    pub image_id: Option<String>,
    /// Whether it passes its readiness probe.
    #[serde(deserialize_with = "or_default")]
    pub ready: bool,
    /// Its state.
    #[serde(deserialize_with = "or_default")]
    pub state: ContainerState,
    /// The resources that the kubelet has applied.
    pub resources: Option<Resources>,
}

/// The state of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Set while the container runs.
    pub running: Option<ContainerStateRunning>,
}

/// The state of a running container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateRunning {
    /// Time when it started.
    pub started_at: Option<Time>,
}
