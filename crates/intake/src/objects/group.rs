//! Pod groups and Workloads: those of the upstream API in each of its shapes, and `scheduling.quorate.dev` Workloads.

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

/// An upstream `Workload` as a fact. No version of it has a replica count.
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

/// A `scheduling.quorate.dev` Workload as a fact, from its stored spec.
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
    // No controller creates `scheduling.quorate.dev` Workloads, so a user may have set an owner that is not a
    // controller.
    let owner = incoming.controller().or_else(|| incoming.owners().first().cloned());
    Ok(Workload { groups, uid: incoming.uid()?, deleting: incoming.terminating(), owner })
}
