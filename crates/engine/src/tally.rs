//! The counters of one budget, kept up to date in steps whose cost does not depend on the budget's size.
//!
//! | event | work |
//! |---|---|
//! | a pod's health flips | its unit's counter; the family's when the unit crosses its minimum |
//! | a pod joins or leaves | the same, and its unit's standing |
//! | a controller, group or the budget itself changes | every unit of the budget ([`Tally::regroup`]) |

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::basics::{Quantity, Text, Time};
use crate::facts::{Phase, Pod, Rules, Units};
use crate::units::{self, Family, GroupKey, Place};
use crate::verdict::Numbers;
use crate::wants::Wants;
use crate::world::World;

/// How long a group that vanished stays expected where nobody says how many there should be.
pub const GONE_FOR: std::time::Duration = std::time::Duration::from_secs(15 * 60);

/// A pod's seat in a budget, for as long as it is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    Pod,
    Group(u32),
    Single,
    Stray,
}

/// What a pod brings to its seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) healthy: bool,
    pub(crate) ended: bool,
    pub(crate) succeeded: bool,
}

impl Share {
    pub(crate) fn of(pod: &Pod, healthy: bool) -> Self {
        Self { healthy, ended: pod.phase.is_terminal(), succeeded: pod.phase == Phase::Succeeded }
    }
}

/// A group of pods.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) key: GroupKey,
    pub(crate) name: Text,
    pub(crate) members: Vec<u32>,
    pub(crate) healthy: u32,
    ended: u32,
    succeeded: u32,
    /// The group sizes its pods tell, and how many pods tell each.
    sizes: SmallVec<[(u32, u32); 1]>,
    pub(crate) min_count: Option<u32>,
    pub(crate) family: Family,
    /// Who would know how many there should be if the budget did not say so.
    source: Family,
    pub(crate) unreachable: bool,
    pub(crate) raised: bool,
    pub(crate) surge: bool,
}

impl Unit {
    /// All its pods ended well: it has done its work and is neither expected nor broken.
    pub(crate) fn is_complete(&self) -> bool {
        !self.members.is_empty() && self.succeeded as usize == self.members.len()
    }

    fn tell_size(&mut self, size: Option<u32>, up: bool) {
        let Some(size) = size else { return };
        match self.sizes.iter_mut().find(|(known, _)| *known == size) {
            Some((_, count)) if up => *count += 1,
            Some((_, count)) => *count -= 1,
            None => self.sizes.push((size, 1)),
        }
        self.sizes.retain(|(_, count)| *count > 0);
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.is_complete() && self.min_count.is_some_and(|min| self.healthy >= min)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FamilyTally {
    /// How many there should be, where somebody says so.
    size: Option<u32>,
    units: u32,
    complete: u32,
    whole: u32,
    /// What it last added to the sums of healthy and of expected groups.
    adds: (u32, u32),
}

/// The counters of one budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) pods: u32,
    pub(crate) pods_healthy: u32,
    pub(crate) unmanaged: u32,
    pub(crate) singles: u32,
    singles_healthy: u32,
    pub(crate) strays: BTreeSet<u32>,
    pub(crate) units: Slab<Unit>,
    by_key: FxHashMap<GroupKey, u32>,
    families: FxHashMap<Family, FamilyTally>,
    /// Where the budget says how many groups there should be: who else would know, and for how many groups.
    sources: FxHashMap<Family, u32>,
    /// How many groups there are of each LeaderWorkerSet.
    sets: FxHashMap<Text, u32>,
    groups_current: u32,
    /// The same without a limit: surge and all.
    groups_whole: u32,
    groups_expected: u32,
    pub(crate) wants: Wants,
    /// Units that are down; for a budget that counts pods, pods.
    pub(crate) down: BTreeSet<u32>,
    /// Single pods that are down.
    pub(crate) singles_down: BTreeSet<u32>,
    /// Units whose group object is missing.
    pub(crate) unresolved: BTreeSet<u32>,
    /// Observed groups that vanished, and when.
    pub(crate) gone: BTreeMap<Text, Time>,
}

impl Tally {
    /// Seats a pod.
    pub(crate) fn join(&mut self, rules: &Rules, id: u32, pod: &Pod, share: Share, world: &World) -> Seat {
        self.pods += 1;
        self.pods_healthy += u32::from(share.healthy);
        let place = units::place(rules, pod);
        let single = place == Place::Single;
        self.own(pod, single, true, world);
        match place {
            Place::Pod => {
                self.mark_down(id, !share.healthy);
                Seat::Pod
            }
            Place::Single => {
                self.singles += 1;
                self.singles_healthy += u32::from(share.healthy);
                mark(&mut self.singles_down, id, !share.healthy);
                Seat::Single
            }
            Place::Stray => {
                self.strays.insert(id);
                Seat::Stray
            }
            Place::Group(key) => {
                let unit = self.unit_for(rules, key, pod);
                self.withdraw(unit);
                let entry = &mut self.units[unit as usize];
                entry.members.push(id);
                entry.tell_size(pod.group_size, true);
                entry.healthy += u32::from(share.healthy);
                entry.ended += u32::from(share.ended);
                entry.succeeded += u32::from(share.succeeded);
                if self.gone.remove(&self.units[unit as usize].name).is_some() {
                    self.refresh_family(&Family::Observed);
                }
                self.stand(rules, &pod.key.namespace, unit, world);
                self.deposit(unit);
                self.drop_unused(&Family::Observed);
                Seat::Group(unit)
            }
        }
    }

