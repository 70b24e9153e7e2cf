//! `DisruptionBudget`: how many pods, or groups of pods, must stay available while the cluster changes.

#![expect(clippy::duplicated_attributes, reason = "each printcolumn has its own type")]

mod status;
mod stored;

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

pub use status::{
    Claim, ContainerTarget, DisruptionBudgetStatus, GroupStatus, Opened, SourceStatus, Token, UpdateTarget,
};
pub use stored::StoredBudget;

/// The pods that the budget covers, and how many units of them must stay available.
///
/// A unit is a pod, or a whole group of pods if budgetScope or podGroupPolicy selects groups.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policy.quorate.dev",
    version = "v1alpha1",
    kind = "DisruptionBudget",
    plural = "disruptionbudgets",
    shortname = "dbu",
    category = "quorate",
    namespaced,
    status = "DisruptionBudgetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Keeps enough pods, or whole groups of pods, available while the cluster changes.",
    printcolumn(
        name = "Scope",
        type_ = "string",
        json_path = ".status.scope",
        description = "What minAvailable and maxUnavailable count: pods, groups, or groups of the Workload API"
    ),
    printcolumn(
        name = "Min",
        type_ = "string",
        json_path = ".spec.minAvailable",
        description = "Units that must stay available"
    ),
    printcolumn(
        name = "Max",
        type_ = "string",
        json_path = ".spec.maxUnavailable",
        description = "Units that may be unavailable"
    ),
    printcolumn(
        name = "Allowed",
        type_ = "integer",
        json_path = ".status.disruptionsAllowedReplicas",
        description = "Units that may be disrupted now"
    ),
    printcolumn(
        name = "Healthy",
        type_ = "integer",
        json_path = ".status.currentHealthyReplicas",
        description = "Units that are healthy now"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".status.desiredHealthyReplicas",
        description = "Units that must stay healthy"
    ),
    printcolumn(
        name = "Expected",
        type_ = "integer",
        json_path = ".status.expectedReplicas",
        description = "Expected units"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.selector) || has(self.targetRef)",
        "message": "the budget covers no pods: set selector or targetRef",
    },
    {
        "rule": "!has(self.selector) || !has(self.targetRef)",
        "message": "selector and targetRef exclude each other: keep one of them",
    },
    {
        "rule": "has(self.minAvailable) || has(self.maxUnavailable)",
        "message": "the budget sets no limit: set minAvailable, maxUnavailable or both",
    },
    {
        // Defaulting sets budgetScope before this rule runs. The second test is for validators that skip defaulting.
        "rule": "!has(self.podGroupPolicy) || !has(self.budgetScope) || self.budgetScope == 'Pod'",
        "message": "podGroupPolicy forms groups of its own and excludes budgetScope Workload and PodGroup: \
                    remove one of the two",
    },
]))]
pub struct DisruptionBudgetSpec {
    /// Selects the covered pods by their labels. An empty selector covers every pod of the namespace.
    /// Exactly one of selector and targetRef must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// The object whose pods are covered: any object with a scale subresource in the same namespace, such as a
    /// Deployment, a StatefulSet or a LeaderWorkerSet. Exactly one of selector and targetRef must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetReference>,

    /// Minimum number of available units: a number, or a percentage of the expected units, rounded up.
    /// At least one of minAvailable and maxUnavailable must be set. If both are set, both apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::amount")]
    pub min_available: Option<IntOrString>,

    /// Maximum number of unavailable units: a number, or a percentage of the expected units, rounded up.
    /// At least one of minAvailable and maxUnavailable must be set. If both are set, both apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::amount")]
    pub max_unavailable: Option<IntOrString>,

    /// The unit that the budget counts. Pod: each pod by itself. Workload: each replica of a pod group of the Workload
    /// API. Such a group is healthy while at least minCount of its pods are healthy. The budget denies the eviction of
    /// a pod that belongs to no group. PodGroup is an alias of Workload. Defaults to Pod.
    #[serde(default)]
    pub budget_scope: BudgetScope,

    /// Forms groups without the Workload API, by a label or by a common owner. The units are then these groups.
    /// Mutually exclusive with budgetScope Workload and PodGroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_group_policy: Option<PodGroupPolicy>,

    /// Expected number of units. Set it if neither the Workload API nor the scale of the owner provides this number, or
    /// to override the number that they provide. Percentages are of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub expected_replicas: Option<i32>,

