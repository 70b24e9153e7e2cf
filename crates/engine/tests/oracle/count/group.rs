//! The pods of a group, the healthy pods that it needs, and the source of the expected number of groups.

use std::collections::BTreeSet;

use quorate_engine::basics::{ObjectKey, Text, Uid};
use quorate_engine::facts::{
    Controller, Counts, Link, Phase, Pod, Rules, Units, WorkloadGroup, WorkloadSource,
};

use super::source::{ExpectedFrom, is_leader_worker_set};
use crate::oracle::{LWS, Oracle, Seen};

/// Identifies a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    PodGroup(Text),
    Replica(WorkloadSource, Text, Text, Text),
    Label(Text),
    LeaderWorker(Text, Text),
    Owner(Uid),
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: Id,
    pub(crate) name: Text,
    pub(crate) pods: Vec<Uid>,
    pub(crate) healthy: u32,
    pub(crate) min: Option<u32>,
    pub(crate) complete: bool,
    /// Its pods that may still succeed, those that have, and those that a list shows as gone.
    pub(crate) working: BTreeSet<Uid>,
    pub(crate) succeeded: BTreeSet<Uid>,
    pub(crate) absent: BTreeSet<Uid>,
    /// The source of the expected number, and the source if the budget did not state it.
    pub(crate) expected_from: ExpectedFrom,
    pub(crate) beneath: ExpectedFrom,
    /// The group is above the number that its source wants: it counts for nothing and costs nothing.
    pub(crate) surge: bool,
    pub(crate) unreachable: bool,
    /// The number of its pods, if an object or a pod states it.
    pub(crate) size: Option<u32>,
}

impl Group {
    pub(crate) fn is_whole(&self) -> bool {
        !self.complete && self.min.is_some_and(|min| self.healthy >= min)
    }
}

impl Oracle {
    pub(super) fn group(
        &self,
        rules: &Rules,
        ns: &Text,
        id: Id,
        pods: Vec<Uid>,
        healthy: &BTreeSet<Uid>,
        lost: usize,
    ) -> Group {
        let facts: Vec<&Pod> = pods.iter().map(|uid| &self.pods[uid].pod).collect();
        let is_alive = |uid: &&Uid| {
            let seen = &self.pods[*uid];
            seen.absent.is_none() && !seen.pod.phase.is_terminal()
        };
        let alive = pods.iter().filter(is_alive).count() as u32;
        let shown = |uid: &&Uid| {
            let seen = &self.pods[*uid];
            seen.absent.is_none() || seen.pod.phase.is_terminal()
        };
        let labelled = pods.iter().filter(shown).filter_map(|uid| self.pods[uid].pod.group_size).max();
        let which = |is: &dyn Fn(&Seen) -> bool| -> BTreeSet<Uid> {
            pods.iter().filter(|uid| is(&self.pods[*uid])).cloned().collect()
        };
        let asked = asked(rules);
        let mut stated = None;
        let min = match &id {
            Id::PodGroup(name) => {
                let object = self.pod_groups.get(&ObjectKey::new(ns.clone(), name.clone()));
                object.map(|group| group.min_count.max(if group.falls_whole { alive } else { 0 }))
            }
            Id::Replica(source, workload, group, _) => {
                self.workload_group(*source, ns, workload, group).map(|found| found.min_count)
            }
            Id::Label(_) | Id::Owner(_) => Some(asked.unwrap_or(1)),
            Id::LeaderWorker(set, _) => {
                let set = self.leader_worker_set(ns, set);
                let (size, falls_whole) = match set.map(|set| set.counts) {
                    Some(Counts::Groups { size, falls_whole }) => (labelled.or(size), falls_whole),
                    _ => (labelled, true),
                };
                stated = size;
                Some(match size {
                    Some(size) if falls_whole => size,
                    Some(size) => asked.unwrap_or(size).min(size),
                    None => asked.unwrap_or(1),
                })
            }
        };
        Group {
            name: display(rules, &id, &facts),
            healthy: pods.iter().filter(|uid| healthy.contains(*uid)).count() as u32,
            min: min.map(|min| min.max(1)),
            complete: facts.iter().all(|pod| pod.phase == Phase::Succeeded) && lost == 0,
            working: which(&|seen| {
                !seen.pod.phase.is_terminal() && !seen.pod.terminating && seen.absent.is_none()
            }),
            succeeded: which(&|seen| seen.pod.phase == Phase::Succeeded),
            absent: which(&|seen| !seen.pod.phase.is_terminal() && seen.absent.is_some()),
            expected_from: self.family_under(rules, ns, &id),
            beneath: self.expected_from(ns, &id),
            surge: rules.expected.is_none()
                && (self.is_past_the_scale(rules, ns, &id) || self.is_idle(ns, &id)),
            unreachable: stated.is_some_and(|size| asked.is_some_and(|asked| asked > size)),
            size: stated,
            id,
            pods,
        }
    }