    /// Takes a pod out of its seat.
    pub(crate) fn leave(
        &mut self,
        rules: &Rules,
        id: u32,
        pod: &Pod,
        (seat, share): (Seat, Share),
        world: &World,
        now: Time,
    ) {
        self.pods -= 1;
        self.pods_healthy -= u32::from(share.healthy);
        self.own(pod, seat == Seat::Single, false, world);
        match seat {
            Seat::Pod => self.mark_down(id, false),
            Seat::Single => {
                self.singles -= 1;
                self.singles_healthy -= u32::from(share.healthy);
                self.singles_down.remove(&id);
            }
            Seat::Stray => {
                self.strays.remove(&id);
            }
            Seat::Group(unit) => {
                self.withdraw(unit);
                let was_complete = self.units[unit as usize].is_complete();
                let entry = &mut self.units[unit as usize];
                entry.members.retain(|member| *member != id);
                entry.tell_size(pod.group_size, false);
                entry.healthy -= u32::from(share.healthy);
                entry.ended -= u32::from(share.ended);
                entry.succeeded -= u32::from(share.succeeded);
                if entry.members.is_empty() {
                    let removed = self.units.remove(unit as usize);
                    self.by_key.remove(&removed.key);
                    self.count_set(&removed.key, false);
                    if removed.family == Family::Observed
                        && !was_complete
                        && !self.is_there(&removed)
                        && units::is_observed(rules, &pod.key.namespace, &removed.name, world)
                    {
                        self.gone.insert(removed.name, now);
                    }
                    self.refresh_observed();
                    self.drop_unused(&removed.family);
                } else {
                    self.stand(rules, &pod.key.namespace, unit, world);
                    self.deposit(unit);
                }
            }
        }
    }

    /// Changes what a pod brings to its seat.
    pub(crate) fn change(
        &mut self,
        rules: &Rules,
        id: u32,
        pod: &Pod,
        (seat, old): (Seat, Share),
        new: Share,
        world: &World,
    ) {
        let flip = |count: &mut u32, old: bool, new: bool| {
            *count = *count + u32::from(new) - u32::from(old);
        };
        flip(&mut self.pods_healthy, old.healthy, new.healthy);
        match seat {
            Seat::Pod => self.mark_down(id, !new.healthy),
            Seat::Single => {
                flip(&mut self.singles_healthy, old.healthy, new.healthy);
                mark(&mut self.singles_down, id, !new.healthy);
            }
            Seat::Stray => {}
            Seat::Group(unit) => {
                self.withdraw(unit);
                let entry = &mut self.units[unit as usize];
                flip(&mut entry.healthy, old.healthy, new.healthy);
                flip(&mut entry.ended, old.ended, new.ended);
                flip(&mut entry.succeeded, old.succeeded, new.succeeded);
                if old.ended != new.ended {
                    self.stand(rules, &pod.key.namespace, unit, world);
                }
                self.deposit(unit);
            }
        }
    }

