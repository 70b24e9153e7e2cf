//! Workloads that run to completion: Jobs, and sets of Jobs.

use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{Condition, PodTemplate, meta, or_default};

/// A Job, or a set of Jobs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: JobSpec,
    /// The observed state.
    #[serde(deserialize_with = "or_default")]
    pub status: JobStatus,
}

impl Job {
    /// The number of pods that it wants now: `parallelism`, but not more than the completions that are still missing.
    /// Without `completions`, the first pod that succeeds ends the work. From then on it wants only the active pods.
    pub fn wants(&self) -> i32 {
        let at_once = self.spec.parallelism.unwrap_or(1);
        let succeeded = self.status.succeeded.unwrap_or(0);
        match self.spec.completions {
            Some(completions) => at_once.min(completions.saturating_sub(succeeded)).max(0),
            None if succeeded > 0 => at_once.min(self.status.active.unwrap_or(0)),
            None => at_once,
        }
    }

    /// Whether its condition of this type is True.
    pub fn has(&self, condition: &str) -> bool {
        self.status.conditions.iter().any(|found| found.type_ == condition && found.status == "True")
    }
}

/// The spec of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// Maximum number of pods that run at the same time; defaults to 1.
    pub parallelism: Option<i32>,
    /// Number of pods that must succeed.
    pub completions: Option<i32>,
    /// Whether the Job is suspended and runs no pods.
    pub suspend: Option<bool>,
    /// The template of its pods.
    #[serde(deserialize_with = "or_default")]
    pub template: PodTemplate,
}

/// The status of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Number of its pods that run.
    pub active: Option<i32>,
    /// Number of its pods that have succeeded.
    pub succeeded: Option<i32>,
    /// Its conditions, including Complete and Failed.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// Any object with a pod template at `.spec.template`, where most kinds have it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Templated {
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: TemplatedSpec,
}

/// The spec of an object that has a pod template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TemplatedSpec {
    /// The template of its pods.
    #[serde(deserialize_with = "or_default")]
    pub template: PodTemplate,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_wants_the_pods_that_still_have_to_succeed() {
        let cases = [
            (json!({}), json!({}), 1),
            (json!({"parallelism": 3}), json!({"active": 3}), 3),
            (json!({"parallelism": 3}), json!({"active": 2, "succeeded": 1}), 2),
            (json!({"parallelism": 3, "completions": 5}), json!(null), 3),
            (json!({"parallelism": 3, "completions": 5}), json!({"succeeded": 4}), 1),
            (json!({"parallelism": 3, "completions": 5}), json!({"succeeded": 6}), 0),
            (json!({"parallelism": 0, "completions": 5}), json!({}), 0),
        ];
        for (spec, status, wants) in cases {
            let job: Job = serde_json::from_value(json!({"spec": spec, "status": status})).unwrap();
            assert_eq!(job.wants(), wants, "{spec} {status}");
        }
    }
}
