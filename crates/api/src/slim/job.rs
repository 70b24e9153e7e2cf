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
    /// The number of pods that it wants now: `parallelism`, but not more than the completions that can still come: its
    /// controller creates no pod for an index that has failed. Without `completions`, the first pod that succeeds ends
    /// the work. From then on it wants only the active pods.
    pub fn wants(&self) -> i32 {
        let at_once = self.spec.parallelism.unwrap_or(1);
        let succeeded = self.status.succeeded.unwrap_or(0);
        match self.spec.completions {
            Some(completions) => {
                let open = completions.saturating_sub(succeeded);
                at_once.min(open.saturating_sub(self.failed_indexes(completions))).max(0)
            }
            None if succeeded > 0 => at_once.min(self.status.active.unwrap_or(0)),
            None => at_once,
        }
    }

    /// The number of indexes that have failed for good; 0 if the Job has none, or if they cannot be read.
    fn failed_indexes(&self, completions: i32) -> i32 {
        let fail = self.spec.completion_mode.as_deref() == Some("Indexed")
            && self.spec.backoff_limit_per_index.is_some();
        let indexes = self.status.failed_indexes.as_deref().filter(|_| fail);
        indexes.and_then(|indexes| count_indexes(indexes, completions)).unwrap_or(0)
    }

    /// Whether its condition of this type is True.
    pub fn has(&self, condition: &str) -> bool {
        self.status.conditions.iter().any(|found| found.type_ == condition && found.status == "True")
    }
}

/// The number of indexes below a limit in a list such as `1,3-5`; `None` if it is not in order. A Job that was made
/// smaller may list indexes that it does not have any more.
fn count_indexes(list: &str, limit: i32) -> Option<i32> {
    // `parse` alone would accept a sign.
    let index = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<i32>().ok())?;
    let (mut count, mut next) = (0_i32, 0);
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (index(first)?, index(last)?);
        if first < next || last < first {
            return None;
        }
        next = last.checked_add(1)?;
        count = count.saturating_add(next.min(limit).saturating_sub(first).max(0));
    }
    Some(count)
}

/// The spec of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// Maximum number of pods that run at the same time; defaults to 1.
    pub parallelism: Option<i32>,
    /// Number of pods that must succeed.
    pub completions: Option<i32>,
    /// `Indexed` if each pod has an index, or `NonIndexed`.
    pub completion_mode: Option<String>,
    /// Number of failed pods after which an index has failed. Without it no index fails.
    pub backoff_limit_per_index: Option<i32>,
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
    /// The indexes that have failed, as `1,3-5`.
    pub failed_indexes: Option<String>,
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