    /// Works everything out again that comes from controllers and group objects.
    pub(crate) fn regroup(&mut self, rules: &Rules, namespace: &Text, world: &World) {
        self.families.clear();
        self.sources.clear();
        self.down.retain(|_| matches!(rules.units, Units::Pods));
        self.unresolved.clear();
        self.groups_current = 0;
        self.groups_whole = 0;
        self.groups_expected = 0;
        let units: Vec<u32> = self.units.iter().map(|(id, _)| id as u32).collect();
        for unit in units {
            self.stand(rules, namespace, unit, world);
            self.deposit(unit);
        }
        self.gone.retain(|name, _| units::is_observed(rules, namespace, name, world));
        self.refresh_observed();
        self.wants.refresh(world);
    }

    /// Drops groups that have been gone for long enough; returns whether there were any.
    pub(crate) fn forget_gone(&mut self, now: Time) -> bool {
        let before = self.gone.len();
        self.gone.retain(|_, since| now < since.after(GONE_FOR));
        let changed = self.gone.len() != before;
        if changed {
            self.refresh_observed();
        }
        changed
    }

    /// Takes over groups that the budget's status remembers as gone.
    pub(crate) fn recall_gone(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        gone: &[(Text, Time)],
        world: &World,
        now: Time,
    ) {
        for (name, since) in gone {
            let seen = self.units.iter().any(|(_, unit)| unit.name == *name);
            if !seen && now < since.after(GONE_FOR) && units::is_observed(rules, namespace, name, world) {
                self.gone.insert(name.clone(), *since);
            }
        }
        self.refresh_observed();
    }

    /// When the next group stops being expected.
    pub(crate) fn next_forgotten(&self) -> Option<Time> {
        self.gone.values().min().map(|since| since.after(GONE_FOR))
    }

    /// The numbers of the budget's units: of its pods where it counts pods.
    pub(crate) fn numbers(&self, rules: &Rules) -> Numbers {
        match rules.units {
            Units::Pods => numbers(rules, self.pods_healthy, self.pods_expected(rules)),
            _ => numbers(rules, self.groups_current, self.groups_expected),
        }
    }

    /// The numbers of the pods that have no group.
    pub(crate) fn single_numbers(&self, rules: &Rules) -> Numbers {
        let expected = if needs_scale(rules) { self.wants.singles_expected() } else { self.singles };
        numbers(rules, self.singles_healthy, expected)
    }

    /// How many units the workloads want from now on, where they have a say.
    pub(crate) fn wanted(&self, rules: &Rules, namespace: &Text, world: &World) -> Option<u32> {
        if matches!(rules.units, Units::Pods) {
            return (!self.wants.nobody()).then(|| self.wants.wanted());
        }
        let wanted = |source: &Family| match source {
            Family::Scale(uid) if world.controller(uid).is_some_and(|c| c.deleting) => 0,
            // So many groups can be whole with the pods that are wanted.
            Family::Observed => self.wants.wanted() / units::asked_minimum(rules).unwrap_or(1).max(1),
            known => units::family_size(rules, namespace, known, world).unwrap_or(u32::MAX),
        };
        let sum = |sources: &mut dyn Iterator<Item = &Family>| {
            sources.map(wanted).fold(0u32, |sum, n| sum.saturating_add(n))
        };
        let sum = match rules.expected {
            Some(_) => sum(&mut self.sources.keys()),
            None => sum(&mut self.families.keys()),
        };
        Some(sum)
    }

    /// The number of units that are whole: no more than there should be or, where all are asked for, all of them.
    /// With `own`, one more pod of that unit counts, which is held.
    pub(crate) fn current(&self, unit: u32, own: bool, all: bool) -> u32 {
        let unit = &self.units[unit as usize];
        let crosses = own && !unit.is_complete() && unit.min_count == Some(unit.healthy + 1);
        if all {
            return self.groups_whole + u32::from(crosses);
        }
        let room = self.families.get(&unit.family).is_some_and(|f| f.whole < self.size_of(&unit.family, f));
        self.groups_current + u32::from(crosses && room)
    }

