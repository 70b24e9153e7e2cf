//! Changes of a pod: which of them restart or replace containers, and what they lead to.

use std::collections::BTreeMap;

use quorate_api::names::kruise::UNAVAILABLE_POD_PREFIX;
use quorate_api::slim::{Container, ContainerStatus, Pod};
use quorate_engine::claims::{ContainerChange, Target};

use crate::{announcements, fingerprint};

/// What an update leads to; `None` where it disturbs nothing.
///
/// It disturbs where it gives a container another image, where it sets the pod a nearer end, and where it calls the pod
/// unavailable by a label. Nothing else that the API server lets through makes a kubelet restart anything.
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
    // An init container that has ended is not run again, so there is nothing to wait for; one that has not is.
    disturbs |= ended_init(new).any(|container| {
        ended_init(old)
            .find(|other| other.name == container.name)
            .is_none_or(|old| old.image != container.image)
    });
    if new
        .spec
        .active_deadline_seconds
        .is_some_and(|new| old.spec.active_deadline_seconds.is_none_or(|old| new < old))
    {
        for container in running(new) {
            changes.replace(&container.name);
        }
        disturbs = true;
    }
    disturbs |= resize_into(old, new, &mut changes);
    disturbs.then(|| changes.target())
}

/// What a resize leads to; `None` where no container is restarted for it.
pub(super) fn resize(old: &Pod, new: &Pod) -> Option<Target> {
    let mut changes = Changes::of(old);
    resize_into(old, new, &mut changes).then(|| changes.target())
}

/// What a write of the status leads to; `None` where it announces no update. What the update is going to change is not
/// known yet.
pub(super) fn announcement(old: &Pod, new: &Pod) -> Option<Target> {
    announcements::announces(old, new).then(Target::default)
}

fn resize_into<'a>(old: &'a Pod, new: &'a Pod, changes: &mut Changes<'a>) -> bool {
    let mut disturbs = false;
    for container in running(new) {
        let Some(before) = running(old).find(|other| other.name == container.name) else { continue };
        let mut changed = fingerprint::differing(&before.resources.requests, &container.resources.requests);
        changed.extend(fingerprint::differing(&before.resources.limits, &container.resources.limits));
        if changed.iter().any(|resource| restarts_for(container, resource)) {
            let change = changes.replace(&container.name);
            change.resources = Some(fingerprint::resources(&container.resources));
            disturbs = true;
        }
    }
    disturbs
}

/// Whether the container must be restarted for a change of a resource. Only cpu and memory can do without.
fn restarts_for(container: &Container, resource: &str) -> bool {
    let in_place = matches!(resource, "cpu" | "memory");
    let policy = container.resize_policy.iter().find(|policy| policy.resource_name == resource);
    !in_place || policy.is_some_and(|policy| !matches!(policy.restart_policy.as_str(), "" | "NotRequired"))
}

/// The label by which an update calls a pod unavailable that had no such label of that name.
fn newly_unavailable<'a>(old: &Pod, new: &'a Pod) -> Option<&'a str> {
    let old = old.metadata.labels.as_ref();
    let mut labels = new.metadata.labels.iter().flatten().map(|(key, _)| key);
    labels
        .find(|key| key.starts_with(UNAVAILABLE_POD_PREFIX) && old.is_none_or(|old| !old.contains_key(*key)))
        .map(String::as_str)
}

/// The containers that stay: the regular ones and the sidecars.
fn running(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.containers.iter().chain(pod.spec.init_containers.iter().filter(|init| init.is_sidecar()))
}

fn ended_init(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().filter(|init| !init.is_sidecar())
}

/// What becomes of each container, by name, so that the same request always makes the same token.
struct Changes<'a> {
    old: &'a Pod,
    changes: BTreeMap<&'a str, ContainerChange>,
    label: Option<&'a str>,
}

impl<'a> Changes<'a> {
    fn of(old: &'a Pod) -> Self {
        Self { old, changes: BTreeMap::new(), label: None }
    }

    /// The container is to be replaced by another one.
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
        Target { base: None, containers: self.changes.into_values().collect(), label }
    }
}
