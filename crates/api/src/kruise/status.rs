//! The status of a `PodUnavailableBudget`: OpenKruise's fields, and the ledger of admitted requests.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use quorate_engine::facts::{MAX_COMPLETE, MAX_SOURCES};
use quorate_engine::status::MAX_GROUPS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::{Claim, GroupStatus, Opened, SourceStatus};
use crate::schema;

/// The current counts of the budget, and the admitted requests that have not taken effect yet.
///
/// The numbers count pods, or groups of pods where podGroupPolicy is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodUnavailableBudgetStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: i64,

    /// Number that may become unavailable now.
    #[schemars(range(min = 0))]
    pub unavailable_allowed: i32,
    /// Number that are available.
    #[schemars(range(min = 0))]
    pub current_available: i32,
    /// Number that must stay available.
    #[schemars(range(min = 0))]
    pub desired_available: i32,
    /// Expected number.
    #[schemars(range(min = 0))]
    pub total_replicas: i32,
    /// Number that are expected but not available.
    #[schemars(range(min = 0))]
    pub unavailable_replicas: i32,

    /// The groups, unavailable ones first; at most 100. Empty if the budget counts pods.
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
    /// Pods whose update was admitted and that are not available again yet: pod name to admission time.
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

    /// DisruptionAllowed: whether a pod or group may become unavailable now. BudgetConfigured: whether the spec is
    /// valid and can take effect, and what to do if not. Enforced: whether every server enforces the pods and
    /// operations of this budget.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}
