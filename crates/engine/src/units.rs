//! Units: what a budget counts, how a pod maps to its unit, and how many healthy pods a unit needs.

use crate::basics::{ObjectKey, Text, Uid};
use crate::cluster_state::ClusterState;
use crate::facts::{Controller, Counts, Link, Pod, PodGroup, Rules, Units, WorkloadSource};
use crate::group_source::GroupSource;
use crate::sources;

/// The unit of a pod in a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnitKey {
    /// The budget counts pods: the pod is a unit of its own.
    Pod,
    /// The pod belongs to this group.
    Group(GroupKey),
    /// The pod has no group. Such pods are counted one by one, separately from the groups.
    Single,
    /// The pod has no group, although the budget counts groups of the Workload API.
    Ungrouped,
}

/// Identifies a group within a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum GroupKey {
    /// A `PodGroup` object.
    PodGroup(Text),
    /// A replica of a pod group of a `Workload`.
    Replica(WorkloadSource, Text, Text, Text),
    /// Pods that share a label's value.
    Label(Text),
    /// Pods that share the value of a group label within one object of a group source.
    OfSource(&'static GroupSource, Text, Text),
    /// Pods that share an owner.
    Owner(Uid),
}

/// The source of the expected number of groups. All groups with the same source are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ExpectedFrom {
    /// The budget states the number.
    Declared,
    /// A `Workload` states how many replicas a pod group has.
    Workload(WorkloadSource, Text, Text),
    /// The scale of an object that counts groups.
    Scale(Uid),
    /// The number of `PodGroup` objects of one template.
    Template(Text, Text),
    /// A `PodGroup` object without a template: one group, while the object exists.
    Lone(Text),
    /// No object states the number: the observed groups count.
    Observed,
}

impl ExpectedFrom {
    /// Whether only the existing groups show how many are wanted.
    pub(crate) fn is_by_pods(&self) -> bool {
        matches!(self, Self::Observed | Self::Lone(_))
    }
}

/// The stated size of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// The number of its pods.
    pub pods: u32,
    /// Whether the whole group is rebuilt when one pod is lost.
    pub falls_whole: bool,
}

/// How many healthy pods a group needs, and where the expected number of groups comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRequirement {
    /// The healthy pods that the group needs; `None` where the object that states the number is missing.
    pub(crate) min_count: Option<u32>,
    /// The source of the expected number, apart from the budget itself.
    pub(crate) expected_from: ExpectedFrom,
    /// The size of the group, if an object or its pods state it.
    pub(crate) size: Option<GroupSize>,
    /// The group is not expected: its index is beyond the replicas of its source (a surge, or a scale-down), or its
    /// controller is suspended or finished. It counts for nothing and costs nothing.
    pub(crate) surge: bool,
    /// Its index is beyond the replicas of its source, even if the budget states the expected number.
    pub(crate) beyond: bool,
}

/// Finds the unit of a pod under a budget.
pub(crate) fn unit_key(rules: &Rules, pod: &Pod) -> UnitKey {
    match &rules.units {
        Units::Pods => UnitKey::Pod,
        Units::Workload => match pod.link.as_deref() {
            Some(Link::PodGroup(name)) => UnitKey::Group(GroupKey::PodGroup(name.clone())),
            Some(Link::Replica { source, workload, group, replica }) => {
                UnitKey::Group(GroupKey::Replica(*source, workload.clone(), group.clone(), replica.clone()))
            }
            None => UnitKey::Ungrouped,
        },
        Units::Label { key, .. } => match pod.labels.get(key) {
            Some(value) => {
                // The index of a group is unique within one object only.
                let source = GroupSource::of_group_label(key);
                let object = source.and_then(|source| Some((source, pod.labels.get(source.name_label)?)));
                UnitKey::Group(match object {
                    Some((source, name)) => GroupKey::OfSource(source, name.into(), value.into()),
                    None => GroupKey::Label(value.into()),
                })
            }
            None => UnitKey::Single,
        },
        Units::Owner { kind, .. } => match pod.owners.iter().find(|owner| owner.kind == *kind) {
            Some(owner) => UnitKey::Group(GroupKey::Owner(owner.uid.clone())),
            None => UnitKey::Single,
        },
    }
}

