//! PodDisruptionBudgets.

use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{Condition, meta, or_default};

/// A native PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = policy::PodDisruptionBudget)]
#[serde(default)]
pub struct PodDisruptionBudget {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodDisruptionBudgetSpec,
    /// The observed state.
    #[serde(deserialize_with = "or_default")]
    pub status: PodDisruptionBudgetStatus,
}

/// The spec of a native budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetSpec {
    /// The covered pods. An empty selector covers all pods; a missing one covers none.
    pub selector: Option<LabelSelector>,
    /// Minimum number of available pods.
    pub min_available: Option<IntOrString>,
    /// Maximum number of unavailable pods.
    pub max_unavailable: Option<IntOrString>,
    /// Whether unhealthy pods may always be evicted.
    pub unhealthy_pod_eviction_policy: Option<String>,
}

/// The status of a native budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetStatus {
    /// The generation that the status describes.
    #[serde(deserialize_with = "or_default")]
    pub observed_generation: i64,
    /// Number of pods that may be evicted now.
    #[serde(deserialize_with = "or_default")]
    pub disruptions_allowed: i32,
    /// Number of healthy pods.
    #[serde(deserialize_with = "or_default")]
    pub current_healthy: i32,
    /// Number of pods that must stay healthy.
    #[serde(deserialize_with = "or_default")]
    pub desired_healthy: i32,
    /// Expected number of pods.
    #[serde(deserialize_with = "or_default")]
    pub expected_pods: i32,
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}
