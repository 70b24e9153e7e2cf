//! Units: what a budget counts, how a pod finds its own, and what makes one whole.

use crate::basics::{ObjectKey, Text, Uid};
use crate::facts::{Counts, Link, Pod, Rules, Units, WorkloadSource};
use crate::world::{LWS_GROUP_INDEX, World, is_lws_group_key, lws_group, lws_name};

/// Where a pod sits in a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The budget counts pods: the pod is a unit by itself.
    Pod,
    /// It belongs to this group.
    Group(GroupKey),
    /// It has no group, and is counted in a tally of single pods beside the groups.
    Single,
    /// It has no group though the Workload API should give it one.
    Stray,
}

/// Names a group within a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum GroupKey {
    /// A `PodGroup` object.
    PodGroup(Text),
    /// A replica of a pod group of a `Workload`.
    Replica(WorkloadSource, Text, Text, Text),
    /// Pods that share a label's value.
    Label(Text),
    /// Pods that share a label's value within one LeaderWorkerSet.
    LeaderWorker(Text, Text),
    /// Pods that share an owner.
    Owner(Uid),
}

/// Groups whose expected number comes from one source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// The budget says how many.
    Declared,
    /// A `Workload` says how many replicas a pod group has.
    Workload(WorkloadSource, Text, Text),
    /// The scale of an object that counts groups.
    Scale(Uid),
    /// The `PodGroup` objects made from one template.
    Template(Text, Text),
    /// Nobody says: those that were seen.
    Observed,
}

/// What makes a group whole, and who knows how many there should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The healthy pods it needs; `None` where the object that says so is missing.
    pub(crate) min_count: Option<u32>,
    /// Who knows, the budget itself apart.
    pub(crate) family: Family,
    /// The budget asks for more pods than a group can have.
    pub(crate) unreachable: bool,
    /// The budget asks for fewer pods than a group that falls whole needs.
    pub(crate) raised: bool,
    /// Its number lies beyond the replicas of its LeaderWorkerSet: a surge, or about to be scaled away. It is not one
    /// of those that there should be, so it counts for nothing and costs nothing.
    pub(crate) surge: bool,
}

/// Finds a pod's place under a budget.
pub(crate) fn place(rules: &Rules, pod: &Pod) -> Place {
    match &rules.units {
        Units::Pods => Place::Pod,
        Units::Workload => match pod.link.as_deref() {
            Some(Link::PodGroup(name)) => Place::Group(GroupKey::PodGroup(name.clone())),
            Some(Link::Replica { source, workload, group, replica }) => {
                Place::Group(GroupKey::Replica(*source, workload.clone(), group.clone(), replica.clone()))
            }
            None => Place::Stray,
        },
        Units::Label { key, .. } => match pod.labels.get(key) {
            Some(value) => match lws_name(&pod.labels) {
                // The group's number is unique within one LeaderWorkerSet only.
                Some(set) if is_lws_group_key(key) => {
                    Place::Group(GroupKey::LeaderWorker(set.into(), value.into()))
                }
                _ => Place::Group(GroupKey::Label(value.into())),
            },
            None => Place::Single,
        },
        Units::Owner { kind, .. } => match pod.owners.iter().find(|owner| owner.kind == *kind) {
            Some(owner) => Place::Group(GroupKey::Owner(owner.uid.clone())),
            None => Place::Single,
        },
    }
}

/// The name a reader knows a group by.
pub(crate) fn display_name(rules: &Rules, key: &GroupKey, pod: &Pod) -> Text {
    match key {
        GroupKey::PodGroup(name) | GroupKey::Label(name) => name.clone(),
        GroupKey::Replica(_, workload, group, replica) if replica.is_empty() => {
            format!("{workload}/{group}").into()
        }
        GroupKey::Replica(_, workload, group, replica) => format!("{workload}/{group}/{replica}").into(),
        GroupKey::LeaderWorker(set, value) => match &rules.units {
            Units::Label { key, .. } if **key == *LWS_GROUP_INDEX => format!("{set}/{value}").into(),
            _ => value.clone(),
        },
        GroupKey::Owner(uid) => {
            pod.owners.iter().find(|owner| owner.uid == *uid).map_or_else(|| uid.clone(), |o| o.name.clone())
        }
    }
}

