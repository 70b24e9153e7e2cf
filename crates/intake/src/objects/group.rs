//! Pod groups and workloads, upstream's in each of their shapes and ours.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use quorate_api::slim;
use quorate_engine::basics::ObjectKey;
use quorate_engine::facts::{PodGroup, Workload, WorkloadGroup};

use super::Incoming;
use crate::error::Unreadable;

/// An upstream `PodGroup` as a fact.
pub fn pod_group(group: &slim::PodGroup) -> Result<(ObjectKey, PodGroup), Unreadable> {
    let incoming = Incoming::new("PodGroup", &group.metadata);
    let fact = PodGroup {
        min_count: incoming.count(
            "spec.schedulingPolicy.gang.minCount",
            group.spec.scheduling_policy.min_count(),
            1,
        )?,
        falls_whole: group.spec.disruption_mode == slim::DisruptionMode::All,
        template: group
            .template()
            .map(|template| (template.workload_name.as_str().into(), template.template_name.as_str().into())),
        controller: incoming.controller(),
        uid: incoming.uid()?,
        deleting: incoming.terminating(),
    };
    Ok((incoming.key()?, fact))
}

/// An upstream `Workload` as a fact. It has no number of replicas in any version.
pub fn upstream_workload(workload: &slim::Workload) -> Result<(ObjectKey, Workload), Unreadable> {
    let incoming = Incoming::new("Workload", &workload.metadata);
    let groups = workload.groups().enumerate().map(|(i, group)| {
        let path = format!("spec.podGroups[{i}].policy.gang.minCount");
        Ok(WorkloadGroup {
            name: group.name.as_str().into(),
            min_count: incoming.count(&path, group.scheduling_policy.min_count(), 1)?,
            replicas: None,
        })
    });
    let groups = groups.collect::<Result<_, _>>()?;
    Ok((incoming.key()?, workload_of(incoming, groups)?))
}

/// Our own `Workload` as a fact, from its spec as it is stored.
pub fn own_workload(
    meta: &ObjectMeta,
    spec: &serde_json::Value,
) -> Result<(ObjectKey, Workload), Unreadable> {
    let incoming = Incoming::new("Workload", meta);
    let (groups, mut problems) = crate::workload::read(spec);
    if problems.is_empty() {
        Ok((incoming.key()?, workload_of(incoming, groups.into())?))
    } else {
        Err(incoming.unreadable(problems.remove(0)))
    }
}

fn workload_of(incoming: Incoming<'_>, groups: Box<[WorkloadGroup]>) -> Result<Workload, Unreadable> {
    // Nothing in the cluster makes our own, so a person may have written an owner that is no controller.
    let owner = incoming.controller().or_else(|| incoming.owners().first().cloned());
    Ok(Workload { groups, uid: incoming.uid()?, deleting: incoming.terminating(), owner })
}
