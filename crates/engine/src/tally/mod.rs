//! The counters of one budget, updated incrementally. The cost of a step does not depend on the size of the budget.
//!
//! | event | work |
//! |---|---|
//! | a pod's health changes | the counters of its unit, and of the unit's source |
//! | a pod joins or leaves | the same, and the requirement of its unit |
//! | a controller, a group object or the budget itself changes | every unit of the budget ([`Tally::regroup`]) |
//!
//! This module adds, changes and removes pods. `unit` defines a group, `source_tally` sums up groups by the source of
//! their expected number, `expected` computes the numbers of the budget, `gone` remembers vanished groups, and `memory`
//! remembers sources without pods and complete groups.

mod expected;
mod gone;
mod memory;
mod source_tally;
mod unit;

pub use gone::GONE_FOR;
pub(crate) use unit::Unit;

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::basics::{Text, Time, Uid};
use crate::cluster_state::ClusterState;
use crate::facts::{Phase, Pod, Rules, Source, Units};
use crate::scales::{OwnedPod, ScaleIndex};
use crate::units::{self, ExpectedFrom, GroupKey, UnitKey};
use memory::Done;
use source_tally::SourceTally;

/// The place of a pod in the counters of a budget, while the budget covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitSlot {
    Pod,
    Group(u32),
    Single,
    Ungrouped,
}

/// What a pod adds to the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodCounts {
    pub(crate) healthy: bool,
    pub(crate) ended: bool,
    pub(crate) succeeded: bool,
    /// A list shows that it is gone, and the watch does not show that yet.
    pub(crate) absent: bool,
    /// It may still finish its work: it has not ended, is not terminating and not absent.
    pub(crate) working: bool,
}

impl PodCounts {
    pub(crate) fn of(pod: &Pod, absent: bool, healthy: bool) -> Self {
        let ended = pod.phase.is_terminal();
        Self {
            healthy,
            ended,
            succeeded: pod.phase == Phase::Succeeded,
            absent: absent && !ended,
            working: !ended && !absent && !pod.terminating,
        }
    }
}

/// The counters of one budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) pods: u32,
    pub(crate) pods_healthy: u32,
    /// Pods without a controller.
    pub(crate) unmanaged: u32,
    /// Those of them that may be healthy, now or later, and have no group in a budget that counts groups.
    unmanaged_working: u32,
    pub(crate) singles: u32,
    singles_healthy: u32,
    pub(crate) ungrouped: BTreeSet<u32>,
    pub(crate) units: Slab<Unit>,
    by_key: FxHashMap<GroupKey, u32>,
    source_tallies: FxHashMap<ExpectedFrom, SourceTally>,
    /// If the budget states the expected number: the sources that would state it otherwise, with their number of
    /// groups.
    sources: FxHashMap<ExpectedFrom, u32>,
    /// The number of groups of each object of a group source.
    objects: FxHashMap<Text, u32>,
    groups_current: u32,
    /// All whole groups, without the limit of the expected number.
    groups_whole: u32,
    /// Those that are whole without the pods of any controller.
    groups_whole_unmanaged: u32,
    groups_expected: u32,
    /// Units that got more pods than they had lost in this event.
    overfilled: Vec<u32>,
    /// What groups had lost whose last pod left in this event: one may come back in it, under other labels or owners.
    emptied: Vec<(GroupKey, i32)>,
    /// Pods that were lost in this event because they left their group. One may enter it again, when its labels or owners
    /// are other ones.
    moving: Vec<Uid>,
    pub(crate) scales: ScaleIndex,
    /// Units that are down. Pods, if the budget counts pods.
    pub(crate) down: BTreeSet<u32>,
    /// Single pods that are down.
    pub(crate) singles_down: BTreeSet<u32>,
    /// Units whose group object is missing.
    pub(crate) unresolved: BTreeSet<u32>,
    /// Remembered sources. Boxed, because most budgets have one at most and a map node has room for several.
    remembered: BTreeMap<Box<Source>, memory::Reason>,
    /// Observed groups that vanished, with the time.
    pub(crate) gone: BTreeMap<Text, Time>,
    /// Groups that were complete when their last pod was removed.
    done: BTreeMap<GroupKey, Done>,
    /// There may be more complete groups than their sources have room for.
    done_may_exceed: bool,
}

