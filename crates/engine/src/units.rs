//! Units: what a budget counts, how a pod finds its own, and what makes one whole.

use crate::basics::{ObjectKey, Text, Uid};
use crate::facts::{Counts, Link, Pod, PodGroup, Rules, Units, WorkloadSource};
use crate::sources;
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
    /// A `PodGroup` object without a template: one group, while it is there.
    Lone(Text),
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
    /// Its number lies beyond the replicas of its LeaderWorkerSet: a surge, or about to be scaled away; or what made it
    /// is suspended or finished. It is not one of those that there should be, so it counts for nothing and costs nothing.
    pub(crate) surge: bool,
    /// Its number lies beyond the replicas of its LeaderWorkerSet, whoever says how many there should be.
    pub(crate) beyond: bool,
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
                    // A group that falls whole has no surplus: every pod it has is needed.
                    let min = if group.falls_whole { group.min_count.max(pods) } else { group.min_count };
                    let family = family_of_pod_group(name, group, world);
                    let surge = !sources::is_wanted(group, world);
                    Standing { surge, ..Standing::plain(Some(min), family) }
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
                    let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
                    let owner = world.workload(*source, object).and_then(|found| found.owner.as_ref());
                    let surge = family != Family::Observed && !world.is_wanted(owner);
                    Standing { surge, ..Standing::plain(Some(found.min_count), family) }
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
            let stated = set.and_then(|set| set.replicas);
            let beyond = stated.is_some_and(|n| index.parse().is_ok_and(|at: u32| at >= n));
            let beyond = by_index && beyond;
            match lws_group(set, size) {
                (Some(size), falls_whole) => Standing {
                    surge: beyond,
                    beyond,
                    min_count: Some(if falls_whole { size } else { asked.unwrap_or(size).min(size) }),
                    family,
                    unreachable: asked.is_some_and(|asked| asked > size),
                    raised: falls_whole && asked.is_some_and(|asked| asked < size),
                },
                (None, _) => {
                    Standing { surge: beyond, beyond, ..Standing::plain(Some(asked.unwrap_or(1)), family) }
                }
            }
        }
    };
    if let Family::Scale(uid) = &standing.family
        && world.controller(uid).is_some_and(|controller| !world.is_active(controller))
    {
        standing.surge = true;
    }
    // Where the budget says how many there should be, each of them is one of those.
    standing.surge &= rules.expected.is_none();
    standing.min_count = standing.min_count.map(|n| n.max(1));
    standing
}

/// Who knows how many groups like a PodGroup there should be: what made it, if that counts groups; its template; or it
/// stands for itself.
pub(crate) fn family_of_pod_group(name: &Text, group: &PodGroup, world: &World) -> Family {
    let scaled = group.controller.as_ref().and_then(|owner| world.controller(&owner.uid));
    let by_scale = scaled
        .filter(|c| matches!(c.counts, Counts::Groups { .. }) && c.replicas.is_some())
        .map(|controller| Family::Scale(controller.uid.clone()));
    let by_template = || group.template.clone().map(|(w, t)| Family::Template(w, t));
    by_scale.or_else(by_template).unwrap_or_else(|| Family::Lone(name.clone()))
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
        Self { min_count, family, unreachable: false, raised: false, surge: false, beyond: false }
    }
}

/// How many healthy pods the budget asks of a group.
pub(crate) fn asked_minimum(rules: &Rules) -> Option<u32> {
    match rules.units {
        Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } => min_ready,
        Units::Pods | Units::Workload => None,
    }
}

/// How many groups of a family there could be: what says how many may be suspended or finished.
pub(crate) fn family_room(rules: &Rules, namespace: &Text, family: &Family, world: &World) -> Option<u32> {
    match family {
        Family::Declared => rules.expected,
        Family::Workload(source, workload, group) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            world.workload_group(*source, object, group).and_then(|found| found.replicas)
        }
        Family::Scale(uid) => world.controller(uid).and_then(|controller| controller.replicas),
        Family::Template(workload, template) => {
            Some(world.of_template(namespace, workload, template).count() as u32)
        }
        Family::Lone(_) => Some(1),
        Family::Observed => None,
    }
}

/// How many groups of a family there should be, before those that are complete or gone are looked at.
pub(crate) fn family_size(rules: &Rules, namespace: &Text, family: &Family, world: &World) -> Option<u32> {
    match family {
        Family::Declared => rules.expected,
        Family::Workload(source, workload, group) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            let wanted = world.workload(*source, object.clone());
            let wanted = wanted.is_some_and(|workload| world.is_wanted(workload.owner.as_ref()));
            let replicas = world.workload_group(*source, object, group).and_then(|found| found.replicas);
            replicas.map(|replicas| if wanted { replicas } else { 0 })
        }
        Family::Scale(uid) => world.controller(uid).and_then(|controller| world.wanted_by(controller)),
        Family::Template(workload, template) => {
            let groups = world.of_template(namespace, workload, template);
            Some(groups.filter(|group| sources::is_wanted(group, world)).count() as u32)
        }
        Family::Lone(name) => {
            let object = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            world.pod_group(&object).map(|group| u32::from(sources::is_wanted(group, world)))
        }
        Family::Observed => None,
    }
}