/// The name of a group in messages and in the status.
pub(crate) fn display_name(rules: &Rules, key: &GroupKey, pod: &Pod) -> Text {
    match key {
        GroupKey::PodGroup(name) | GroupKey::Label(name) => name.clone(),
        GroupKey::Replica(_, workload, group, replica) if replica.is_empty() => {
            format!("{workload}/{group}").into()
        }
        GroupKey::Replica(_, workload, group, replica) => format!("{workload}/{group}/{replica}").into(),
        GroupKey::OfSource(source, name, value) => {
            if is_by_index(rules, source) {
                format!("{name}/{value}").into()
            } else {
                value.clone()
            }
        }
        GroupKey::Owner(uid) => {
            pod.owners.iter().find(|owner| owner.uid == *uid).map_or_else(|| uid.clone(), |o| o.name.clone())
        }
    }
}

/// Computes the requirement of a group. `size` is the group size that its pods state, `pods` the number of unfinished
/// ones.
pub(crate) fn requirement(
    rules: &Rules,
    namespace: &Text,
    key: &GroupKey,
    size: Option<u32>,
    pods: u32,
    cluster: &ClusterState,
) -> GroupRequirement {
    let mut requirement = match key {
        GroupKey::PodGroup(name) => {
            let object = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            match cluster.pod_group(&object) {
                None => GroupRequirement::plain(None, ExpectedFrom::Observed),
                Some(group) => {
                    // A group that goes down as a whole has no surplus: it needs every pod that it has.
                    let min = if group.falls_whole { group.min_count.max(pods) } else { group.min_count };
                    let expected_from = expected_from_of_pod_group(name, group, cluster);
                    let surge = !sources::is_wanted(group, cluster);
                    GroupRequirement { surge, ..GroupRequirement::plain(Some(min), expected_from) }
                }
            }
        }
        GroupKey::Replica(source, workload, group, _) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            match cluster.workload_group(*source, object, group) {
                None => GroupRequirement::plain(None, ExpectedFrom::Observed),
                Some(found) => {
                    let expected_from = match found.replicas {
                        Some(_) => ExpectedFrom::Workload(*source, workload.clone(), group.clone()),
                        None => ExpectedFrom::Observed,
                    };
                    let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
                    let owner = cluster.workload(*source, object).and_then(|found| found.owner.as_ref());
                    let surge = expected_from != ExpectedFrom::Observed && !cluster.is_wanted(owner);
                    GroupRequirement {
                        surge,
                        ..GroupRequirement::plain(Some(found.min_count), expected_from)
                    }
                }
            }
        }
        GroupKey::Label(_) | GroupKey::Owner(_) => {
            GroupRequirement::plain(Some(required_minimum(rules).unwrap_or(1)), ExpectedFrom::Observed)
        }
        GroupKey::OfSource(source, name, index) => {
            let object = cluster.of_source(source, namespace, name);
            let expected_from = match object.filter(|object| object.replicas.is_some()) {
                Some(object) => ExpectedFrom::Scale(object.uid.clone()),
                None => ExpectedFrom::Observed,
            };
            let required = required_minimum(rules);
            let stated = object.and_then(|object| object.replicas);
            let beyond = stated.is_some_and(|n| index.parse().is_ok_and(|at: u32| at >= n));
            let beyond = is_by_index(rules, source) && beyond;
            match size_of_group(object, size) {
                (Some(size), falls_whole) => GroupRequirement {
                    surge: beyond,
                    beyond,
                    min_count: Some(if falls_whole { size } else { required.unwrap_or(size).min(size) }),
                    expected_from,
                    size: Some(GroupSize { pods: size, falls_whole }),
                },
                (None, _) => GroupRequirement {
                    surge: beyond,
                    beyond,
                    ..GroupRequirement::plain(Some(required.unwrap_or(1)), expected_from)
                },
            }
        }
    };
    if let ExpectedFrom::Scale(uid) = &requirement.expected_from
        && cluster.controller(uid).is_some_and(|controller| !cluster.is_active(controller))
    {
        requirement.surge = true;
    }
    // Where the budget states the expected number, every group counts as expected.
    requirement.surge &= rules.expected.is_none();
    requirement.min_count = requirement.min_count.map(|n| n.max(1));
    requirement
}