impl Tally {
    /// Adds a pod.
    pub(crate) fn add(
        &mut self,
        rules: &Rules,
        (id, unit_key): (u32, UnitKey),
        pod: &Pod,
        counts: PodCounts,
        cluster: &ClusterState,
    ) -> UnitSlot {
        self.pods += 1;
        self.pods_healthy += u32::from(counts.healthy);
        let unmanaged = pod.controller().is_none();
        if !matches!(unit_key, UnitKey::Group(_)) {
            self.unmanaged_working += u32::from(unmanaged && counts.working);
        }
        let owned = OwnedPod { single: unit_key == UnitKey::Single, ended: counts.ended };
        if let Some(met) = self.count_owner(pod, owned, true, cluster)
            && unit_key == UnitKey::Pod
        {
            self.consider(rules, &pod.key.namespace, &met, cluster);
        }
        match unit_key {
            UnitKey::Pod => {
                self.mark_down(id, !counts.healthy);
                UnitSlot::Pod
            }
            UnitKey::Single => {
                self.singles += 1;
                self.singles_healthy += u32::from(counts.healthy);
                mark(&mut self.singles_down, id, !counts.healthy);
                UnitSlot::Single
            }
            UnitKey::Ungrouped => {
                self.ungrouped.insert(id);
                UnitSlot::Ungrouped
            }
            UnitKey::Group(key) => {
                self.begin_again(&key);
                let unit = self.unit_for(rules, key, pod);
                self.uncount_unit(unit);
                let entry = &mut self.units[unit as usize];
                entry.members.push(id);
                if !counts.absent {
                    entry.count_size(pod.group_size, true);
                }
                entry.healthy += u32::from(counts.healthy);
                entry.unmanaged += u32::from(unmanaged && counts.healthy);
                entry.ended += u32::from(counts.ended);
                entry.absent += u32::from(counts.absent);
                entry.succeeded += u32::from(counts.succeeded);
                if counts.working || (counts.succeeded && self.is_moving(&pod.uid)) {
                    self.replace_lost(unit);
                }
                if self.gone.remove(&self.units[unit as usize].name).is_some() {
                    self.refresh_sums(&ExpectedFrom::Observed);
                }
                self.refresh_requirement(rules, &pod.key.namespace, unit, cluster);
                if self.count_unit(unit) {
                    let entry = &self.units[unit as usize];
                    let (expected_from, source) = (entry.expected_from.clone(), entry.source.clone());
                    self.consider_source(rules, &pod.key.namespace, &source, cluster);
                    if let Some(expected_from) = self.source_tallies.get_mut(&expected_from) {
                        expected_from.considered = true;
                    }
                }
                self.done_may_exceed |= !self.done.is_empty();
                self.drop_unused(&ExpectedFrom::Observed);
                UnitSlot::Group(unit)
            }
        }
    }

    /// Removes a pod.
    pub(crate) fn leave(
        &mut self,
        rules: &Rules,
        id: u32,
        pod: &Pod,
        (slot, counts): (UnitSlot, PodCounts),
        cluster: &ClusterState,
        now: Time,
    ) {
        self.pods -= 1;
        self.pods_healthy -= u32::from(counts.healthy);
        let unmanaged = pod.controller().is_none();
        if !matches!(slot, UnitSlot::Group(_)) {
            self.unmanaged_working -= u32::from(unmanaged && counts.working);
        }
        let owned = OwnedPod { single: slot == UnitSlot::Single, ended: counts.ended };
        self.count_owner(pod, owned, false, cluster);
        match slot {
            UnitSlot::Pod => self.mark_down(id, false),
            UnitSlot::Single => {
                self.singles -= 1;
                self.singles_healthy -= u32::from(counts.healthy);
                self.singles_down.remove(&id);
            }
            UnitSlot::Ungrouped => {
                self.ungrouped.remove(&id);
            }
            UnitSlot::Group(unit) => {
                self.uncount_unit(unit);
                let was_complete = self.units[unit as usize].is_complete();
                let entry = &mut self.units[unit as usize];
                entry.members.retain(|member| *member != id);
                if !counts.absent {
                    entry.count_size(pod.group_size, false);
                }
                entry.healthy -= u32::from(counts.healthy);
                entry.unmanaged -= u32::from(unmanaged && counts.healthy);
                entry.ended -= u32::from(counts.ended);
                entry.absent -= u32::from(counts.absent);
                entry.succeeded -= u32::from(counts.succeeded);
                entry.lost += i32::from(counts.working);
                if counts.working {
                    self.moving.push(pod.uid.clone());
                }
                if entry.members.is_empty() {
                    let removed = self.units.remove(unit as usize);
                    if removed.lost > 0 {
                        self.emptied.push((removed.key.clone(), removed.lost));
                    }
                    self.by_key.remove(&removed.key);
                    self.count_object(&removed.key, false);
                    if removed.expected_from == ExpectedFrom::Observed
                        && !was_complete
                        && !self.is_there(&removed)
                        && units::is_observed(rules, &pod.key.namespace, &removed.name, cluster)
                    {
                        self.gone.insert(removed.name, now);
                    }
                    if was_complete {
                        self.finish(rules, &pod.key.namespace, removed.key, cluster);
                    }
                    self.refresh_observed();
                    self.drop_unused(&removed.expected_from);
                } else {
                    self.refresh_requirement(rules, &pod.key.namespace, unit, cluster);
                    self.count_unit(unit);
                }
            }
        }
    }

