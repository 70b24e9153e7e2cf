//! The status of a `PodUnavailableBudget`: OpenKruise's fields, and the ledger of what was admitted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::{Claim, GroupStatus, MAX_GROUPS, MAX_REMEMBERED, SourceStatus};
use crate::schema;

/// What the budget counts now, and what it has admitted and not yet seen happen.
///
/// The numbers count pods, or groups of pods where podGroupPolicy is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodUnavailableBudgetStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: i64,

    /// How many may become unavailable now.
    #[schemars(range(min = 0))]
    pub unavailable_allowed: i32,
    /// How many are available.
    #[schemars(range(min = 0))]
    pub current_available: i32,
    /// How many must stay available.
    #[schemars(range(min = 0))]
    pub desired_available: i32,
    /// How many there should be.
    #[schemars(range(min = 0))]
    pub total_replicas: i32,
    /// How many of those that there should be are not available.
    #[schemars(range(min = 0))]
    pub unavailable_replicas: i32,

    /// The groups, the unavailable ones first; at most 100. Empty where pods are counted.
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
    /// Pods whose update was admitted and that are not available again yet, by name, with the time it was admitted.
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

    /// DisruptionAllowed: whether anything may become unavailable now. BudgetConfigured: whether the budget can work
    /// as it is written, and what to do if not. Enforced: whether every server knows this generation of the budget.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}
