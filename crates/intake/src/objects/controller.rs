//! Workload controllers: objects that own pods or have a scale.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Labels, Version};
use quorate_engine::facts::{Activity, Controller, Counts};
use quorate_engine::group_source::LEADER_WORKER_SET;
use quorate_engine::workload_kind::{
    CLONE_SET, DEPLOYMENT, JOB, JOB_SET, KRUISE_STATEFUL_SET, REPLICA_SET, REPLICATION_CONTROLLER,
    STATEFUL_SET,
};
use serde::de::DeserializeOwned;

use super::{Incoming, leader_worker_set};
use crate::error::Unreadable;

/// A ReplicaSet as a fact.
pub fn replica_set(set: &slim::ReplicaSet) -> Result<Controller, Unreadable> {
    let replicas = set.spec.replicas.unwrap_or(1);
    let fact = counts_pods(REPLICA_SET.kind, REPLICA_SET.group_kind(), &set.metadata, Some(replicas))?;
    Ok(Controller { templates: template(&set.spec.template), ..fact })
}

/// A StatefulSet as a fact.
pub fn stateful_set(set: &slim::StatefulSet) -> Result<Controller, Unreadable> {
    let replicas = set.spec.replicas.unwrap_or(1);
    let fact = counts_pods(STATEFUL_SET.kind, STATEFUL_SET.group_kind(), &set.metadata, Some(replicas))?;
    Ok(Controller { templates: template(&set.spec.template), ..fact })
}

/// A Deployment as a fact.
pub fn deployment(deployment: &slim::Deployment) -> Result<Controller, Unreadable> {
    let replicas = deployment.spec.replicas.unwrap_or(1);
    let fact = counts_pods(DEPLOYMENT.kind, DEPLOYMENT.group_kind(), &deployment.metadata, Some(replicas))?;
    let templates = template(&deployment.spec.template);
    Ok(Controller { recreate: deployment.recreates(), templates, ..fact })
}

/// Reads an object of a kind from its JSON text, with the path of its scale if the kind has one.
type Reader = fn(&GroupKind, &str, Option<&slim::ReplicasPath>) -> Result<Controller, String>;

/// The kinds that have more than a scale, by API group and kind. A pod template at `.spec.template` does not prove that a
/// kind creates its pods from it, and a condition named Failed does not prove that every kind has given up.
///
/// The kinds that are always watched have their own functions above.
const READERS: [(&str, &str, Reader); 6] = [
    (LEADER_WORKER_SET.api_group, LEADER_WORKER_SET.kind, |_, text, _| leader_worker_set::read(text)),
    (JOB.api_group, JOB.kind, |_, text, _| job(text)),
    (JOB_SET.api_group, JOB_SET.kind, |_, text, _| job_set(text)),
    (REPLICATION_CONTROLLER.api_group, REPLICATION_CONTROLLER.kind, templated),
    (CLONE_SET.api_group, CLONE_SET.kind, templated),
    (KRUISE_STATEFUL_SET.api_group, KRUISE_STATEFUL_SET.kind, templated),
];

/// An object of any kind, from its JSON text. `scale` is `None` for a kind without a scale, such as a DaemonSet. If the
/// object sets no replica count, its scale is unknown, because the default of its kind is unknown.
///
/// # Errors
/// The text is not such an object; the error says why.
pub fn any(kind: &GroupKind, text: &str, scale: Option<&slim::ReplicasPath>) -> Result<Controller, String> {
    let reader = READERS.iter().find(|(group, name, _)| (&*kind.group, &*kind.kind) == (*group, *name));
    reader.map_or(scaled as Reader, |(_, _, read)| *read)(kind, text, scale)
}

fn scaled(kind: &GroupKind, text: &str, scale: Option<&slim::ReplicasPath>) -> Result<Controller, String> {
    let object = slim::Scaled::read(text, scale).map_err(|why| why.to_string())?;
    counts_pods("object", kind.clone(), &object.metadata, object.replicas)
        .map_err(|why| why.problem.to_string())
}

