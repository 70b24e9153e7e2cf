//! `PodUnavailableBudget`: OpenKruise's budget for evictions, deletes and updates, with groups.
//!
//! The fields are those of OpenKruise 1.9, so that its manifests apply unchanged, and the group policy of its proposal.
//! Its annotations have the same meaning here: [`crate::names::kruise`].

#![expect(clippy::duplicated_attributes, reason = "each printcolumn has its own type")]

mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

pub use status::PodUnavailableBudgetStatus;

/// The pods that the budget covers, and how many of them, or groups of them, must stay available.
///
/// The annotation kruise.io/pub-protect-operations lists the operations that the budget protects against. The
/// annotation pub.kruise.io/protect-total-replicas sets the expected number of pods, or of groups with podGroupPolicy,
/// and overrides the scale of their owner.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policy.kruise.io",
    version = "v1alpha1",
    kind = "PodUnavailableBudget",
    plural = "podunavailablebudgets",
    shortname = "pub",
    namespaced,
    status = "PodUnavailableBudgetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Keeps enough pods, or groups of pods, available while they are evicted, deleted and updated.",
    printcolumn(
        name = "Allowed",
        type_ = "integer",
        json_path = ".status.unavailableAllowed",
        description = "Pods or groups that may become unavailable now"
    ),
    printcolumn(
        name = "Current",
        type_ = "integer",
        json_path = ".status.currentAvailable",
        description = "Pods or groups that are available now"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".status.desiredAvailable",
        description = "Pods or groups that must stay available"
    ),
    printcolumn(
        name = "Total",
        type_ = "integer",
        json_path = ".status.totalReplicas",
        description = "Expected pods or groups"
    )
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
        "message": "the budget sets no limit: set maxUnavailable or minAvailable",
    },
    {
        "rule": "has(self.podGroupPolicy) || !has(self.minAvailable) || !has(self.maxUnavailable)",
        "message": "maxUnavailable and minAvailable exclude each other, except with podGroupPolicy: \
                    keep one of them",
    },
]))]
pub struct PodUnavailableBudgetSpec {
    /// Selects the covered pods by their labels. Mutually exclusive with targetRef. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::some_labels")]
    pub selector: Option<LabelSelector>,

    /// The workload whose pods are covered. Mutually exclusive with selector. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<WorkloadReference>,

    /// Maximum number of unavailable pods: a number, or a percentage of the expected pods, rounded up. With
    /// podGroupPolicy it counts groups. Mutually exclusive with minAvailable, except with podGroupPolicy, where both
    /// apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::amount")]
    pub max_unavailable: Option<IntOrString>,

    /// Minimum number of available pods: a number, or a percentage of the expected pods, rounded up. With
    /// podGroupPolicy it counts groups. Mutually exclusive with maxUnavailable, except with podGroupPolicy, where both
    /// apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::amount")]
    pub min_available: Option<IntOrString>,

    /// Forms groups of pods that serve together. If not set, each pod counts by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_group_policy: Option<LabelGroupPolicy>,
}

/// Refers to one workload in the budget's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct WorkloadReference {
    /// The workload's API version, such as apps/v1.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// The workload's kind, such as Deployment.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// The workload's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Forms groups by a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelGroupPolicy {
    /// The label that forms groups, such as leaderworkerset.sigs.k8s.io/group-index. Pods with the same value are a
    /// group. Pods without the label count one by one.
    #[schemars(length(max = 317), extend("x-kubernetes-validations" = schema::label_key_rules()))]
    pub group_label_key: String,

    /// Number of pods of a group that must be available for the group to be available. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_ready_replicas: Option<i32>,
}