    /// Whether a running pod that is not healthy may be evicted. IfHealthyBudget: only while the desired number of
    /// units is healthy. AlwaysAllow: always. Defaults to IfHealthyBudget.
    #[serde(default)]
    pub unhealthy_pod_eviction_policy: UnhealthyPodEvictionPolicy,

    /// Operations that the budget protects against. Evict: requests to the eviction API, which kubectl drain and
    /// autoscalers use. Delete: deletion of the pod. Update: in-place changes that restart containers. Resize: changes
    /// of resources that restart containers. Relabel: changes of labels or owners that take the pod out of the budget or
    /// out of a group of it. Defaults to Evict only.
    #[serde(default = "default_operations")]
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    pub operations: BTreeSet<Operation>,

    /// Whether the budget denies requests. Enforce: it denies them. Observe: it decides, counts and reports, but never
    /// denies. Defaults to Enforce.
    #[serde(default)]
    pub enforcement: Enforcement,
}

impl Default for DisruptionBudgetSpec {
    /// An empty spec, with the defaults of the API server.
    fn default() -> Self {
        Self {
            selector: None,
            target_ref: None,
            min_available: None,
            max_unavailable: None,
            budget_scope: BudgetScope::default(),
            pod_group_policy: None,
            expected_replicas: None,
            unhealthy_pod_eviction_policy: UnhealthyPodEvictionPolicy::default(),
            operations: default_operations(),
            enforcement: Enforcement::default(),
        }
    }
}

/// Refers to one object in the budget's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct TargetReference {
    /// The object's API version, such as apps/v1.
    #[schemars(length(max = 317), extend("x-kubernetes-validations" = schema::api_version_rules()))]
    pub api_version: String,
    /// The object's kind, such as StatefulSet.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// The object's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Forms groups of pods that only work together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.groupLabelKey) || has(self.groupOwner)",
        "message": "podGroupPolicy forms no groups: set groupLabelKey or groupOwner",
    },
    {
        "rule": "!has(self.groupLabelKey) || !has(self.groupOwner)",
        "message": "groupLabelKey and groupOwner exclude each other: keep one of them",
    },
]))]
pub struct PodGroupPolicy {
    /// The label that forms groups, such as leaderworkerset.sigs.k8s.io/group-index. Pods with the same value are a
    /// group. Exactly one of groupLabelKey and groupOwner must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317), extend("x-kubernetes-validations" = schema::label_key_rules()))]
    pub group_label_key: Option<String>,

    /// The kind of owner that forms groups. Pods that share an owner of this kind are a group. Exactly one of
    /// groupLabelKey and groupOwner must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_owner: Option<GroupOwner>,

    /// Number of pods of a group that must be healthy for the group to be healthy. Defaults to the size of the group if
    /// that is known, as it is for LeaderWorkerSet, and to 1 otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_ready_replicas: Option<i32>,
}

/// Refers to a kind of owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct GroupOwner {
    /// The owner's API version, such as batch.example.com/v1. Only the API group is compared: any version of the group
    /// matches.
    #[schemars(length(max = 317), extend("x-kubernetes-validations" = schema::api_version_rules()))]
    pub api_version: String,
    /// The owner's kind, such as JobGroup.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

/// The unit that minAvailable and maxUnavailable count.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum BudgetScope {
    /// Each pod by itself.
    #[default]
    Pod,
    /// Each replica of a pod group of the Workload API.
    Workload,
    /// An alias of `Workload`.
    PodGroup,
}

/// Whether a running pod that is not healthy may be evicted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum UnhealthyPodEvictionPolicy {
    /// Only while the desired number of units is healthy.
    #[default]
    IfHealthyBudget,
    /// Always.
    AlwaysAllow,
}

/// An operation that disrupts a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Operation {
    /// A request to the eviction API.
    Evict,
    /// Deletion of the pod.
    Delete,
    /// An in-place change that restarts containers.
    Update,
    /// A change of resources that restarts containers.
    Resize,
    /// A change of labels or owners that takes the pod out of the budget or out of a group of it.
    Relabel,
}

/// Whether a budget denies requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Enforcement {
    /// The budget denies requests.
    #[default]
    Enforce,
    /// The budget decides, counts and reports, but never denies.
    Observe,
}

fn default_operations() -> BTreeSet<Operation> {
    BTreeSet::from([Operation::Evict])
}
