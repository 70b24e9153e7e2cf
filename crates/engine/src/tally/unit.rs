//! A group of pods in a budget: its pods, the healthy pods that it needs, and its name.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::Tally;
use super::source_tally::SourceTally;
use crate::basics::{ObjectKey, Text, Uid};
use crate::cluster_state::ClusterState;
use crate::facts::{Pod, Rules};
use crate::units::{self, ExpectedFrom, GroupKey, GroupSize};

/// A group of pods.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) key: GroupKey,
    pub(crate) name: Text,
    pub(crate) members: Vec<u32>,
    pub(crate) healthy: u32,
    pub(super) ended: u32,
    /// Pods that have not ended, and that a list shows as gone.
    pub(super) absent: u32,
    pub(super) succeeded: u32,
    /// Pods that failed, or were deleted before they had ended, less the pods that came later. Negative only within an event,
    /// see [`Tally::end_event`].
    pub(super) lost: i32,
    /// Healthy pods without a controller.
    pub(super) unmanaged: u32,
    /// The group sizes that its pods state, and how many pods state each of them.
    sizes: SmallVec<[(u32, u32); 1]>,
    pub(crate) min_count: Option<u32>,
    pub(crate) expected_from: ExpectedFrom,
    /// The source of the expected number if the budget did not state it.
    pub(super) source: ExpectedFrom,
    /// The size of the group, if it is stated.
    pub(crate) size: Option<GroupSize>,
    pub(crate) surge: bool,
}

impl Unit {
    /// Whether all its pods succeeded, and none failed or was deleted before that without a replacement: the group has
    /// finished its work, and is neither expected nor broken.
    pub(crate) fn is_complete(&self) -> bool {
        !self.members.is_empty() && self.succeeded as usize == self.members.len() && self.lost <= 0
    }

    /// Whether it is whole, and would be without the pods of any controller.
    pub(super) fn is_whole_unmanaged(&self) -> bool {
        self.is_whole() && self.min_count.is_some_and(|min| self.unmanaged >= min)
    }

    pub(super) fn count_size(&mut self, size: Option<u32>, up: bool) {
        let Some(size) = size else { return };
        match self.sizes.iter_mut().find(|(known, _)| *known == size) {
            Some((_, count)) if up => *count += 1,
            Some((_, count)) => *count -= 1,
            None => self.sizes.push((size, 1)),
        }
        self.sizes.retain(|(_, count)| *count > 0);
    }

    /// Its pods, if none of them has ended.
    pub(crate) fn running(&self) -> Option<u32> {
        (self.ended == 0).then_some(self.members.len() as u32)
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.is_complete() && self.min_count.is_some_and(|min| self.healthy >= min)
    }
}

impl Tally {
    /// The name of a group in messages. If all groups belong to one object, the index is enough.
    pub(crate) fn shown(&self, name: &Text) -> Text {
        match name.split_once('/') {
            Some((object, index)) if self.objects.len() == 1 && self.objects.contains_key(object) => {
                index.into()
            }
            _ => name.clone(),
        }
    }

    /// The distinct Workloads of the groups.
    pub(crate) fn workloads(&self, namespace: &Text, cluster: &ClusterState) -> BTreeSet<Text> {
        self.units
            .iter()
            .filter_map(|(_, unit)| match &unit.key {
                GroupKey::Replica(_, workload, ..) => Some(workload.clone()),
                GroupKey::PodGroup(name) => {
                    let object = ObjectKey { namespace: namespace.clone(), name: name.clone() };
                    cluster.pod_group(&object).and_then(|g| g.template.as_ref()).map(|(w, _)| w.clone())
                }
                _ => None,
            })
            .collect()
    }

    /// Counts a pod that takes the place of a lost one, if one was lost.
    pub(super) fn replace_lost(&mut self, unit: u32) {
        let lost = &mut self.units[unit as usize].lost;
        *lost -= 1;
        if *lost < 0 {
            self.overfilled.push(unit);
        }
    }

    /// Completes an event: pods that came replace those that left in the same event, in any order, but none that leave
    /// later.
    pub(crate) fn end_event(&mut self) {
        self.emptied.clear();
        self.moving.clear();
        for unit in std::mem::take(&mut self.overfilled) {
            if let Some(unit) = self.units.get_mut(unit as usize) {
                unit.lost = unit.lost.max(0);
            }
        }
    }