/// The source of the expected number for a PodGroup: its controller, if the scale of that counts groups; else its
/// template; else the PodGroup itself.
pub(crate) fn expected_from_of_pod_group(
    name: &Text,
    group: &PodGroup,
    cluster: &ClusterState,
) -> ExpectedFrom {
    let scaled = group.controller.as_ref().and_then(|owner| cluster.controller(&owner.uid));
    let by_scale = scaled
        .filter(|c| matches!(c.counts, Counts::Groups { .. }) && c.replicas.is_some())
        .map(|controller| ExpectedFrom::Scale(controller.uid.clone()));
    let by_template = || group.template.clone().map(|(w, t)| ExpectedFrom::Template(w, t));
    by_scale.or_else(by_template).unwrap_or_else(|| ExpectedFrom::Lone(name.clone()))
}

/// Whether a group of this name is expected only because it was observed.
pub(crate) fn is_observed(rules: &Rules, namespace: &Text, name: &Text, cluster: &ClusterState) -> bool {
    if rules.expected.is_some() {
        return false;
    }
    let expected_from = |key: &GroupKey| requirement(rules, namespace, key, None, 0, cluster).expected_from;
    match (&rules.units, name.split('/').collect::<Vec<_>>().as_slice()) {
        (Units::Pods, _) => false,
        (Units::Workload, [_]) => expected_from(&GroupKey::PodGroup(name.clone())) == ExpectedFrom::Observed,
        (Units::Workload, [workload, group, ..]) => {
            [WorkloadSource::Own, WorkloadSource::Upstream].into_iter().all(|source| {
                let key = GroupKey::Replica(source, (*workload).into(), (*group).into(), "".into());
                expected_from(&key) == ExpectedFrom::Observed
            })
        }
        (Units::Label { key, .. }, [name, index]) => GroupSource::of_group_label(key).is_none_or(|source| {
            let key = GroupKey::OfSource(source, (*name).into(), (*index).into());
            expected_from(&key) == ExpectedFrom::Observed
        }),
        _ => true,
    }
}

/// Whether a budget names the groups of a source by their index.
fn is_by_index(rules: &Rules, source: &GroupSource) -> bool {
    matches!(&rules.units, Units::Label { key, .. } if source.index_label == Some(&**key))
}

/// The size of a group of a source, and whether the source rebuilds the whole group when one pod is lost. `stated` is
/// the size that the pods state.
fn size_of_group(object: Option<&Controller>, stated: Option<u32>) -> (Option<u32>, bool) {
    match object.map(|object| object.counts) {
        // If the object is not known, the default of all sources applies: any loss rebuilds the group.
        None | Some(Counts::Pods) => (stated, true),
        Some(Counts::Groups { size, falls_whole }) => (stated.or(size), falls_whole),
    }
}

impl GroupRequirement {
    fn plain(min_count: Option<u32>, expected_from: ExpectedFrom) -> Self {
        Self { min_count, expected_from, size: None, surge: false, beyond: false }
    }
}

/// The healthy pods of a group that the budget requires.
pub(crate) fn required_minimum(rules: &Rules) -> Option<u32> {
    match rules.units {
        Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } => min_ready,
        Units::Pods | Units::Workload => None,
    }
}

/// The number of groups that a source states, even if the source is suspended or finished.
pub(crate) fn room_for(
    rules: &Rules,
    namespace: &Text,
    expected_from: &ExpectedFrom,
    cluster: &ClusterState,
) -> Option<u32> {
    match expected_from {
        ExpectedFrom::Declared => rules.expected,
        ExpectedFrom::Workload(source, workload, group) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            cluster.workload_group(*source, object, group).and_then(|found| found.replicas)
        }
        ExpectedFrom::Scale(uid) => cluster.controller(uid).and_then(|controller| controller.replicas),
        ExpectedFrom::Template(workload, template) => {
            Some(cluster.of_template(namespace, workload, template).count() as u32)
        }
        ExpectedFrom::Lone(_) => Some(1),
        ExpectedFrom::Observed => None,
    }
}

