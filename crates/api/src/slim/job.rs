//! What runs to an end: Jobs, and sets of them.

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
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: JobSpec,
    /// How far it is.
    #[serde(deserialize_with = "or_default")]
    pub status: JobStatus,
}

impl Job {
    /// How many pods it wants now: as many as may run at once, and no more than are still to succeed. Where nothing says
    /// how many have to, the first that succeeds ends the work: from then on it wants those that still run.
    pub fn wants(&self) -> i32 {
        let at_once = self.spec.parallelism.unwrap_or(1);
        let succeeded = self.status.succeeded.unwrap_or(0);
        match self.spec.completions {
            Some(completions) => at_once.min(completions.saturating_sub(succeeded)).max(0),
            None if succeeded > 0 => at_once.min(self.status.active.unwrap_or(0)),
            None => at_once,
        }
    }

    /// Whether it has a condition of this type.
    pub fn has(&self, condition: &str) -> bool {
        self.status.conditions.iter().any(|found| found.type_ == condition && found.status == "True")
    }
}

/// What was asked of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// How many pods may run at once; 1 where nothing is said.
    pub parallelism: Option<i32>,
    /// How many pods have to succeed.
    pub completions: Option<i32>,
    /// It runs no pods for now.
    pub suspend: Option<bool>,
    /// What its pods are made from.
    #[serde(deserialize_with = "or_default")]
    pub template: PodTemplate,
}

/// How far a Job is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// How many of its pods run.
    pub active: Option<i32>,
    /// How many of its pods have succeeded.
    pub succeeded: Option<i32>,
    /// Among them Complete and Failed.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// What keeps a pod template where most kinds have it, at `.spec.template`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Templated {
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: TemplatedSpec,
}

/// What was asked of an object that has a pod template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TemplatedSpec {
    /// What its pods are made from.
    #[serde(deserialize_with = "or_default")]
    pub template: PodTemplate,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_wants_what_is_still_to_succeed() {
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