    /// Whether the expected number of pods, or of single pods, rests on scales; and if so, on which.
    pub(crate) fn asks_scale_of_singles(&self, rules: &Rules) -> Option<bool> {
        match rules.units {
            Units::Pods => (needs_scale(rules) && rules.expected.is_none()).then_some(false),
            Units::Workload => None,
            _ => (needs_scale(rules) && self.singles > 0).then_some(true),
        }
    }

    /// The most units that there will be, as far as anybody says: pods that are still to come are no reason to call
    /// a minimum too high.
    pub(crate) fn expected_at_most(&self, rules: &Rules, numbers: Numbers) -> u32 {
        match rules.units {
            Units::Pods if rules.expected.is_none() => numbers.expected.max(self.wants.scale()),
            _ => numbers.expected,
        }
    }

    /// A group's name in a sentence. Within one LeaderWorkerSet a number says enough.
    pub(crate) fn shown(&self, name: &Text) -> Text {
        match name.split_once('/') {
            Some((set, index)) if self.sets.len() == 1 && self.sets.contains_key(set) => index.into(),
            _ => name.clone(),
        }
    }

    /// Whether some expected number rests on what was seen only.
    pub(crate) fn is_observed(&self) -> bool {
        self.families.contains_key(&Family::Observed)
    }

    /// The distinct workloads its groups belong to.
    pub(crate) fn workloads(&self, namespace: &Text, world: &World) -> BTreeSet<Text> {
        self.units
            .iter()
            .filter_map(|(_, unit)| match &unit.key {
                GroupKey::Replica(_, workload, ..) => Some(workload.clone()),
                GroupKey::PodGroup(name) => {
                    let object =
                        crate::basics::ObjectKey { namespace: namespace.clone(), name: name.clone() };
                    world.pod_group(&object).and_then(|g| g.template.as_ref()).map(|(w, _)| w.clone())
                }
                _ => None,
            })
            .collect()
    }

    fn pods_expected(&self, rules: &Rules) -> u32 {
        match rules.expected {
            Some(expected) => expected,
            None if needs_scale(rules) => self.wants.scale(),
            None => self.pods,
        }
    }

    fn unit_for(&mut self, rules: &Rules, key: GroupKey, pod: &Pod) -> u32 {
        if let Some(unit) = self.by_key.get(&key) {
            return *unit;
        }
        let unit = self.units.insert(Unit {
            name: units::display_name(rules, &key, pod),
            key: key.clone(),
            members: Vec::new(),
            healthy: 0,
            ended: 0,
            succeeded: 0,
            sizes: SmallVec::new(),
            min_count: None,
            family: Family::Observed,
            source: Family::Observed,
            unreachable: false,
            raised: false,
            surge: false,
        }) as u32;
        self.count_set(&key, true);
        self.by_key.insert(key, unit);
        unit
    }

    /// Looks up what makes a unit whole. The unit must be withdrawn while this happens.
    fn stand(&mut self, rules: &Rules, namespace: &Text, unit: u32, world: &World) {
        let entry = &mut self.units[unit as usize];
        let alive = entry.members.len() as u32 - entry.ended;
        let size = entry.sizes.iter().map(|(size, _)| *size).max();
        let standing = units::standing(rules, namespace, &entry.key, size, alive, world);
        entry.min_count = standing.min_count;
        entry.source = standing.family.clone();
        entry.family = if rules.expected.is_some() { Family::Declared } else { standing.family };
        entry.unreachable = standing.unreachable;
        entry.raised = standing.raised;
        entry.surge = standing.surge;
        if !self.families.contains_key(&entry.family) {
            let size = units::family_size(rules, namespace, &entry.family, world);
            self.families.insert(entry.family.clone(), FamilyTally { size, ..FamilyTally::default() });
        }
    }

    /// Takes a unit out of its family's counters; the opposite of [`Self::deposit`].
    fn withdraw(&mut self, unit: u32) {
        self.count(unit, false);
    }

    /// Puts a unit into its family's counters.
    fn deposit(&mut self, unit: u32) {
        self.count(unit, true);
    }

