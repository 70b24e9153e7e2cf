//! Which pods a budget covers, and which unit a pod belongs to.

use std::rc::Rc;

use super::decode::{Detail, Grouping, Id, LWS_GROUP, LWS_NAME, Owner, Pod, Source, Spec};
use super::states::State;

const LWS_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKLOAD: &str = "quorate.dev/workload";
const POD_GROUP: &str = "quorate.dev/pod-group";
const POD_GROUP_REPLICA: &str = "quorate.dev/pod-group-replica";
const OWN_SCHEDULING: &str = "scheduling.quorate.dev";
const SCHEDULING: &str = "scheduling.k8s.io";

/// How many owners are followed from a pod to a target.
const DEPTH: usize = 8;

/// What says how many units there should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExpectedFrom {
    /// A controller that wants pods.
    Controller(Id),
    /// A LeaderWorkerSet.
    LeaderWorkerSet(Id),
    /// A pod group of a Workload with a number of replicas.
    PodGroup(Id, String),
    /// The PodGroups of a template of a Workload.
    Template(String, String),
    /// A PodGroup without a template.
    Alone(Id),
    /// A group that nothing describes, by its name, and by its owner if it has one. An owner of the same name replaces it.
    Observed(String, Option<Id>),
    /// A group whose description is gone.
    Orphaned(String),
}

impl ExpectedFrom {
    /// Whether this is the group of an owner, and the other one that of another owner with the same name.
    pub(super) fn is_replaced_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Observed(name, owner), Self::Observed(other, new)) => name == other && owner != new,
            _ => false,
        }
    }
}

/// The group of a pod.
#[derive(Clone, Debug)]
pub(super) struct GroupRef {
    pub(super) name: String,
    pub(super) expected_from: ExpectedFrom,
    /// How many healthy pods it needs. Nothing if the object that says so does not exist.
    pub(super) minimum: Option<usize>,
    /// Whether the loss of a pod takes the whole group down, and no object says how many pods it has.
    pub(super) needs_all: bool,
}

/// Whether the budget covers the pod.
pub(super) fn covers(spec: &Spec, pod: &Pod, state: &State) -> bool {
    let Some(target) = &spec.target else { return spec.selector.matches(&pod.meta.labels) };
    if target.group == LWS_GROUP {
        return pod.label(LWS_NAME) == Some(&target.name);
    }
    owners(pod, state).iter().any(|owner| {
        state.sources.get(&owner.id).is_some_and(|it| it.is(&target.group, &target.kind, &target.name))
    })
}

/// The controller of the pod, the controller of that, and so on.
fn owners<'a>(pod: &'a Pod, state: &'a State) -> Vec<&'a Owner> {
    let mut found = Vec::new();
    let mut next = pod.meta.controller();
    while let Some(owner) = next.filter(|_| found.len() < DEPTH) {
        found.push(owner);
        next = state.sources.get(&owner.id).and_then(|source| source.meta.controller());
    }
    found
}

/// The controller that says how many pods there should be: the Deployment, not its ReplicaSet.
pub(super) fn scaled_by<'a>(pod: &Pod, state: &'a State) -> Option<&'a Rc<Source>> {
    let source = state.sources.get(&pod.meta.controller()?.id)?;
    match source.meta.controller() {
        Some(owner) if source.kind == "ReplicaSet" && owner.kind == "Deployment" => {
            state.sources.get(&owner.id)
        }
        _ => Some(source),
    }
}

/// The LeaderWorkerSet of a pod.
pub(super) fn leader_worker_set<'a>(pod: &Pod, state: &'a State) -> Option<&'a Rc<Source>> {
    let name = pod.label(LWS_NAME)?;
    state.sources.values().find(|source| source.is(LWS_GROUP, "LeaderWorkerSet", name))
}

