//! The status of a `DisruptionBudget`: what is counted, and the ledger of what was admitted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Operation;
use crate::schema;

/// The version of the ledger protocol that this build speaks; see [`DisruptionBudgetStatus::protocol`].
pub const PROTOCOL: i32 = 1;

/// How many pods may hold claims in one budget.
///
/// The schema does not say it: an answer of the API server to a claim too many could not be told from a lost race.
pub const MAX_CLAIMS: usize = 2000;

/// How many groups a status lists.
pub const MAX_GROUPS: usize = 100;

/// How many sources and how many complete groups a status remembers.
pub const MAX_REMEMBERED: usize = 256;

/// What the budget counts now, and what it has admitted and not yet seen happen.
///
/// The fields that end in Replicas count units: pods, or groups of pods where budgetScope or podGroupPolicy says so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionBudgetStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: i64,

    /// How many units may be disrupted now; the same number as disruptionsAllowedReplicas.
    #[schemars(range(min = 0))]
    pub disruptions_allowed: i32,
    /// How many pods are healthy.
    #[schemars(range(min = 0))]
    pub current_healthy: i32,
    /// How many pods must stay healthy; for groups, the fewest pods that the desired groups can do with.
    #[schemars(range(min = 0))]
    pub desired_healthy: i32,
    /// How many pods the budget counts.
    #[schemars(range(min = 0))]
    pub expected_pods: i32,

    /// How many units may be disrupted now.
    #[schemars(range(min = 0))]
    pub disruptions_allowed_replicas: i32,
    /// How many units are healthy.
    #[schemars(range(min = 0))]
    pub current_healthy_replicas: i32,
    /// How many units must stay healthy.
    #[schemars(range(min = 0))]
    pub desired_healthy_replicas: i32,
    /// How many units there should be.
    #[schemars(range(min = 0))]
    pub expected_replicas: i32,

    /// The groups, the broken ones first; at most 100. Empty where the units are pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = MAX_GROUPS))]
    pub groups: Vec<GroupStatus>,
    /// How many groups are not listed in groups.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub groups_omitted: i32,

    /// What said how many pods or groups there should be when it last had pods here, and is remembered when it has none;
    /// at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = MAX_REMEMBERED))]
    pub sources: Vec<SourceStatus>,
    /// Groups that were complete when the last of their pods was collected; at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = MAX_REMEMBERED))]
    pub complete_groups: Vec<String>,
    /// Fingerprint of what the budget covered, and how it formed groups, when sources and completeGroups were written.
    /// Under another one they say nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remembered_for: Option<String>,

    /// Pods whose eviction or deletion was admitted and is not seen yet, by name, with the time it was admitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::times_by_pod")]
    pub disrupted_pods: BTreeMap<String, Time>,
    /// Pods whose update was admitted and is not finished yet, by name, with the time it was admitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::times_by_pod")]
    pub unavailable_pods: BTreeMap<String, Time>,

    /// What was admitted and is not yet seen in the pods, by the UID of the pod.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub claims: BTreeMap<String, Claim>,
    /// Counts the writes of claims. A claim is written only if this number is still the one it was decided on.
    #[schemars(range(min = 0))]
    pub ledger: i64,
    /// The version of the pods up to which finished claims were removed. Nobody decides on older pods.
    pub settled_version: String,
    /// Fingerprint of what the budget covered when every server was last known to know it. A budget that covers
    /// something else by now is closed until that is so again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_for: Option<String>,
    /// The version of the ledger's protocol. A server that speaks another one admits nothing under this budget.
    #[schemars(range(min = 0))]
    pub protocol: i32,

    /// DisruptionAllowed: whether anything may be disrupted now. BudgetConfigured: whether the budget can work as it
    /// is written, and what to do if not. Enforced: whether every server knows this generation of the budget.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// One group of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The group's name.
    pub name: String,
    /// How many of its pods are healthy.
    pub healthy: i32,
    /// How many of its pods must be healthy for the group to be healthy.
    pub min_count: i32,
    /// How many pods it has.
    pub pods: i32,
    /// Since when the group has no pods. It stays expected for a while: it may be on its way back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Time>,
}

/// What says how many pods or groups there should be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceStatus {
    /// The API group of its kind; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The part of it that is meant, such as a pod group of a Workload.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Its UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A pod that was admitted to be disrupted. It counts as unhealthy while the claim stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// The pod's name.
    pub pod: String,
    /// The group the pod belonged to when it was first admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// One token for each admitted request. The claim stands while there is one.
    pub tokens: BTreeMap<String, Token>,
}

/// One admitted request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// What was asked for.
    pub operation: Operation,
    /// Who asked.
    #[serde(default)]
    pub by: String,
    /// When it was admitted.
    pub at: MicroTime,
    /// For updates and resizes, what must be seen in the pod before the request counts as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<UpdateTarget>,
}

/// What an admitted change of a pod leads to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateTarget {
    /// The containers that the change touches, by name.
    pub containers: BTreeMap<String, ContainerTarget>,
    /// The label that calls the pod unavailable, as long as it has not been seen on the pod; or the readiness gate by which
    /// an update was announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The resourceVersion of the pod that the change was admitted for. Once the pod has a later one and does not ask for
    /// the change, the change was replaced or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
}

/// What one container looks like once the change is done. Fingerprints, because a claim has to stay small and nobody
/// needs to read the images and quantities back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerTarget {
    /// Fingerprint of the ID of the container that ran before, and must be gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Fingerprint of the image it is to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Fingerprint of the resources it is to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}
