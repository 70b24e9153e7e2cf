//! The status of a `DisruptionBudget`: its counts, and the ledger of admitted requests.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use quorate_engine::facts::{MAX_COMPLETE, MAX_SOURCES};
use quorate_engine::status::MAX_GROUPS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Operation;
use crate::schema;

/// The current counts of the budget, and the admitted requests that have not taken effect yet.
///
/// Fields that end in Replicas count units: pods, or groups of pods if budgetScope or podGroupPolicy selects groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionBudgetStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: i64,
    /// What the budget counts as a unit: Pod, Group (podGroupPolicy) or Workload (budgetScope).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,

    /// Number of units that may be disrupted now; the same as disruptionsAllowedReplicas.
    #[schemars(range(min = 0))]
    pub disruptions_allowed: i32,
    /// Number of healthy pods.
    #[schemars(range(min = 0))]
    pub current_healthy: i32,
    /// Number of pods that must stay healthy; for groups, the minimum number of pods that the desired groups need.
    #[schemars(range(min = 0))]
    pub desired_healthy: i32,
    /// Number of pods that the budget counts.
    #[schemars(range(min = 0))]
    pub expected_pods: i32,

    /// Number of units that may be disrupted now.
    #[schemars(range(min = 0))]
    pub disruptions_allowed_replicas: i32,
    /// Number of healthy units.
    #[schemars(range(min = 0))]
    pub current_healthy_replicas: i32,
    /// Number of units that must stay healthy.
    #[schemars(range(min = 0))]
    pub desired_healthy_replicas: i32,
    /// Expected number of units.
    #[schemars(range(min = 0))]
    pub expected_replicas: i32,

    /// The groups, broken ones first; at most 100. Empty if the units are pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = MAX_GROUPS))]
    pub groups: Vec<GroupStatus>,
    /// Number of groups that are not listed in groups.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub groups_omitted: i32,

    /// Objects, such as controllers, that set the expected number of pods or groups. The budget remembers them after
    /// their last pod is gone; at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = MAX_SOURCES))]
    pub sources: Vec<SourceStatus>,
    /// Groups whose pods had all succeeded when the last of them was removed; at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = MAX_COMPLETE))]
    pub complete_groups: Vec<String>,
    /// Hash of the coverage and the grouping of the budget when sources and completeGroups were written. If the hash
    /// has changed since, both are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remembered_for: Option<String>,

    /// Pods whose eviction or deletion was admitted but has not been observed yet: pod name to admission time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::times_by_pod")]
    pub disrupted_pods: BTreeMap<String, Time>,
    /// Pods whose update was admitted and is not finished yet: pod name to admission time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::times_by_pod")]
    pub unavailable_pods: BTreeMap<String, Time>,

    /// Admitted requests that have not been observed in the pods yet, by pod UID.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub claims: BTreeMap<String, Claim>,
    /// Number of writes to claims. A server writes a claim only if this number has not changed since its decision.
    #[schemars(range(min = 0))]
    pub ledger: i64,
    /// The resourceVersion of the pods up to which finished claims were removed. A server with an older view of the
    /// pods does not decide on a request.
    pub settled_version: String,
    /// The coverage that all servers last acknowledged. If the coverage has changed since, the budget allows no
    /// disruption until all servers acknowledge the new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened: Option<Opened>,
    /// The same hash as opened.coverage, for servers of the previous release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_for: Option<String>,
    /// The version of the ledger protocol. A server that uses another version admits nothing under this budget.
    #[schemars(range(min = 0))]
    pub protocol: i32,

    /// DisruptionAllowed: whether a unit may be disrupted now. BudgetConfigured: whether the spec is valid and can take
    /// effect, and what to do if not. Enforced: whether every server enforces the pods and operations of this budget.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The coverage that a budget was opened for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Opened {
    /// Hash of the pods and operations that the budget covers.
    pub coverage: String,
    /// The generation of the spec that has this coverage.
    pub generation: i64,
}

/// One group of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The group's name.
    pub name: String,
    /// Number of its healthy pods.
    pub healthy: i32,
    /// Number of its pods that must be healthy for the group to be healthy.
    pub min_count: i32,
    /// Number of its pods.
    pub pods: i32,
    /// Time since when the group has no pods. The group stays expected for a while, because its pods may be recreated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Time>,
}

/// An object that sets the expected number of pods or groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceStatus {
    /// The API group of the object's kind; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The object's kind.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// The part of the object, such as a pod group of a Workload.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// The object's UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A pod whose disruption was admitted. The pod counts as unhealthy while the claim exists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// The pod's name.
    pub pod: String,
    /// One token for each admitted request. The claim exists while it has a token.
    pub tokens: BTreeMap<String, Token>,
}

/// One admitted request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// The requested operation.
    pub operation: Operation,
    /// The user that sent the request.
    #[serde(default)]
    pub by: String,
    /// Time when the request was admitted.
    pub at: MicroTime,
    /// For updates and resizes: the state that the pod must reach before the request counts as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<UpdateTarget>,
}

/// The state of a pod after an admitted change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateTarget {
    /// The containers that the change touches, by name.
    pub containers: BTreeMap<String, ContainerTarget>,
    /// The label that makes the pod count as unavailable, until the label is observed on the pod; or the readiness gate
    /// that announced an update; or quorate.dev/relabelled, which stands for a change of labels or owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The resourceVersion of the pod when the change was admitted. If a later version of the pod does not contain the
    /// change, the change was replaced or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The activeDeadlineSeconds that the change sets, if the pod ends sooner by that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
}

/// The state of one container after the change. It holds hashes, because a claim must stay small and the images and
/// quantities are only compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerTarget {
    /// Hash of the ID of the previous container, which must be gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Hash of the image that the container must run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Hash of the resources that the container must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}