    /// Changes what a pod adds to the counters.
    pub(crate) fn change(
        &mut self,
        rules: &Rules,
        id: u32,
        pod: &Pod,
        (slot, old): (UnitSlot, PodCounts),
        new: PodCounts,
        cluster: &ClusterState,
    ) {
        let flip = |count: &mut u32, old: bool, new: bool| {
            *count = *count + u32::from(new) - u32::from(old);
        };
        flip(&mut self.pods_healthy, old.healthy, new.healthy);
        let unmanaged = pod.controller().is_none();
        if !matches!(slot, UnitSlot::Group(_)) {
            flip(&mut self.unmanaged_working, unmanaged && old.working, unmanaged && new.working);
        }
        if let (Some(owner), true) = (pod.controller(), old.ended != new.ended) {
            let owned = |ended| OwnedPod { single: slot == UnitSlot::Single, ended };
            self.scales.change(&owner.uid, owned(old.ended), owned(new.ended));
        }
        match slot {
            UnitSlot::Pod => self.mark_down(id, !new.healthy),
            UnitSlot::Single => {
                flip(&mut self.singles_healthy, old.healthy, new.healthy);
                mark(&mut self.singles_down, id, !new.healthy);
            }
            UnitSlot::Ungrouped => {}
            UnitSlot::Group(unit) => {
                self.uncount_unit(unit);
                let entry = &mut self.units[unit as usize];
                flip(&mut entry.healthy, old.healthy, new.healthy);
                flip(&mut entry.unmanaged, unmanaged && old.healthy, unmanaged && new.healthy);
                flip(&mut entry.ended, old.ended, new.ended);
                flip(&mut entry.absent, old.absent, new.absent);
                flip(&mut entry.succeeded, old.succeeded, new.succeeded);
                if old.absent != new.absent {
                    entry.count_size(pod.group_size, !new.absent);
                }
                entry.lost += i32::from(old.working && !new.working && !new.succeeded);
                if (!old.working && new.working) || (old.absent && new.succeeded) {
                    self.replace_lost(unit);
                }
                if (old.ended, old.absent) != (new.ended, new.absent) {
                    self.refresh_requirement(rules, &pod.key.namespace, unit, cluster);
                }
                self.count_unit(unit);
            }
        }
    }

    /// Recomputes everything that depends on controllers and group objects.
    pub(crate) fn regroup(&mut self, rules: &Rules, namespace: &Text, cluster: &ClusterState) {
        self.source_tallies.clear();
        self.sources.clear();
        self.down.retain(|_| matches!(rules.units, Units::Pods));
        self.unresolved.clear();
        self.groups_current = 0;
        self.groups_whole = 0;
        self.groups_whole_unmanaged = 0;
        self.groups_expected = 0;
        let units: Vec<u32> = self.units.iter().map(|(id, _)| id as u32).collect();
        for unit in units {
            self.refresh_requirement(rules, namespace, unit, cluster);
            self.count_unit(unit);
        }
        let kept = self.scales.refresh(cluster);
        match rules.units {
            Units::Pods => self.consider_controllers(rules, namespace, kept, cluster),
            _ => self.consider_sources(rules, namespace, cluster),
        }
        self.refresh_done(rules, namespace, cluster);
        self.gone.retain(|name, _| units::is_observed(rules, namespace, name, cluster));
        self.refresh_observed();
    }

    fn mark_down(&mut self, id: u32, down: bool) {
        mark(&mut self.down, id, down);
    }

    /// Counts the pods of each controller. Returns the workload if this is its first pod here.
    fn count_owner(&mut self, pod: &Pod, owned: OwnedPod, up: bool, cluster: &ClusterState) -> Option<Uid> {
        match pod.controller() {
            Some(owner) => self.scales.step(&owner.uid, owned, up, cluster),
            None => {
                self.unmanaged = if up { self.unmanaged + 1 } else { self.unmanaged - 1 };
                None
            }
        }
    }
}

fn mark(set: &mut BTreeSet<u32>, id: u32, there: bool) {
    if there {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}