/// The group of a pod, if the budget counts groups and the pod has one.
pub(super) fn group_of(spec: &Spec, pod: &Pod, state: &State) -> Option<GroupRef> {
    match &spec.grouping {
        Grouping::Pods => None,
        Grouping::Workload => workload_group(pod, state),
        Grouping::Owner(group, kind) => {
            let owner = pod.meta.owners.iter().find(|owner| &owner.group == group && &owner.kind == kind)?;
            let name = format!("{} {}", owner.name, owner.id);
            Some(observed(name, ExpectedFrom::Observed(owner.name.clone(), Some(owner.id)), spec))
        }
        Grouping::Label(key) => {
            let value = pod.label(key)?;
            match pod.label(LWS_NAME).filter(|_| key == LWS_INDEX) {
                Some(set) => Some(set_group(format!("{set}/{value}"), spec, pod, state)),
                None => {
                    Some(observed(value.to_owned(), ExpectedFrom::Observed(value.to_owned(), None), spec))
                }
            }
        }
    }
}

fn observed(name: String, expected_from: ExpectedFrom, spec: &Spec) -> GroupRef {
    GroupRef { name, expected_from, minimum: Some(spec.min_ready.unwrap_or(1)), needs_all: false }
}

/// Whether the group of a pod is one that its LeaderWorkerSet does not want any more, so that nothing keeps it.
pub(super) fn is_surge(pod: &Pod, state: &State) -> bool {
    let index = pod.label(LWS_INDEX).and_then(|index| index.parse::<u32>().ok());
    let wants = leader_worker_set(pod, state).and_then(|set| set.wants);
    index.zip(wants).is_some_and(|(index, wants)| index >= wants)
}

/// A group of a LeaderWorkerSet. If the loss of a pod takes it down, it needs all its pods.
fn set_group(name: String, spec: &Spec, pod: &Pod, state: &State) -> GroupRef {
    let set = leader_worker_set(pod, state);
    let Some((set, Detail::LeaderWorkerSet { size, falls_whole })) = set.map(|set| (set, &set.detail)) else {
        let minimum = spec.min_ready.or(pod.lws_size).or(Some(1));
        return GroupRef {
            expected_from: ExpectedFrom::Orphaned(name.clone()),
            name,
            minimum,
            needs_all: false,
        };
    };
    let size = pod.lws_size.unwrap_or(*size);
    let minimum = match spec.min_ready {
        Some(minimum) if !falls_whole => minimum.min(size),
        _ => size,
    };
    let expected_from = ExpectedFrom::LeaderWorkerSet(set.meta.id);
    GroupRef { name, expected_from, minimum: Some(minimum), needs_all: false }
}

fn workload_group(pod: &Pod, state: &State) -> Option<GroupRef> {
    let find = |group: &str, kind: &str, name: &str| {
        state.sources.values().find(|source| source.is(group, kind, name))
    };
    if let Some(name) = &pod.scheduling_group {
        let group = find(SCHEDULING, "PodGroup", name);
        let Some((source, Detail::PodGroup(group))) = group.map(|group| (group, &group.detail)) else {
            return Some(orphaned(name.clone()));
        };
        let expected_from = match &group.template {
            Some((workload, template)) => ExpectedFrom::Template(workload.clone(), template.clone()),
            None => ExpectedFrom::Alone(source.meta.id),
        };
        let minimum = Some(group.minimum);
        return Some(GroupRef { name: name.clone(), expected_from, minimum, needs_all: group.falls_whole });
    }
    let labelled = || {
        let label = |key| pod.label(key).unwrap_or_default().to_owned();
        let workload = pod.label(WORKLOAD)?.to_owned();
        Some((OWN_SCHEDULING, [workload, label(POD_GROUP), label(POD_GROUP_REPLICA)]))
    };
    let referred = pod.workload_ref.clone().map(|parts| (SCHEDULING, parts));
    let (api, [workload, part, replica]) = referred.or_else(labelled)?;
    let name = format!("{workload}/{part}/{replica}");
    let source = find(api, "Workload", &workload);
    let Some((source, Detail::Workload(parts))) = source.map(|source| (source, &source.detail)) else {
        return Some(orphaned(name));
    };
    let Some((_, replicas, minimum)) = parts.iter().find(|(name, ..)| name == &part) else {
        return Some(orphaned(name));
    };
    let expected_from = match replicas {
        Some(_) => ExpectedFrom::PodGroup(source.meta.id, part),
        None => ExpectedFrom::Observed(name.clone(), None),
    };
    Some(GroupRef { name, expected_from, minimum: Some(*minimum), needs_all: false })
}

fn orphaned(name: String) -> GroupRef {
    GroupRef { expected_from: ExpectedFrom::Orphaned(name.clone()), name, minimum: None, needs_all: false }
}
