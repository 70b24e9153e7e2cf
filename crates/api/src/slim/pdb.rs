//! Pod disruption budgets.

use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{Condition, meta, or_default};

/// A native pod disruption budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = policy::PodDisruptionBudget)]
#[serde(default)]
pub struct PodDisruptionBudget {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodDisruptionBudgetSpec,
    /// What is.
    #[serde(deserialize_with = "or_default")]
    pub status: PodDisruptionBudgetStatus,
}

/// What was asked of a native budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetSpec {
    /// The pods covered; an empty selector covers all, none covers none.
    pub selector: Option<LabelSelector>,
    /// How many pods must stay available.
    pub min_available: Option<IntOrString>,
    /// How many pods may be unavailable.
    pub max_unavailable: Option<IntOrString>,
    /// Whether unhealthy pods may always be evicted.
    pub unhealthy_pod_eviction_policy: Option<String>,
}

/// What is known of a native budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetStatus {
    /// The generation that the numbers are for.
    #[serde(deserialize_with = "or_default")]
    pub observed_generation: i64,
    /// How many pods may be evicted now.
    #[serde(deserialize_with = "or_default")]
    pub disruptions_allowed: i32,
    /// How many pods are healthy.
    #[serde(deserialize_with = "or_default")]
    pub current_healthy: i32,
    /// How many pods must stay healthy.
    #[serde(deserialize_with = "or_default")]
    pub desired_healthy: i32,
    /// How many pods there should be.
    #[serde(deserialize_with = "or_default")]
    pub expected_pods: i32,
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}