/// Works out what makes a group whole and who knows how many there should be. `size` is what its pods say.
pub(crate) fn standing(
    rules: &Rules,
    namespace: &Text,
    key: &GroupKey,
    size: Option<u32>,
    pods: u32,
    world: &World,
) -> Standing {
    let mut standing = match key {
        GroupKey::PodGroup(name) => {
            let object = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            match world.pod_group(&object) {
                None => Standing::plain(None, Family::Observed),
                Some(group) => {
                    let scaled = group.controller.as_ref().and_then(|owner| world.controller(&owner.uid));
                    let by_scale = scaled
                        .filter(|c| matches!(c.counts, Counts::Groups { .. }) && c.replicas.is_some())
                        .map(|controller| Family::Scale(controller.uid.clone()));
                    let by_template = group.template.clone().map(|(w, t)| Family::Template(w, t));
                    // A group that falls whole has no surplus: every pod it has is needed.
                    let min = if group.falls_whole { group.min_count.max(pods) } else { group.min_count };
                    Standing::plain(Some(min), by_scale.or(by_template).unwrap_or(Family::Observed))
                }
            }
        }
        GroupKey::Replica(source, workload, group, _) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            match world.workload_group(*source, object, group) {
                None => Standing::plain(None, Family::Observed),
                Some(found) => {
                    let family = match found.replicas {
                        Some(_) => Family::Workload(*source, workload.clone(), group.clone()),
                        None => Family::Observed,
                    };
                    Standing::plain(Some(found.min_count), family)
                }
            }
        }
        GroupKey::Label(_) | GroupKey::Owner(_) => {
            Standing::plain(Some(asked_minimum(rules).unwrap_or(1)), Family::Observed)
        }
        GroupKey::LeaderWorker(name, index) => {
            let set = world.leader_worker_set(namespace, name);
            let family = match set.filter(|set| set.replicas.is_some()) {
                Some(set) => Family::Scale(set.uid.clone()),
                None => Family::Observed,
            };
            let asked = asked_minimum(rules);
            let by_index = matches!(&rules.units, Units::Label { key, .. } if **key == *LWS_GROUP_INDEX);
            let surge = by_index
                && rules.expected.is_none()
                && set
                    .and_then(|set| set.replicas)
                    .is_some_and(|n| index.parse().is_ok_and(|at: u32| at >= n));
            match lws_group(set, size) {
                (Some(size), falls_whole) => Standing {
                    surge,
                    min_count: Some(if falls_whole { size } else { asked.unwrap_or(size).min(size) }),
                    family,
                    unreachable: asked.is_some_and(|asked| asked > size),
                    raised: falls_whole && asked.is_some_and(|asked| asked < size),
                },
                (None, _) => Standing { surge, ..Standing::plain(Some(asked.unwrap_or(1)), family) },
            }
        }
    };
    standing.min_count = standing.min_count.map(|n| n.max(1));
    standing
}

/// Whether nobody but the eye says that there should be a group of this name.
pub(crate) fn is_observed(rules: &Rules, namespace: &Text, name: &Text, world: &World) -> bool {
    if rules.expected.is_some() {
        return false;
    }
    let family = |key: &GroupKey| standing(rules, namespace, key, None, 0, world).family;
    match (&rules.units, name.split('/').collect::<Vec<_>>().as_slice()) {
        (Units::Pods, _) => false,
        (Units::Workload, [_]) => family(&GroupKey::PodGroup(name.clone())) == Family::Observed,
        (Units::Workload, [workload, group, ..]) => {
            [WorkloadSource::Own, WorkloadSource::Upstream].into_iter().all(|source| {
                let key = GroupKey::Replica(source, (*workload).into(), (*group).into(), "".into());
                family(&key) == Family::Observed
            })
        }
        (Units::Label { key, .. }, [set, index]) if is_lws_group_key(key) => {
            family(&GroupKey::LeaderWorker((*set).into(), (*index).into())) == Family::Observed
        }
        _ => true,
    }
}

impl Standing {
    fn plain(min_count: Option<u32>, family: Family) -> Self {
        Self { min_count, family, unreachable: false, raised: false, surge: false }
    }
}

/// How many healthy pods the budget asks of a group.
pub(crate) fn asked_minimum(rules: &Rules) -> Option<u32> {
    match rules.units {
        Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } => min_ready,
        Units::Pods | Units::Workload => None,
    }
}

/// How many groups of a family there should be, before those that are complete or gone are looked at.
pub(crate) fn family_size(rules: &Rules, namespace: &Text, family: &Family, world: &World) -> Option<u32> {
    match family {
        Family::Declared => rules.expected,
        Family::Workload(source, workload, group) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            world.workload_group(*source, object, group).and_then(|found| found.replicas)
        }
        Family::Scale(uid) => world.controller(uid).and_then(|controller| controller.replicas),
        Family::Template(workload, template) => Some(world.template_count(namespace, workload, template)),
        Family::Observed => None,
    }
}
