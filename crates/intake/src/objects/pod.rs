//! Pods.

use std::borrow::Cow;

use quorate_api::names::{DISRUPTABLE, POD_GROUP, POD_GROUP_REPLICA, WORKLOAD};
use quorate_api::slim;
use quorate_engine::basics::{Labels, Text, Time};
use quorate_engine::facts::{Container, Link, Phase, Pod, Probe, WorkloadSource};
use quorate_engine::group_source::GroupSource;

use super::Incoming;
use crate::error::Unreadable;
use crate::{announcements, fingerprint, image, kruise, probe, resources, time};

/// A pod as a fact.
pub fn pod(pod: &slim::Pod) -> Result<Pod, Unreadable> {
    let incoming = Incoming::new("Pod", &pod.metadata);
    let ready = slim::Condition::find(&pod.status.conditions, "Ready");
    Ok(Pod {
        key: incoming.key()?,
        uid: incoming.uid()?,
        version: incoming.version()?,
        labels: Labels::new(pod.metadata.labels.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()))),
        node: pod.spec.node_name.as_deref().filter(|node| !node.is_empty()).map(Text::from),
        phase: phase(pod.status.phase),
        terminating: incoming.terminating(),
        ready: ready.is_some_and(slim::Condition::is_true),
        ready_since: ready.and_then(|ready| ready.last_transition_time.as_ref()).map(time::from_object),
        announced: announcements::is_announced(pod),
        consistent: kruise::is_consistent(pod),
        waives: kruise::waives(pod),
        probe: disruption_probe(pod).map(Box::new),
        owners: incoming.owners(),
        link: link(incoming, &pod.spec).map(Box::new),
        group_size: group_size(pod),
        deadline: pod.spec.active_deadline_seconds.and_then(|seconds| u32::try_from(seconds).ok()),
        grace_seconds: grace_seconds(pod),
        resize_infeasible: resize_infeasible(pod),
        containers: containers(pod),
    })
}

/// A pod as a fact, from its JSON text: the fields that can be read, and the error of the others. If a pod that cannot
/// be decoded counted as gone, its claims would be settled. So it is kept, as a pod that is not healthy.
///
/// # Errors
/// Not even its UID can be read.
pub fn any_pod(text: &str) -> Result<(Pod, Option<String>), String> {
    let whole = serde_json::from_str::<slim::Pod>(text).map_err(|error| error.to_string());
    let why = match whole.and_then(|whole| pod(&whole).map_err(|error| error.to_string())) {
        Ok(fact) => return Ok((fact, None)),
        Err(why) => why,
    };
    let Some(mut rest) = slim::Pod::salvage(text) else { return Err(why) };
    let meta = &mut rest.metadata;
    meta.name = meta.name.take().or_else(|| meta.uid.clone()).filter(|name| !name.is_empty());
    meta.namespace = meta.namespace.take().filter(|name| !name.is_empty()).or(Some(UNKNOWN.to_owned()));
    // Version 0 is older than every known state of the pod.
    meta.resource_version =
        meta.resource_version.take().filter(|text| super::version(text).is_some()).or(Some("0".to_owned()));
    match pod(&rest) {
        Ok(fact) => Ok((fact, Some(why))),
        Err(_) => Err(why),
    }
}

/// Not a valid namespace name, so it matches no namespace.
const UNKNOWN: &str = "(unknown)";

fn phase(phase: slim::Phase) -> Phase {
    match phase {
        slim::Phase::Pending => Phase::Pending,
        slim::Phase::Running => Phase::Running,
        slim::Phase::Succeeded => Phase::Succeeded,
        slim::Phase::Failed => Phase::Failed,
        slim::Phase::Unknown => Phase::Unknown,
    }
}

/// How the pod names its group. Each field is used only if the previous ones are not set.
fn link(pod: Incoming<'_>, spec: &slim::PodSpec) -> Option<Link> {
    if let Some(name) = spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.as_deref()) {
        return Some(Link::PodGroup(name.into()));
    }
    if let Some(reference) = &spec.workload_ref {
        return Some(Link::Replica {
            source: WorkloadSource::Upstream,
            workload: reference.name.as_str().into(),
            group: reference.pod_group.as_str().into(),
            replica: reference.pod_group_replica_key.as_deref().unwrap_or_default().into(),
        });
    }
    let workload = pod.label(WORKLOAD).filter(|name| !name.is_empty())?;
    Some(Link::Replica {
        source: WorkloadSource::Own,
        workload: workload.into(),
        group: pod.label(POD_GROUP).unwrap_or_default().into(),
        replica: pod.label(POD_GROUP_REPLICA).unwrap_or_default().into(),
    })
}