const POD_GROUP: &str = "PodGroup/";
const OWN_WORKLOAD: &str = "Workload.scheduling.quorate.dev/";
const UPSTREAM_WORKLOAD: &str = "Workload.scheduling.k8s.io/";
const LEADER_WORKER: &str = "LeaderWorkerSet/";
const LABEL: &str = "Label/";
const OWNER: &str = "Owner/";
/// Between the first and the last number of a run: no name and no label has it.
const RUN: char = '~';

impl GroupKey {
    /// The key as the status has it.
    pub(crate) fn write(&self) -> String {
        match self {
            Self::PodGroup(name) => format!("{POD_GROUP}{name}"),
            Self::Replica(WorkloadSource::Own, workload, group, replica) => {
                format!("{OWN_WORKLOAD}{workload}/{group}/{replica}")
            }
            Self::Replica(WorkloadSource::Upstream, workload, group, replica) => {
                format!("{UPSTREAM_WORKLOAD}{workload}/{group}/{replica}")
            }
            Self::LeaderWorker(set, value) => format!("{LEADER_WORKER}{set}/{value}"),
            Self::Label(value) => format!("{LABEL}{value}"),
            Self::Owner(uid) => format!("{OWNER}{uid}"),
        }
    }

    /// The keys that a text of the status stands for; none where it is not understood.
    pub(crate) fn read(text: &str) -> Vec<Self> {
        let Some((head, last)) = text.rsplit_once(RUN) else {
            return Self::read_one(text).into_iter().collect();
        };
        let stem = head.trim_end_matches(|c: char| c.is_ascii_digit());
        match (head[stem.len()..].parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if last.saturating_sub(first) < LONGEST_RUN => {
                (first..=last).filter_map(|n| Self::read_one(&format!("{stem}{n}"))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn read_one(text: &str) -> Option<Self> {
        let replica = |source, rest: &str| {
            let mut parts = rest.splitn(3, '/');
            let (workload, group, replica) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Self::Replica(source, workload.into(), group.into(), replica.into()))
        };
        if let Some(name) = text.strip_prefix(POD_GROUP) {
            Some(Self::PodGroup(name.into()))
        } else if let Some(rest) = text.strip_prefix(OWN_WORKLOAD) {
            replica(WorkloadSource::Own, rest)
        } else if let Some(rest) = text.strip_prefix(UPSTREAM_WORKLOAD) {
            replica(WorkloadSource::Upstream, rest)
        } else if let Some(rest) = text.strip_prefix(LEADER_WORKER) {
            rest.split_once('/').map(|(set, value)| Self::LeaderWorker(set.into(), value.into()))
        } else if let Some(value) = text.strip_prefix(LABEL) {
            Some(Self::Label(value.into()))
        } else {
            text.strip_prefix(OWNER).map(|uid| Self::Owner(uid.into()))
        }
    }
}

/// A run that is longer was not written by us.
const LONGEST_RUN: u32 = 100_000;

/// Several keys as the status has them: runs of numbers as one.
pub(crate) fn write_all<'a>(keys: impl Iterator<Item = &'a GroupKey>) -> Vec<Text> {
    let mut parts: Vec<(String, Option<u32>)> = keys
        .map(|key| {
            let text = key.write();
            let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
            let number = &text[stem.len()..];
            // A number that is written otherwise would be read back as another name.
            match number.parse::<u32>().ok().filter(|n| n.to_string() == number) {
                Some(n) => (stem.to_owned(), Some(n)),
                None => (text, None),
            }
        })
        .collect();
    parts.sort_unstable();
    let mut written = Vec::new();
    let mut at = 0;
    while let Some((stem, number)) = parts.get(at) {
        let follows = |n: usize, first: u32| {
            parts.get(at + n).is_some_and(|next| next.0 == *stem && next.1 == first.checked_add(n as u32))
        };
        let length = number.map_or(1, |first| (1..).take_while(|n| follows(*n, first)).count() + 1);
        written.push(match number {
            None => stem.as_str().into(),
            Some(n) if length == 1 => format!("{stem}{n}").into(),
            Some(n) => format!("{stem}{n}{RUN}{}", n + length as u32 - 1).into(),
        });
        at += length;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        let label = |value: &str| GroupKey::Label(value.into());
        let mut keys = vec![
            GroupKey::PodGroup("a".into()),
            GroupKey::Replica(WorkloadSource::Own, "w".into(), "g".into(), "".into()),
            GroupKey::Replica(WorkloadSource::Upstream, "w".into(), "g".into(), "7".into()),
            GroupKey::LeaderWorker("llm".into(), "0".into()),
            GroupKey::Owner("0b7c-1".into()),
        ];
        keys.extend(
            ["0", "1", "2", "4", "01", "007", "a9", "a10", "4294967295", "4294967296", "x"].map(label),
        );
        keys.sort();
        let written = write_all(keys.iter());
        let mut read: Vec<GroupKey> = written.iter().flat_map(|text| GroupKey::read(text)).collect();
        read.sort();
        assert_eq!(read, keys);
        for run in ["Label/0~2", "Label/a9~10"] {
            assert!(written.iter().any(|text| **text == *run), "{written:?}");
        }
    }

    #[test]
    fn what_was_not_written_by_us_is_nothing() {
        for text in
            ["", "Label", "Other/x", "Label/0~4294967295", "Label/9~", "Workload.scheduling.k8s.io/w/g"]
        {
            assert_eq!(GroupKey::read(text), [], "{text}");
        }
    }
}