    /// The source of the expected number of such groups.
    pub(crate) fn family_under(&self, rules: &Rules, ns: &Text, id: &Id) -> ExpectedFrom {
        if rules.expected.is_some() { ExpectedFrom::Budget } else { self.expected_from(ns, id) }
    }

    /// Whether the index of a LeaderWorkerSet's group is beyond the replicas of the set.
    pub(crate) fn is_past_the_scale(&self, rules: &Rules, ns: &Text, id: &Id) -> bool {
        let by_index = matches!(&rules.units, Units::Label { key, .. } if key.ends_with("/group-index"));
        let Id::LeaderWorker(set, index) = id else { return false };
        let replicas = self.leader_worker_set(ns, set).and_then(|set| set.replicas);
        by_index && replicas.is_some_and(|replicas| index.parse::<u32>().is_ok_and(|at| at >= replicas))
    }

    /// Whether a group of this name is expected only because it was observed.
    pub(crate) fn is_observed(&self, rules: &Rules, ns: &Text, name: &Text) -> bool {
        let parts: Vec<Text> = name.split('/').map(Text::from).collect();
        let seen = |id: &Id| self.expected_from(ns, id) == ExpectedFrom::Seen;
        rules.expected.is_none()
            && match (&rules.units, parts.as_slice()) {
                (Units::Pods, _) => false,
                (Units::Workload, [name]) => seen(&Id::PodGroup(name.clone())),
                (Units::Workload, [workload, group, ..]) => [WorkloadSource::Own, WorkloadSource::Upstream]
                    .into_iter()
                    .all(|source| seen(&Id::Replica(source, workload.clone(), group.clone(), "".into()))),
                (Units::Label { key, .. }, [set, index]) if key.starts_with(LWS) => {
                    seen(&Id::LeaderWorker(set.clone(), index.clone()))
                }
                _ => true,
            }
    }

    pub(crate) fn workload_group(
        &self,
        source: WorkloadSource,
        ns: &Text,
        name: &Text,
        group: &Text,
    ) -> Option<&WorkloadGroup> {
        let workload = self.workloads.get(&(source, ObjectKey::new(ns.clone(), name.clone())))?;
        workload.groups.iter().find(|found| found.name == *group)
    }

    pub(crate) fn leader_worker_set(&self, ns: &Text, name: &Text) -> Option<&Controller> {
        self.controllers.values().find(|controller| {
            is_leader_worker_set(&controller.kind)
                && controller.key.namespace == *ns
                && controller.key.name == *name
        })
    }
}

/// Whether a label key names the groups of a LeaderWorkerSet.
pub(super) fn is_leader_worker_key(key: &str) -> bool {
    [format!("{LWS}/group-index"), format!("{LWS}/group-key")].contains(&key.to_owned())
}

pub(crate) fn place(rules: &Rules, pod: &Pod) -> Option<Id> {
    match &rules.units {
        Units::Pods => None,
        Units::Workload => Some(match *pod.link.clone()? {
            Link::PodGroup(name) => Id::PodGroup(name),
            Link::Replica { source, workload, group, replica } => {
                Id::Replica(source, workload, group, replica)
            }
        }),
        Units::Label { key, .. } => {
            let value = pod.labels.get(key)?.into();
            let set = pod.labels.get(&format!("{LWS}/name"));
            Some(match set {
                Some(set) if is_leader_worker_key(key) => Id::LeaderWorker(set.into(), value),
                _ => Id::Label(value),
            })
        }
        Units::Owner { kind, .. } => {
            pod.owners.iter().find(|owner| owner.kind == *kind).map(|owner| Id::Owner(owner.uid.clone()))
        }
    }
}

fn display(rules: &Rules, id: &Id, pods: &[&Pod]) -> Text {
    match id {
        Id::PodGroup(name) | Id::Label(name) => name.clone(),
        Id::Replica(_, workload, group, replica) if replica.is_empty() => {
            format!("{workload}/{group}").into()
        }
        Id::Replica(_, workload, group, replica) => format!("{workload}/{group}/{replica}").into(),
        Id::LeaderWorker(set, value) => match &rules.units {
            Units::Label { key, .. } if key.ends_with("/group-index") => format!("{set}/{value}").into(),
            _ => value.clone(),
        },
        Id::Owner(uid) => {
            let owners = pods.iter().flat_map(|pod| pod.owners.iter());
            owners.filter(|owner| owner.uid == *uid).map(|owner| owner.name.clone()).next().unwrap()
        }
    }
}

pub(crate) fn asked(rules: &Rules) -> Option<u32> {
    match rules.units {
        Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } => min_ready,
        Units::Pods | Units::Workload => None,
    }
}
