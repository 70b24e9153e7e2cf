//! The expected number of units, and the number that the workloads want.

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{Text, Uid};
use quorate_engine::facts::{Budget, Controller, Rules, Source, Units};

use super::source::{ExpectedFrom, Kept, above};
use super::{Group, needs_scale};
use crate::oracle::Oracle;

/// Whether the expected number of units comes from their sources.
pub(super) fn asks_sources(rules: &Rules) -> bool {
    rules.expected.is_none() && (rules.units != Units::Pods || needs_scale(rules))
}

/// The pods of one workload in a budget. Those that have ended are not counted, because it replaces them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfWorkload {
    /// How many pods it wants; `None` if that is not known.
    pub(crate) wants: Option<u32>,
    pub(crate) deleting: bool,
    /// It has pods without a group, running or not, in a budget that counts groups.
    pub(crate) has_singles: bool,
    pub(crate) singles: u32,
    pub(crate) has_others: bool,
    pub(crate) others: u32,
}

impl Oracle {
    /// The expected number of groups of a source, if it states one.
    pub(crate) fn size(&self, rules: &Rules, ns: &Text, expected_from: &ExpectedFrom) -> Option<u32> {
        match expected_from {
            ExpectedFrom::Budget => rules.expected,
            ExpectedFrom::Of(source) => self.object(ns, source).and_then(|object| object.wants),
            ExpectedFrom::Seen => None,
        }
    }

    /// The whole groups that count, all whole groups, and the expected number of groups.
    pub(super) fn groups_expected(
        &self,
        budget: &Budget,
        rules: &Rules,
        groups: &[Group],
        kept: &[Kept],
    ) -> (u32, u32, u32) {
        let gone = self.gone.get(&budget.key).map_or(0, |gone| gone.len() as u32);
        let mut sources: BTreeSet<ExpectedFrom> =
            groups.iter().map(|group| group.expected_from.clone()).collect();
        if asks_sources(rules) {
            sources.extend(kept.iter().map(|kept| ExpectedFrom::Of(kept.source.clone())));
            sources.extend((gone > 0).then_some(ExpectedFrom::Seen));
        }
        let (mut current, mut all, mut expected) = (0, 0, 0);
        for expected_from in &sources {
            let of_it: Vec<&Group> =
                groups.iter().filter(|group| group.expected_from == *expected_from && !group.surge).collect();
            let whole = of_it.iter().filter(|group| group.is_whole()).count() as u32;
            let complete = of_it.iter().filter(|group| group.complete).count() as u32
                + self.completed_without_pods(budget, rules, expected_from);
            let stated = self.size(rules, &budget.key.object.namespace, expected_from);
            let stated = stated.unwrap_or(of_it.len() as u32 + gone);
            let unfinished = of_it.iter().filter(|group| !group.complete).count() as u32;
            // Unfinished groups are expected, however many complete ones have not been removed yet.
            let size = stated.saturating_sub(complete).max(unfinished.min(stated));
            current += whole.min(size);
            all += whole;
            expected += size;
        }
        (current, all, expected)
    }

    /// The groups of a source that are remembered as complete, without those of inactive objects.
    fn completed_without_pods(&self, budget: &Budget, rules: &Rules, expected_from: &ExpectedFrom) -> u32 {
        let ns = &budget.key.object.namespace;
        let memory = self.memory.get(&budget.key);
        let complete = memory.into_iter().flat_map(|memory| memory.complete.values());
        let ids = complete.filter(|complete| complete.counts()).map(|complete| &complete.id);
        let of_it = ids.filter(|id| self.family_under(rules, ns, id) == *expected_from);
        of_it.filter(|id| *expected_from == ExpectedFrom::Budget || !self.is_idle(ns, id)).count() as u32
    }

    pub(super) fn pods_expected(
        &self,
        budget: &Budget,
        rules: &Rules,
        with_pods: &BTreeSet<Source>,
        kept: &[Kept],
    ) -> u32 {
        let ns = &budget.key.object.namespace;
        let wants = |source: &Source| self.object(ns, source).and_then(|object| object.wants).unwrap_or(0);
        match rules.expected {
            Some(expected) => expected,
            None if asks_sources(rules) => {
                let seen: u32 = with_pods.iter().map(wants).sum();
                seen + kept.iter().map(|kept| kept.size).sum::<u32>()
            }
            None => self.covered(budget).len() as u32,
        }
    }

    /// The workloads of the pods of a budget.
    pub(crate) fn workloads(&self, members: &[Uid], singles: &[Uid]) -> Vec<OfWorkload> {
        let mut workloads: BTreeMap<Uid, OfWorkload> = BTreeMap::new();
        for uid in members {
            let Some(owner) = self.pods[uid].pod.controller() else { continue };
            let scaled = self.scaled(&owner.uid);
            let id = scaled.map_or(&owner.uid, |scaled| &scaled.uid).clone();
            let entry = workloads.entry(id).or_insert_with(|| OfWorkload {
                wants: scaled.and_then(|scaled| self.wants(scaled)),
                deleting: scaled.is_some_and(|scaled| scaled.deleting),
                ..OfWorkload::default()
            });
            let runs = u32::from(!self.pods[uid].pod.phase.is_terminal());
            if singles.contains(uid) {
                entry.has_singles = true;
                entry.singles += runs;
            } else {
                entry.has_others = true;
                entry.others += runs;
            }
        }
        workloads.into_values().collect()
    }

    pub(super) fn singles_expected(&self, members: &[Uid], singles: &[Uid]) -> u32 {
        let with_singles =
            self.workloads(members, singles).into_iter().filter(|workload| workload.has_singles);
        with_singles.map(|of| of.singles.max(of.wants.unwrap_or(0).saturating_sub(of.others))).sum()
    }

    /// The controller whose scale counts for the pods of this controller.
    pub(crate) fn scaled(&self, uid: &Uid) -> Option<&Controller> {
        let controller = self.controllers.get(uid)?;
        let deployment = above(controller).and_then(|owner| self.controllers.get(&owner.uid));
        Some(deployment.unwrap_or(controller))
    }
}