/// The size of its group that the group source wrote on the pod. If it is not a number, the size in the object of the
/// source applies.
fn group_size(pod: &slim::Pod) -> Option<u32> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let mut sizes = GroupSource::ALL.iter().filter_map(|source| annotations.get(source.size_annotation?));
    sizes.next()?.parse().ok().filter(|size| *size > 0)
}

/// Seconds that the containers of a pod may take to stop. The API server sets 30 if the user sets nothing.
fn grace_seconds(pod: &slim::Pod) -> u32 {
    let given = pod.spec.termination_grace_period_seconds.unwrap_or(30);
    u32::try_from(given.max(0)).unwrap_or(u32::MAX)
}

/// Whether the kubelet reports that its node can never carry out the requested resize.
fn resize_infeasible(pod: &slim::Pod) -> bool {
    let pending = slim::Condition::find(&pod.status.conditions, "PodResizePending");
    pending.is_some_and(|pending| pending.is_true() && pending.reason.as_deref() == Some("Infeasible"))
}

fn disruption_probe(pod: &slim::Pod) -> Option<Probe> {
    let probed: Vec<&str> =
        pod.metadata.annotations.iter().flatten().filter_map(|(key, _)| probe::container(key)).collect();
    if probed.is_empty() {
        return None;
    }
    let condition = slim::Condition::find(&pod.status.conditions, DISRUPTABLE);
    let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let statuses = statuses.filter(|status| probed.contains(&status.name.as_str()));
    let running: Vec<_> = statuses.filter_map(|status| status.state.running.as_ref()).collect();
    let starts = running.iter().filter_map(|running| running.started_at.as_ref());
    let started: Option<Time> = starts.map(|at| time::next_second(time::from_object(at))).max();
    // A container that does not run cannot have answered the probe, even if the condition is still set.
    let all_run = running.len() == probed.len();
    Some(Probe {
        malformed: probe::problems(pod).first().map(|problem| problem.to_string().into()),
        disruptable: condition.filter(|_| all_run).map(slim::Condition::is_true),
        message: condition
            .and_then(|condition| condition.message.as_deref())
            .filter(|message| !message.is_empty())
            .map(Text::from),
        probed: condition.and_then(|condition| condition.last_probe_time.as_ref()).map(time::from_object),
        since: condition.and_then(|condition| condition.last_transition_time.as_ref()).map(time::from_object),
        started,
    })
}

/// The regular containers and the sidecars, with their running and their desired image and resources.
fn containers(pod: &slim::Pod) -> Box<[Container]> {
    let regular = pod.spec.containers.iter().map(|spec| (spec, &pod.status.container_statuses));
    let sidecars = pod.spec.init_containers.iter().filter(|init| init.is_sidecar());
    let sidecars = sidecars.map(|spec| (spec, &pod.status.init_container_statuses));
    regular
        .chain(sidecars)
        .map(|(spec, statuses)| {
            let none = slim::ContainerStatus::default();
            let status = statuses.iter().find(|status| status.name == spec.name).unwrap_or(&none);
            let wanted = spec.image.as_deref();
            let runs = image::running(wanted, status.image.as_deref(), status.image_id.as_deref());
            let all = resources::effective(pod, spec);
            let spec_resources = fingerprint::resources(&all);
            let resources = match all {
                Cow::Borrowed(_) => status.resources.as_ref().map_or(0, fingerprint::resources),
                // The container takes limits of the pod. Its status shows them only in part, and the status of the pod
                // rounds them. So the report of the kubelet decides.
                Cow::Owned(_) if resources::is_resized(pod) => spec_resources,
                Cow::Owned(_) => 0,
            };
            Container {
                name: spec.name.as_str().into(),
                id: fingerprint::container_id(status.container_id.as_deref()),
                image: fingerprint::image(runs),
                resources,
                spec_image: fingerprint::image(wanted),
                spec_resources,
            }
        })
        .collect()
}
