//! Workload controllers: objects that own pods or have a scale.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Labels, Version};
use quorate_engine::facts::{Activity, Controller, Counts};
use quorate_engine::group_source::{GroupSource, LEADER_WORKER_SET};

use super::{Incoming, leader_worker_set};
use crate::error::Unreadable;

/// A ReplicaSet as a fact.
pub fn replica_set(set: &slim::ReplicaSet) -> Result<Controller, Unreadable> {
    let kind = GroupKind::new("apps", "ReplicaSet");
    let fact = counts_pods("ReplicaSet", kind, &set.metadata, Some(set.spec.replicas.unwrap_or(1)))?;
    Ok(Controller { templates: template(&set.spec.template), ..fact })
}

/// A StatefulSet as a fact.
pub fn stateful_set(set: &slim::StatefulSet) -> Result<Controller, Unreadable> {
    let kind = GroupKind::new("apps", "StatefulSet");
    let fact = counts_pods("StatefulSet", kind, &set.metadata, Some(set.spec.replicas.unwrap_or(1)))?;
    Ok(Controller { templates: template(&set.spec.template), ..fact })
}

/// A Deployment as a fact.
pub fn deployment(deployment: &slim::Deployment) -> Result<Controller, Unreadable> {
    let kind = GroupKind::new("apps", "Deployment");
    let replicas = deployment.spec.replicas.unwrap_or(1);
    let fact = counts_pods("Deployment", kind, &deployment.metadata, Some(replicas))?;
    let templates = template(&deployment.spec.template);
    Ok(Controller { recreate: deployment.recreates(), templates, ..fact })
}

/// An object of any kind, from its JSON text. `scale` is `None` for a kind without a scale, such as a DaemonSet. If the
/// object sets no replica count, its scale is unknown, because the default of its kind is unknown.
///
/// Only a few kinds have more than a scale. A pod template at `.spec.template` does not prove that the kind creates its
/// pods from it, and a condition named Failed does not prove that every kind has given up.
///
/// # Errors
/// The text is not such an object; the error says why.
pub fn any(kind: &GroupKind, text: &str, scale: Option<&slim::ReplicasPath>) -> Result<Controller, String> {
    let wrong = |why: serde_json::Error| why.to_string();
    let to_text = |why: Unreadable| why.problem.to_string();
    if let Some(read) = GroupSource::of_kind(kind).and_then(group_source_reader) {
        return read(text);
    }
    match (&*kind.group, &*kind.kind) {
        ("batch", "Job") => job(&serde_json::from_str(text).map_err(wrong)?).map_err(to_text),
        ("jobset.x-k8s.io", "JobSet") => {
            let set: slim::Job = serde_json::from_str(text).map_err(wrong)?;
            let fact = counts_pods("JobSet", kind.clone(), &set.metadata, None).map_err(to_text)?;
            Ok(Controller { activity: activity(&set, "Completed"), ..fact })
        }
        known => {
            let object = slim::Scaled::read(text, scale).map_err(wrong)?;
            let fact =
                counts_pods("object", kind.clone(), &object.metadata, object.replicas).map_err(to_text)?;
            let templates = match known {
                ("", "ReplicationController") | ("apps.kruise.io", "CloneSet" | "StatefulSet") => {
                    let object: slim::Templated = serde_json::from_str(text).map_err(wrong)?;
                    template(&object.spec.template)
                }
                _ => None,
            };
            Ok(Controller { templates, ..fact })
        }
    }
}

/// Reads the object of a group source from its JSON text.
type Reader = fn(&str) -> Result<Controller, String>;

fn group_source_reader(source: &GroupSource) -> Option<Reader> {
    const READERS: [(GroupSource, Reader); 1] = [(LEADER_WORKER_SET, leader_worker_set::read)];
    READERS.iter().find(|(of, _)| of == source).map(|(_, read)| *read)
}

/// A Job as a fact. It has no scale subresource, but its spec and status show how many pods it wants.
///
/// They do not show that it is about to end because of a deadline, failures or a policy: its controller first deletes the
/// pods, and writes the condition only when all of them are deleted. The controller has no rollouts, so whatever it deletes
/// is not wanted.
fn job(job: &slim::Job) -> Result<Controller, Unreadable> {
    let fact = counts_pods("Job", GroupKind::new("batch", "Job"), &job.metadata, Some(job.wants()))?;
    let (activity, templates) = (activity(job, "Complete"), template(&job.spec.template));
    Ok(Controller { activity, templates, recreate: true, ..fact })
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
    use super::*;

    #[test]
    fn every_group_source_can_be_read() {
        for source in GroupSource::ALL {
            assert!(group_source_reader(source).is_some(), "{}", source.kind);
        }
    }
}