    fn count(&mut self, unit: u32, up: bool) {
        let entry = &self.units[unit as usize];
        if entry.members.is_empty() {
            return;
        }
        let (whole, complete) = (entry.is_whole() && !entry.surge, entry.is_complete() && !entry.surge);
        let (down, unresolved) =
            (!whole && !complete && !entry.surge, entry.min_count.is_none() && !complete);
        let key = entry.family.clone();
        if key == Family::Declared {
            let count = self.sources.entry(entry.source.clone()).or_default();
            *count = if up { *count + 1 } else { *count - 1 };
            if *count == 0 {
                self.sources.remove(&entry.source);
            }
        }
        let Some(family) = self.families.get_mut(&key) else { return };
        let step = |count: &mut u32, by: bool| {
            let by = u32::from(by);
            *count = if up { *count + by } else { *count - by };
        };
        step(&mut family.units, true);
        step(&mut family.whole, whole);
        step(&mut family.complete, complete);
        step(&mut self.groups_whole, whole);
        self.refresh_family(&key);
        mark(&mut self.down, unit, up && down);
        mark(&mut self.unresolved, unit, up && unresolved);
    }

    /// Makes the observed family count the groups that are gone, also when no group of it is left.
    fn refresh_observed(&mut self) {
        self.families.entry(Family::Observed).or_default();
        self.refresh_family(&Family::Observed);
        self.drop_unused(&Family::Observed);
    }

    /// Brings what a family adds to the sums up to date.
    fn refresh_family(&mut self, key: &Family) {
        let Some(family) = self.families.get(key) else { return };
        let size = if self.is_used(key, family) { self.size_of(key, family) } else { 0 };
        let adds = (family.whole.min(size), size);
        self.groups_current = self.groups_current + adds.0 - family.adds.0;
        self.groups_expected = self.groups_expected + adds.1 - family.adds.1;
        if let Some(family) = self.families.get_mut(key) {
            family.adds = adds;
        }
    }

    fn is_used(&self, key: &Family, family: &FamilyTally) -> bool {
        family.units > 0 || (*key == Family::Observed && !self.gone.is_empty())
    }

    /// Forgets a family of which nothing is left. Never while one of its units is only withdrawn for a moment.
    fn drop_unused(&mut self, key: &Family) {
        if self.families.get(key).is_some_and(|family| !self.is_used(key, family)) {
            self.families.remove(key);
        }
    }

    /// Whether another unit goes by the name of one that has just been removed. Few kinds can share a name.
    fn is_there(&self, removed: &Unit) -> bool {
        matches!(removed.key, GroupKey::Owner(_) | GroupKey::Replica(..))
            && self.units.iter().any(|(_, unit)| unit.name == removed.name)
    }

    fn count_set(&mut self, key: &GroupKey, up: bool) {
        let GroupKey::LeaderWorker(set, _) = key else { return };
        let count = self.sets.entry(set.clone()).or_default();
        *count = if up { *count + 1 } else { *count - 1 };
        if *count == 0 {
            self.sets.remove(set);
        }
    }

    /// How many groups of a family there should be.
    fn size_of(&self, key: &Family, family: &FamilyTally) -> u32 {
        let stated = match family.size {
            Some(size) => size,
            None if *key == Family::Observed => family.units + self.gone.len() as u32,
            None => family.units,
        };
        stated.saturating_sub(family.complete)
    }

    fn mark_down(&mut self, id: u32, down: bool) {
        mark(&mut self.down, id, down);
    }

    /// Keeps the pods of each controller counted.
    fn own(&mut self, pod: &Pod, single: bool, up: bool, world: &World) {
        match pod.controller() {
            Some(owner) => self.wants.step(&owner.uid, single, up, world),
            None => self.unmanaged = if up { self.unmanaged + 1 } else { self.unmanaged - 1 },
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

/// Whether the numbers cannot be had without knowing how many units there should be.
fn needs_scale(rules: &Rules) -> bool {
    rules.max_unavailable.is_some() || matches!(rules.min_available, Some(Quantity::Percent(_)) | None)
}

/// What the rules come to for so many units.
fn numbers(rules: &Rules, current: u32, expected: u32) -> Numbers {
    let by_min = rules.min_available.map_or(0, |min| min.of(expected));
    let by_max = rules.max_unavailable.map_or(0, |max| expected.saturating_sub(max.of(expected)));
    let desired = by_min.max(by_max);
    let allowed = if expected == 0 { 0 } else { current.saturating_sub(desired) };
    Numbers { allowed, current, desired, expected }
}
