//! The workload kinds, with the fields that their controllers read.
//!
//! Pod templates stay JSON, so that all their fields reach the pods.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object with only the fields that the controller reads.
pub(crate) type ReplicaSet = Object<ReplicaSetSpec, ReplicaSetStatus>;
pub(crate) type Deployment = Object<DeploymentSpec, Value>;
pub(crate) type StatefulSet = Object<StatefulSetSpec, StatefulSetStatus>;
pub(crate) type Job = Object<JobSpec, JobStatus>;
pub(crate) type ControllerRevision = kube::core::DynamicObject;

fn apps(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("apps", "v1", kind), plural)
}

pub(crate) fn replica_sets() -> ApiResource {
    apps("ReplicaSet", "replicasets")
}

pub(crate) fn deployments() -> ApiResource {
    apps("Deployment", "deployments")
}

pub(crate) fn stateful_sets() -> ApiResource {
    apps("StatefulSet", "statefulsets")
}

pub(crate) fn controller_revisions() -> ApiResource {
    apps("ControllerRevision", "controllerrevisions")
}

pub(crate) fn jobs() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("batch", "v1", "Job"), "jobs")
}

fn one() -> i32 {
    1
}

fn ten() -> i32 {
    10
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaSetSpec {
    #[serde(default = "one")]
    pub(crate) replicas: i32,
    #[serde(default)]
    pub(crate) min_ready_seconds: i32,
    pub(crate) selector: LabelSelector,
    #[serde(default)]
    pub(crate) template: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicaSetStatus {
    pub(crate) replicas: i32,
    pub(crate) fully_labeled_replicas: i32,
    pub(crate) ready_replicas: i32,
    pub(crate) available_replicas: i32,
    pub(crate) observed_generation: i64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeploymentSpec {
    #[serde(default = "one")]
    pub(crate) replicas: i32,
    #[serde(default)]
    pub(crate) min_ready_seconds: i32,
    #[serde(default)]
    pub(crate) paused: bool,
    #[serde(default = "ten")]
    pub(crate) revision_history_limit: i32,
    pub(crate) selector: LabelSelector,
    #[serde(default)]
    pub(crate) strategy: DeploymentStrategy,
    #[serde(default)]
    pub(crate) template: Value,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeploymentStrategy {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RollingUpdate {
    pub(crate) max_surge: Option<IntOrString>,
    pub(crate) max_unavailable: Option<IntOrString>,
    pub(crate) partition: Option<i32>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatefulSetSpec {
    #[serde(default = "one")]
    pub(crate) replicas: i32,
    #[serde(default)]
    pub(crate) min_ready_seconds: i32,
    pub(crate) selector: LabelSelector,
    #[serde(default)]
    pub(crate) service_name: String,
    #[serde(default)]
    pub(crate) pod_management_policy: String,
    #[serde(default)]
    pub(crate) update_strategy: DeploymentStrategy,
    #[serde(default)]
    pub(crate) ordinals: Option<Ordinals>,
    #[serde(default)]
    pub(crate) revision_history_limit: Option<i32>,
    #[serde(default)]
    pub(crate) volume_claim_templates: Vec<Value>,
    #[serde(default)]
    pub(crate) template: Value,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Ordinals {
    pub(crate) start: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatefulSetStatus {
    pub(crate) replicas: i32,
    pub(crate) ready_replicas: i32,
    pub(crate) available_replicas: i32,
    pub(crate) current_replicas: i32,
    pub(crate) updated_replicas: i32,
    pub(crate) current_revision: String,
    pub(crate) update_revision: String,
    pub(crate) collision_count: i32,
    pub(crate) observed_generation: i64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobSpec {
    #[serde(default)]
    pub(crate) parallelism: Option<i32>,
    #[serde(default)]
    pub(crate) completions: Option<i32>,
    #[serde(default)]
    pub(crate) completion_mode: Option<String>,
    #[serde(default)]
    pub(crate) backoff_limit: Option<i32>,
    #[serde(default)]
    pub(crate) suspend: bool,
    #[serde(default)]
    pub(crate) selector: Option<LabelSelector>,
    #[serde(default)]
    pub(crate) template: Value,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct JobStatus {
    pub(crate) active: i32,
    pub(crate) ready: i32,
    pub(crate) succeeded: i32,
    pub(crate) failed: i32,
    pub(crate) terminating: i32,
    pub(crate) conditions: Vec<JobCondition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completed_indexes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_time: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct JobCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_transition_time: Option<String>,
}

/// An int, or a percentage of `total`, rounded up or down. An invalid value is 0: the API server rejects it anyway.
pub(crate) fn resolve(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let Some(percent) = text.strip_suffix('%').and_then(|p| p.parse::<i64>().ok()) else { return 0 };
            let product = percent * i64::from(total);
            let rounded = if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up_or_down() {
        let percent = |p: &str| IntOrString::String(p.to_owned());
        assert_eq!(resolve(&percent("28%"), 11, true), 4);
        assert_eq!(resolve(&percent("28%"), 11, false), 3);
        assert_eq!(resolve(&percent("100%"), 3, true), 3);
        assert_eq!(resolve(&percent("nope"), 3, true), 0);
        assert_eq!(resolve(&IntOrString::Int(2), 3, true), 2);
    }
}