    /// Whether a pod left a group in this event.
    pub(super) fn is_moving(&self, pod: &Uid) -> bool {
        self.moving.contains(pod)
    }

    /// The groups that have lost pods, with the number of these.
    pub(crate) fn lost(&self) -> Vec<(GroupKey, i32)> {
        let lost = self.units.iter().filter(|(_, unit)| unit.lost > 0);
        lost.map(|(_, unit)| (unit.key.clone(), unit.lost)).collect()
    }

    /// Restores the number of lost pods, after all pods of the budget were counted anew.
    pub(crate) fn recall_lost(&mut self, lost: Vec<(GroupKey, i32)>) {
        self.end_event();
        for (key, lost) in lost {
            if let Some(unit) = self.by_key.get(&key).copied() {
                self.uncount_unit(unit);
                self.units[unit as usize].lost = lost;
                self.count_unit(unit);
            }
        }
    }

    pub(super) fn unit_for(&mut self, rules: &Rules, key: GroupKey, pod: &Pod) -> u32 {
        if let Some(unit) = self.by_key.get(&key) {
            return *unit;
        }
        let lost = self.emptied.iter().rposition(|(emptied, _)| *emptied == key);
        let lost = lost.map_or(0, |at| self.emptied.swap_remove(at).1);
        let unit = self.units.insert(Unit {
            name: units::display_name(rules, &key, pod),
            key: key.clone(),
            members: Vec::new(),
            healthy: 0,
            ended: 0,
            absent: 0,
            succeeded: 0,
            lost,
            unmanaged: 0,
            sizes: SmallVec::new(),
            min_count: None,
            expected_from: ExpectedFrom::Observed,
            source: ExpectedFrom::Observed,
            size: None,
            surge: false,
        }) as u32;
        self.count_object(&key, true);
        self.by_key.insert(key, unit);
        unit
    }

    /// Updates the requirement of a unit. The unit must be withdrawn at this time.
    pub(super) fn refresh_requirement(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        unit: u32,
        cluster: &ClusterState,
    ) {
        let entry = &mut self.units[unit as usize];
        // A group that needs every pod that it has does not need those that are gone.
        let alive = entry.members.len() as u32 - entry.ended - entry.absent;
        let size = entry.sizes.iter().map(|(size, _)| *size).max();
        let requirement = units::requirement(rules, namespace, &entry.key, size, alive, cluster);
        entry.min_count = requirement.min_count;
        entry.source = requirement.expected_from.clone();
        entry.expected_from =
            if rules.expected.is_some() { ExpectedFrom::Declared } else { requirement.expected_from };
        entry.size = requirement.size;
        entry.surge = requirement.surge;
        if !self.source_tallies.contains_key(&entry.expected_from) {
            let expected_from = entry.expected_from.clone();
            self.open_source_tally(rules, namespace, &expected_from, cluster);
        }
    }

    /// Adds the tally of a source, if it does not exist yet.
    pub(super) fn open_source_tally(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        expected_from: &ExpectedFrom,
        cluster: &ClusterState,
    ) {
        if self.source_tallies.contains_key(expected_from) {
            return;
        }
        let size = units::expected_number(rules, namespace, expected_from, cluster);
        let done = self.done.values().filter(|done| done.counts_for(expected_from)).count() as u32;
        self.source_tallies
            .insert(expected_from.clone(), SourceTally { size, done, ..SourceTally::default() });
    }

    /// Whether another unit has the name of one that was just removed. Only some kinds of groups can share a name.
    pub(super) fn is_there(&self, removed: &Unit) -> bool {
        matches!(removed.key, GroupKey::Owner(_) | GroupKey::Replica(..))
            && self.units.iter().any(|(_, unit)| unit.name == removed.name)
    }

    pub(super) fn count_object(&mut self, key: &GroupKey, up: bool) {
        let GroupKey::OfSource(_, name, _) = key else { return };
        let count = self.objects.entry(name.clone()).or_default();
        *count = if up { *count + 1 } else { *count - 1 };
        if *count == 0 {
            self.objects.remove(name);
        }
    }
}
