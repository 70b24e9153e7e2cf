//! `Workload`: pod groups, for clusters where the upstream Workload API is off.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pod groups of a workload.
///
/// The pod labels quorate.dev/workload, quorate.dev/pod-group and quorate.dev/pod-group-replica assign a pod to a
/// replica of a group.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "scheduling.quorate.dev",
    version = "v1alpha1",
    kind = "Workload",
    plural = "workloads",
    shortname = "qwl",
    category = "quorate",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "Describes groups of pods that only work together, for clusters that do not use the upstream Workload API."
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// The groups, by name.
    #[schemars(
        length(min = 1, max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub pod_groups: Vec<PodGroup>,
}

/// A group of pods, in one or more replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    /// The group's name, unique within the workload.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [{
        "rule": "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "message": "must be lower-case letters, digits and '-', and begin and end with a letter or digit",
    }]))]
    pub name: String,
    /// Expected number of replicas of the group.
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Defines when a replica of the group is healthy.
    pub policy: PodGroupPolicy,
}

/// Defines when a replica of a group is healthy. Exactly one of gang and basic must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.gang) || has(self.basic)",
        "message": "policy is empty: set gang with a minCount, or basic: {}",
    },
    {
        "rule": "!has(self.gang) || !has(self.basic)",
        "message": "gang and basic exclude each other: keep one of them",
    },
]))]
pub struct PodGroupPolicy {
    /// The replica is healthy while at least minCount of its pods are healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangPolicy>,
    /// The replica is healthy while at least one of its pods is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<BasicPolicy>,
}

impl PodGroupPolicy {
    /// The minimum number of pods in a healthy replica.
    pub fn min_count(&self) -> i32 {
        self.gang.as_ref().map_or(1, |gang| gang.min_count)
    }
}

/// A group that needs several healthy pods at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangPolicy {
    /// Number of pods of a replica that must be healthy for the replica to be healthy.
    #[schemars(range(min = 1))]
    pub min_count: i32,
}

/// A group whose pods do not depend on each other. This object has no fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BasicPolicy {}
