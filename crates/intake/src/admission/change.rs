//! Changes of a pod: which of them restart or replace containers, and the resulting state.

use std::collections::BTreeMap;

use quorate_api::names::kruise::UNAVAILABLE_POD_PREFIX;
use quorate_api::slim::{Container, ContainerStatus, Pod};
use quorate_engine::claims::{ContainerChange, Target};

use crate::{fingerprint, resources};

/// The target of an update; `None` if the update disrupts nothing.
///
/// An update disrupts if it changes the image of a container, shortens activeDeadlineSeconds, or labels the pod as
/// unavailable. No other update that the API server accepts makes the kubelet restart a container.
pub(super) fn update(old: &Pod, new: &Pod) -> Option<Target> {
    let mut changes = Changes::of(old);
    changes.label = newly_unavailable(old, new);
    let mut disturbs = changes.label.is_some();
    for container in running(new) {
        let before = running(old).find(|other| other.name == container.name);
        if before.is_none_or(|before| before.image != container.image) {
            let change = changes.replace(&container.name);
            change.image = Some(fingerprint::image(container.image.as_deref()));
            disturbs = true;
        }
    }
    for container in running(old).filter(|old| !running(new).any(|new| new.name == old.name)) {
        changes.replace(&container.name);
        disturbs = true;
    }
    // The target does not include these init containers: one that has terminated is not run again, so there is nothing
    // to wait for. A changed image is still a disruption, because one that has not terminated yet is run again.
    disturbs |= ended_init(new).any(|container| {
        ended_init(old)
            .find(|other| other.name == container.name)
            .is_none_or(|old| old.image != container.image)
    });
    changes.deadline = earlier_deadline(old, new);
    if changes.deadline.is_some() {
        for container in running(new) {
            changes.replace(&container.name);
        }
        disturbs = true;
    }
    disturbs |= resize_into(old, new, &mut changes);
    disturbs.then(|| changes.target())
}

/// The target of a resize; `None` if it restarts no container.
pub(super) fn resize(old: &Pod, new: &Pod) -> Option<Target> {
    let mut changes = Changes::of(old);
    resize_into(old, new, &mut changes).then(|| changes.target())
}

fn resize_into<'a>(old: &'a Pod, new: &'a Pod, changes: &mut Changes<'a>) -> bool {
    let mut disturbs = false;
    for container in running(new) {
        let Some(before) = running(old).find(|other| other.name == container.name) else { continue };
        let (own, all) = (&container.resources, resources::effective(new, container));
        let (own_before, all_before) = (&before.resources, resources::effective(old, before));
        // A limit that a container takes from its pod restarts it like its own. A kubelet that does not resize pods
        // compares only what the container has itself.
        let mut changed = fingerprint::differing(&own_before.requests, &own.requests);
        changed.extend(fingerprint::differing(&own_before.limits, &own.limits));
        changed.extend(fingerprint::differing(&all_before.limits, &all.limits));
        if changed.iter().any(|resource| restarts_for(container, resource)) {
            let change = changes.replace(&container.name);
            change.resources = Some(fingerprint::resources(&all));
            disturbs = true;
        }
    }
    disturbs
}

/// Whether a change of a resource restarts the container. Only cpu and memory can change without a restart.
fn restarts_for(container: &Container, resource: &str) -> bool {
    let in_place = matches!(resource, "cpu" | "memory");
    let policy = container.resize_policy.iter().find(|policy| policy.resource_name == resource);
    !in_place || policy.is_some_and(|policy| !matches!(policy.restart_policy.as_str(), "" | "NotRequired"))
}

/// The activeDeadlineSeconds that makes the pod end sooner.
fn earlier_deadline(old: &Pod, new: &Pod) -> Option<u32> {
    let (old, new) = (old.spec.active_deadline_seconds, new.spec.active_deadline_seconds?);
    // The API server accepts no other values than those of 32 bits.
    old.is_none_or(|old| new < old).then(|| u32::try_from(new).unwrap_or(u32::MAX))
}

/// The label that newly marks the pod as unavailable.
fn newly_unavailable<'a>(old: &Pod, new: &'a Pod) -> Option<&'a str> {
    let old = old.metadata.labels.as_ref();
    let mut labels = new.metadata.labels.iter().flatten().map(|(key, _)| key);
    labels
        .find(|key| key.starts_with(UNAVAILABLE_POD_PREFIX) && old.is_none_or(|old| !old.contains_key(*key)))
        .map(String::as_str)
}

/// The containers that keep running: the regular ones and the sidecars.
fn running(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.containers.iter().chain(pod.spec.init_containers.iter().filter(|init| init.is_sidecar()))
}

fn ended_init(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().filter(|init| !init.is_sidecar())
}

/// The changes of each container. They are sorted by name, so that the same request always makes the same token.
struct Changes<'a> {
    old: &'a Pod,
    changes: BTreeMap<&'a str, ContainerChange>,
    label: Option<&'a str>,
    deadline: Option<u32>,
}

impl<'a> Changes<'a> {
    fn of(old: &'a Pod) -> Self {
        Self { old, changes: BTreeMap::new(), label: None, deadline: None }
    }

    /// Records that the container must be replaced.
    fn replace(&mut self, name: &'a str) -> &mut ContainerChange {
        let status = &self.old.status;
        self.changes.entry(name).or_insert_with(|| {
            let is_it = |status: &&ContainerStatus| status.name == name;
            let running = status.container_statuses.iter().chain(&status.init_container_statuses).find(is_it);
            let id = running.and_then(|status| status.container_id.as_deref());
            ContainerChange {
                name: name.into(),
                replaces: Some(fingerprint::container_id(id)),
                image: None,
                resources: None,
            }
        })
    }

    fn target(self) -> Target {
        let label = self.label.map(Into::into);
        let containers = self.changes.into_values().collect();
        Target { base: None, containers, label, deadline: self.deadline }
    }
}
