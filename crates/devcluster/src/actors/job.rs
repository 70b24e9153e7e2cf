//! Jobs, as far as groups of pods need them: parallelism, completions and, for indexed jobs, an index for each pod.
//!
//! Pods have no tracking finalizer: a pod that is deleted after it succeeded does not count, unless the status has
//! already counted it. Pod failure policies, deadlines, TTLs and success policies are ignored.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use kube::{Error, ResourceExt};
use serde_json::{Value, json};

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, run};
use super::identities::controller;
use super::kinds::{Job, JobCondition, JobSpec, JobStatus, jobs};
use super::kubelet::stamp;
use super::pod_control::PodControl;
use super::pods;
use super::queue::Queue;
use super::request;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(&controller("job-controller"));
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        control: PodControl::new(client, "job-controller", context.view.pods().clone()),
        kind: jobs(),
        jobs: context.view.jobs().clone(),
    });
    let wake = queue.clone();
    reconciler.jobs.listen(move |before, after| {
        if let Some(job) = after.or(before) {
            wake.add(Key::of(job.as_ref()));
        }
    });
    let wake = queue.clone();
    reconciler.control.pods.listen(move |before, after| {
        if let Some(pod) = after.or(before)
            && let Some(owner) = pods::controller_of(pod.as_ref()).filter(|owner| owner.kind == "Job")
        {
            wake.add(Key::new(&pod.namespace().unwrap_or_default(), &owner.name));
        }
    });
    context.tasks.spawn(async move {
        reconciler.jobs.filled().await;
        reconciler.control.pods.filled().await;
        run("job", queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

struct Reconciler {
    control: PodControl,
    kind: ApiResource,
    jobs: Arc<ObjectCache<Job>>,
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(job) = self.jobs.get(key) else { return Ok(None) };
        let before = job.status.clone().unwrap_or_default();
        if job.metadata.deletion_timestamp.is_some() || before.is_over() {
            return Ok(None);
        }
        let mine = self.control.pods.owned_by(pods::uid(job.as_ref()));
        let plan = plan(&job.spec, &before, &mine);
        let new: Vec<_> = plan.create.iter().map(|index| pod(&job, *index)).collect();
        let made = self.control.create_all(job.as_ref(), &self.kind, &new).await;
        let removed = self.control.delete_all(job.as_ref(), &self.kind, &plan.delete).await;
        // A Job ends only when its pods are deleted.
        if plan.outcome.is_none() || removed.is_ok() {
            self.report(&job, &plan).await?;
        }
        made.and(removed)?;
        Ok(None)
    }

    async fn report(&self, job: &Job, plan: &Plan) -> Result<(), Error> {
        let mine = self.control.pods.owned_by(pods::uid(job));
        let before = job.status.clone().unwrap_or_default();
        let status = json!(status(&before, plan, &mine, Timestamp::now()));
        if json!(before) == status && job.status.is_some() {
            return Ok(());
        }
        let written = request::write_status(&self.control.client, &self.kind, job, &status).await?;
        self.jobs.wrote(written);
        Ok(())
    }
}

impl JobStatus {
    fn is_over(&self) -> bool {
        let ends = |condition: &JobCondition| matches!(condition.kind.as_str(), "Complete" | "Failed");
        self.conditions.iter().any(|condition| ends(condition) && condition.status == "True")
    }
}

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobOutcome {
    Complete,
    Failed,
}

#[derive(Debug, Default)]
struct Plan {
    /// Pods to create, each with its index if the job is indexed.
    create: Vec<Option<i32>>,
    delete: Vec<Arc<Pod>>,
    outcome: Option<JobOutcome>,
    succeeded: i32,
    failed: i32,
}

fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotations().get(INDEX).or_else(|| pod.labels().get(INDEX)).and_then(|text| text.parse().ok())
}

fn plan(spec: &JobSpec, before: &JobStatus, mine: &[Arc<Pod>]) -> Plan {
    let count =
        |phase: &str| i32::try_from(mine.iter().filter(|pod| pods::phase(pod) == phase).count()).unwrap_or(0);
    let active: Vec<_> = mine.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let done: BTreeSet<i32> =
        mine.iter().filter(|pod| pods::phase(pod) == "Succeeded").filter_map(|pod| index_of(pod)).collect();
    let succeeded = if indexed { i32::try_from(done.len()).unwrap_or(0) } else { count("Succeeded") };
    let mut plan = Plan {
        succeeded: succeeded.max(before.succeeded),
        failed: count("Failed").max(before.failed),
        ..Plan::default()
    };
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let any_order = spec.completions.is_none() && spec.parallelism.is_some();
    if plan.failed > spec.backoff_limit.unwrap_or(6) {
        plan.outcome = Some(JobOutcome::Failed);
        plan.delete = active;
        return plan;
    }
    let complete = if any_order {
        plan.succeeded > 0 && active.is_empty()
    } else {
        plan.succeeded >= spec.completions.unwrap_or(1)
    };
    if complete {
        plan.outcome = Some(JobOutcome::Complete);
        plan.delete = active;
        return plan;
    }
    if spec.suspend {
        plan.delete = active;
        return plan;
    }
    // In a job without completions, once one pod has succeeded, the others finish and no pod is added.
    let wanted = if any_order && plan.succeeded > 0 {
        0
    } else if any_order {
        parallelism
    } else {
        parallelism.min(spec.completions.unwrap_or(1) - plan.succeeded)
    };
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() > wanted && !(any_order && plan.succeeded > 0) {
        plan.delete = active[wanted..].to_vec();
    } else if indexed {
        let taken: BTreeSet<i32> = active.iter().filter_map(|pod| index_of(pod)).chain(done).collect();
        let free = (0..spec.completions.unwrap_or(1)).filter(|index| !taken.contains(index));
        plan.create = free.take(wanted.saturating_sub(active.len())).map(Some).collect();
    } else {
        plan.create = vec![None; wanted.saturating_sub(active.len())];
    }
    plan
}

fn pod(job: &Job, index: Option<i32>) -> Value {
    let (name, uid) = (job.name_any(), pods::uid(job));
    let mut pod =
        pods::from_template(&job.spec.template, &pods::controller_ref("batch/v1", "Job", &name, uid));
    for (label, value) in [
        ("batch.kubernetes.io/job-name", name.as_str()),
        ("batch.kubernetes.io/controller-uid", uid),
        ("job-name", name.as_str()),
        ("controller-uid", uid),
    ] {
        pods::set(&mut pod, "labels", label, value);
    }
    if pod["spec"]["restartPolicy"].is_null() {
        pod["spec"]["restartPolicy"] = json!("Never");
    }
    match index {
        Some(index) => {
            pods::set(&mut pod, "labels", INDEX, &index.to_string());
            pods::set(&mut pod, "annotations", INDEX, &index.to_string());
            pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
            pod["metadata"]["generateName"] = json!(format!("{name}-{index}-"));
        }
        None => pod["metadata"]["generateName"] = json!(format!("{name}-")),
    }
    pod
}

fn status(before: &JobStatus, plan: &Plan, mine: &[Arc<Pod>], now: Timestamp) -> JobStatus {
    let count =
        |what: &dyn Fn(&Pod) -> bool| i32::try_from(mine.iter().filter(|pod| what(pod)).count()).unwrap_or(0);
    let over = plan.outcome.is_some();
    let mut status = JobStatus {
        active: count(&|pod| pods::is_active(pod)),
        ready: count(&|pod| pods::is_active(pod) && pods::is_ready(pod)),
        terminating: count(&|pod| pods::is_terminating(pod) && !pods::is_terminal(pod)),
        succeeded: plan.succeeded,
        failed: plan.failed,
        start_time: before.start_time.clone().or_else(|| Some(stamp(now))),
        ..before.clone()
    };
    let mut add = |kind: &str, reason: &str, message: &str| {
        status.conditions.push(JobCondition {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Some(stamp(now)),
        });
    };
    match plan.outcome {
        Some(JobOutcome::Complete) => {
            add("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods");
            add("Complete", "CompletionsReached", "Reached expected number of succeeded pods");
            status.completion_time = Some(stamp(now));
        }
        Some(JobOutcome::Failed) => {
            add("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit");
            add("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        None => {}
    }
    if over {
        (status.active, status.ready) = (0, 0);
    }
    status
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use super::*;

    fn pod(phase: &str, index: Option<i32>) -> Arc<Pod> {
        let annotations = index.map(|index| json!({INDEX: index.to_string()}));
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "status": {"phase": phase}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn planned(spec: Value, pods: &[Arc<Pod>]) -> Plan {
        plan(&serde_json::from_value(spec).unwrap(), &JobStatus::default(), pods)
    }

    #[test]
    fn parallelism_and_completions_limit_the_pods() {
        let spec = json!({"parallelism": 2, "completions": 3});
        assert_eq!(planned(spec.clone(), &[]).create.len(), 2);
        assert_eq!(planned(spec.clone(), &[pod("Running", None), pod("Succeeded", None)]).create.len(), 1);
        assert_eq!(
            planned(spec.clone(), &[pod("Running", None), pod("Succeeded", None), pod("Succeeded", None)])
                .create
                .len(),
            0
        );
        let done = [pod("Succeeded", None), pod("Succeeded", None), pod("Succeeded", None)];
        assert_eq!(planned(spec, &done).outcome, Some(JobOutcome::Complete));
    }

    #[test]
    fn an_indexed_job_creates_pods_for_the_missing_indexes() {
        let spec = json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"});
        let pods = [pod("Running", Some(0)), pod("Failed", Some(1)), pod("Succeeded", Some(2))];
        assert_eq!(planned(spec, &pods).create, [Some(1)]);
    }

    #[test]
    fn a_job_fails_above_its_backoff_limit() {
        let plan = planned(json!({"backoffLimit": 0}), &[pod("Failed", None), pod("Running", None)]);
        assert_eq!((plan.outcome, plan.delete.len()), (Some(JobOutcome::Failed), 1));
    }
}