/// An object of a kind that creates its pods from its template.
fn templated(kind: &GroupKind, text: &str, scale: Option<&slim::ReplicasPath>) -> Result<Controller, String> {
    let fact = scaled(kind, text, scale)?;
    let object: slim::Templated = decode(text)?;
    Ok(Controller { templates: template(&object.spec.template), ..fact })
}

/// A Job as a fact. It has no scale subresource, but its spec and status show how many pods it wants.
///
/// They do not show that it is about to end because of a deadline, failures or a policy: its controller first deletes the
/// pods, and writes the condition only when all of them are deleted. The controller has no rollouts, so whatever it deletes
/// is not wanted.
fn job(text: &str) -> Result<Controller, String> {
    let job: slim::Job = decode(text)?;
    let fact = counts_pods(JOB.kind, JOB.group_kind(), &job.metadata, Some(job.wants()))
        .map_err(|why| why.problem.to_string())?;
    let (activity, templates) = (activity(&job, "Complete"), template(&job.spec.template));
    Ok(Controller { activity, templates, recreate: true, ..fact })
}

fn job_set(text: &str) -> Result<Controller, String> {
    let set: slim::Job = decode(text)?;
    let fact = counts_pods(JOB_SET.kind, JOB_SET.group_kind(), &set.metadata, None)
        .map_err(|why| why.problem.to_string())?;
    Ok(Controller { activity: activity(&set, "Completed"), ..fact })
}

fn decode<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|why| why.to_string())
}

fn activity(job: &slim::Job, complete: &str) -> Activity {
    if job.has(complete) {
        Activity::Complete
    } else if job.has("Failed") {
        Activity::Failed
    } else if job.spec.suspend == Some(true) {
        Activity::Suspended
    } else {
        Activity::Active
    }
}

fn template(template: &slim::PodTemplate) -> Option<Box<[Labels]>> {
    Some([labels(template, &[])].into())
}

pub(super) fn labels(template: &slim::PodTemplate, more: &[(&str, &str)]) -> Labels {
    let own = template.metadata.labels.iter().flatten();
    Labels::new(own.map(|(key, value)| (key.as_str(), value.as_str())).chain(more.iter().copied()))
}

pub(super) fn counts_pods(
    word: &'static str,
    kind: GroupKind,
    meta: &ObjectMeta,
    replicas: Option<i32>,
) -> Result<Controller, Unreadable> {
    let incoming = Incoming::new(word, meta);
    let replicas = replicas.map(|replicas| incoming.count("spec.replicas", replicas, 0)).transpose()?;
    Ok(Controller {
        key: incoming.key()?,
        uid: incoming.uid()?,
        // An aggregated API server may use resourceVersions that are not numbers. Such objects are accepted in the
        // order of their arrival.
        version: incoming.version().unwrap_or(Version(0)),
        kind,
        replicas,
        counts: Counts::Pods,
        owner: incoming.controller(),
        deleting: incoming.terminating(),
        recreate: false,
        activity: Activity::Active,
        templates: None,
    })
}

#[cfg(test)]
mod tests {
    use quorate_engine::group_source::GroupSource;
    use quorate_engine::workload_kind::WorkloadKind;

    use super::*;

    #[test]
    fn every_group_source_can_be_read() {
        for source in GroupSource::ALL {
            let found =
                READERS.iter().find(|(group, kind, _)| (*group, *kind) == (source.api_group, source.kind));
            assert!(found.is_some(), "{}", source.kind);
        }
    }

    #[test]
    fn every_known_kind_is_read_as_its_own() {
        let sources = GroupSource::ALL.iter().map(GroupSource::group_kind);
        let known: Vec<_> = WorkloadKind::ALL.iter().map(WorkloadKind::group_kind).chain(sources).collect();
        let text = r#"{"metadata": {"namespace": "a", "name": "b", "uid": "u"}}"#;
        for kind in &known {
            assert_eq!(any(kind, text, None).map(|fact| fact.kind).as_ref(), Ok(kind));
        }
        for (group, kind, _) in READERS {
            assert!(known.contains(&GroupKind::new(group, kind)), "{kind}");
        }
    }
}
