//! How many units there should be, and how many the workloads want.

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{Text, Uid};
use quorate_engine::facts::{BudgetKey, Controller, Rules};

use super::{Group, Source, needs_scale};
use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn size(&self, rules: &Rules, ns: &Text, source: &Source) -> Option<u32> {
        match source {
            Source::Budget => rules.expected,
            Source::Workload(source, workload, group) => {
                self.workload_group(*source, ns, workload, group).and_then(|found| found.replicas)
            }
            Source::Scale(uid) => self.controllers.get(uid).and_then(|controller| controller.replicas),
            Source::Template(workload, template) => {
                let made_from = Some((workload.clone(), template.clone()));
                let alike =
                    self.pod_groups.iter().filter(|(key, g)| key.namespace == *ns && g.template == made_from);
                Some(alike.count() as u32)
            }
            Source::Seen => None,
        }
    }

    /// Groups that are whole as far as they count, all that are whole, and those that there should be.
    pub(super) fn groups_expected(
        &self,
        rules: &Rules,
        key: &BudgetKey,
        groups: &[Group],
    ) -> (u32, u32, u32) {
        let gone = self.gone.get(key).map_or(0, |gone| gone.len() as u32);
        let mut sources: BTreeSet<&Source> = groups.iter().map(|group| &group.source).collect();
        if gone > 0 && rules.expected.is_none() {
            sources.insert(&Source::Seen);
        }
        let (mut current, mut all, mut expected) = (0, 0, 0);
        for source in sources {
            let of_it: Vec<&Group> =
                groups.iter().filter(|group| group.source == *source && !group.surge).collect();
            let whole = of_it.iter().filter(|group| group.is_whole()).count() as u32;
            let complete = of_it.iter().filter(|group| group.complete).count() as u32;
            let stated = self.size(rules, &key.object.namespace, source);
            let size = stated.unwrap_or(of_it.len() as u32 + gone).saturating_sub(complete);
            current += whole.min(size);
            all += whole;
            expected += size;
        }
        (current, all, expected)
    }

    pub(super) fn pods_expected(&self, rules: &Rules, members: &[Uid]) -> u32 {
        match rules.expected {
            Some(expected) => expected,
            None if needs_scale(rules) => {
                let workloads: BTreeMap<&Uid, u32> = members
                    .iter()
                    .filter_map(|uid| self.scaled(&self.pods[uid].pod.controller()?.uid))
                    .map(|scaled| (&scaled.uid, scaled.replicas.unwrap_or(0)))
                    .collect();
                workloads.values().sum()
            }
            None => members.len() as u32,
        }
    }

    /// For each workload, in the pods of a budget: what it wants (none: not known), whether it is being deleted, its
    /// pods in groups and its single pods.
    pub(crate) fn workloads(&self, members: &[Uid], singles: &[Uid]) -> Vec<(Option<u32>, bool, u32, u32)> {
        let mut workloads: BTreeMap<Uid, (Option<u32>, bool, u32, u32)> = BTreeMap::new();
        for uid in members {
            let Some(owner) = self.pods[uid].pod.controller() else { continue };
            let scaled = self.scaled(&owner.uid);
            let id = scaled.map_or(&owner.uid, |scaled| &scaled.uid).clone();
            let entry = workloads.entry(id).or_insert((
                scaled.and_then(|scaled| scaled.replicas),
                scaled.is_some_and(|scaled| scaled.deleting),
                0,
                0,
            ));
            *(if singles.contains(uid) { &mut entry.3 } else { &mut entry.2 }) += 1;
        }
        workloads.into_values().collect()
    }

    pub(super) fn singles_expected(&self, members: &[Uid], singles: &[Uid]) -> u32 {
        let wants = self.workloads(members, singles).into_iter().filter(|(.., single)| *single > 0);
        wants.map(|(wants, _, seated, single)| single.max(wants.unwrap_or(0).saturating_sub(seated))).sum()
    }

    /// The controller whose scale counts for the pods of this one.
    pub(crate) fn scaled(&self, uid: &Uid) -> Option<&Controller> {
        let controller = self.controllers.get(uid)?;
        let apps = |group: &str| group == "apps" || group == "extensions";
        let owner = controller.owner.as_ref().filter(|owner| {
            &*controller.kind.kind == "ReplicaSet"
                && apps(&controller.kind.group)
                && &*owner.kind.kind == "Deployment"
                && apps(&owner.kind.group)
        });
        Some(owner.and_then(|owner| self.controllers.get(&owner.uid)).unwrap_or(controller))
    }
}