/// The expected number of groups of a source, before complete and vanished groups are taken into account.
pub(crate) fn expected_number(
    rules: &Rules,
    namespace: &Text,
    expected_from: &ExpectedFrom,
    cluster: &ClusterState,
) -> Option<u32> {
    match expected_from {
        ExpectedFrom::Declared => rules.expected,
        ExpectedFrom::Workload(source, workload, group) => {
            let object = ObjectKey { namespace: namespace.clone(), name: workload.clone() };
            let wanted = cluster.workload(*source, object.clone());
            let wanted = wanted.is_some_and(|workload| cluster.is_wanted(workload.owner.as_ref()));
            let replicas = cluster.workload_group(*source, object, group).and_then(|found| found.replicas);
            replicas.map(|replicas| if wanted { replicas } else { 0 })
        }
        ExpectedFrom::Scale(uid) => {
            cluster.controller(uid).and_then(|controller| cluster.wanted_by(controller))
        }
        ExpectedFrom::Template(workload, template) => {
            let groups = cluster.of_template(namespace, workload, template);
            Some(groups.filter(|group| sources::is_wanted(group, cluster)).count() as u32)
        }
        ExpectedFrom::Lone(name) => {
            let object = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            cluster.pod_group(&object).map(|group| u32::from(sources::is_wanted(group, cluster)))
        }
        ExpectedFrom::Observed => None,
    }
}

const POD_GROUP: &str = "PodGroup/";
/// The API group of the Workload follows.
const WORKLOAD: &str = "Workload.";
const LABEL: &str = "Label/";
const OWNER: &str = "Owner/";
/// Separates the first and the last number of a range. No name and no label contains it.
const RUN: char = '~';

impl GroupKey {
    /// The key as it is stored in the status.
    pub(crate) fn write(&self) -> String {
        match self {
            Self::PodGroup(name) => format!("{POD_GROUP}{name}"),
            Self::Replica(source, workload, group, replica) => {
                format!("{WORKLOAD}{}/{workload}/{group}/{replica}", source.api_group())
            }
            Self::OfSource(source, name, value) => format!("{}/{name}/{value}", source.kind),
            Self::Label(value) => format!("{LABEL}{value}"),
            Self::Owner(uid) => format!("{OWNER}{uid}"),
        }
    }

    /// The keys that an entry of the status stands for; empty if the entry is not valid.
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
        let replica = |text: &str| {
            let mut parts = text.splitn(4, '/');
            let (api, workload, group, replica) =
                (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let sources = [WorkloadSource::Own, WorkloadSource::Upstream];
            let source = sources.into_iter().find(|source| source.api_group() == api)?;
            Some(Self::Replica(source, workload.into(), group.into(), replica.into()))
        };
        if let Some(name) = text.strip_prefix(POD_GROUP) {
            Some(Self::PodGroup(name.into()))
        } else if let Some(rest) = text.strip_prefix(WORKLOAD) {
            replica(rest)
        } else if let Some(value) = text.strip_prefix(LABEL) {
            Some(Self::Label(value.into()))
        } else if let Some(uid) = text.strip_prefix(OWNER) {
            Some(Self::Owner(uid.into()))
        } else {
            let (kind, rest) = text.split_once('/')?;
            let source = GroupSource::ALL.iter().find(|source| source.kind == kind)?;
            let (name, value) = rest.split_once('/')?;
            Some(Self::OfSource(source, name.into(), value.into()))
        }
    }
}

/// Quorate does not write longer ranges.
const LONGEST_RUN: u32 = 100_000;

/// Several keys as they are stored in the status: a range of numbers is one entry.
pub(crate) fn write_all<'a>(keys: impl Iterator<Item = &'a GroupKey>) -> Vec<Text> {
    let mut parts: Vec<(String, Option<u32>)> = keys
        .map(|key| {
            let text = key.write();
            let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
            let number = &text[stem.len()..];
            // A number in another form, such as 007, would be read back as another name.
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
            GroupKey::OfSource(&GroupSource::ALL[0], "llm".into(), "0".into()),
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
    fn entries_that_quorate_does_not_write_are_ignored() {
        for text in
            ["", "Label", "Other/x", "Label/0~4294967295", "Label/9~", "Workload.scheduling.k8s.io/w/g"]
        {
            assert_eq!(GroupKey::read(text), [], "{text}");
        }
    }
}
