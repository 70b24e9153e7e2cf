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

use crate::basics::{Quantity, Text, Time, Uid};
use crate::facts::{Phase, Pod, Rules, Units};
use crate::units::{self, Family, GroupKey, Place};
use crate::verdict::Numbers;
use crate::world::{Scales, World};

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
    pub(crate) unreachable: bool,
    pub(crate) raised: bool,
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

/// The pods of one controller in a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owned {
    /// In groups, or in a budget that counts pods.
    seated: u32,
    /// Without a group.
    single: u32,
}

/// The counters of one budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) pods: u32,
    pub(crate) pods_healthy: u32,
    pub(crate) unmanaged: u32,
    pub(crate) singles: u32,
    singles_healthy: u32,
    unmanaged_singles: u32,
    pub(crate) strays: BTreeSet<u32>,
    pub(crate) units: Slab<Unit>,
    by_key: FxHashMap<GroupKey, u32>,
    families: FxHashMap<Family, FamilyTally>,
    groups_current: u32,
    groups_expected: u32,
    owned: FxHashMap<Uid, Owned>,
    pub(crate) scales: Scales,
    singles_expected: u32,
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
                    if removed.family == Family::Observed && !was_complete {
                        self.gone.insert(removed.name, now);
                    }
                    self.refresh_observed();
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
        self.down.retain(|_| matches!(rules.units, Units::Pods));
        self.unresolved.clear();
        self.groups_current = 0;
        self.groups_expected = 0;
        let units: Vec<u32> = self.units.iter().map(|(id, _)| id as u32).collect();
        for unit in units {
            self.stand(rules, namespace, unit, world);
            self.deposit(unit);
        }
        self.refresh_observed();
        self.rescale(world);
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
    pub(crate) fn recall_gone(&mut self, gone: &[(Text, Time)], now: Time) {
        for (name, since) in gone {
            let seen = self.units.iter().any(|(_, unit)| unit.name == *name);
            if !seen && now < since.after(GONE_FOR) {
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
        let expected = if needs_scale(rules) { self.singles_expected } else { self.singles };
        numbers(rules, self.singles_healthy, expected)
    }

    /// How many units the workloads want from now on, where that is known.
    pub(crate) fn wanted(&self, rules: &Rules, world: &World, namespace: &Text) -> Option<u32> {
        match rules.units {
            Units::Pods => {
                let known = self.scales.missing.is_empty() && self.scales.scaleless.is_empty();
                (known && !self.owned.is_empty()).then_some(self.scales.wanted)
            }
            _ => self.families.keys().try_fold(0u32, |sum, family| {
                let wanted = match family {
                    Family::Scale(uid) if world.controller(uid).is_some_and(|c| c.deleting) => 0,
                    // What the budget's owner declared is no controller's wish.
                    Family::Declared => return None,
                    _ => units::family_size(rules, namespace, family, world)?,
                };
                Some(sum.saturating_add(wanted))
            }),
        }
    }

    /// The number of units after one of its pods, which is held, counts again.
    pub(crate) fn current_with(&self, unit: u32) -> u32 {
        let unit = &self.units[unit as usize];
        let crosses = !unit.is_complete() && unit.min_count == Some(unit.healthy + 1);
        let room = self.families.get(&unit.family).is_some_and(|f| f.whole < self.size_of(&unit.family, f));
        self.groups_current + u32::from(crosses && room)
    }

    /// Whether the expected number of pods, or of single pods, rests on scales that cannot be had.
    pub(crate) fn scale_is_unknown(&self, rules: &Rules) -> bool {
        let asked = match rules.units {
            Units::Pods => needs_scale(rules) && rules.expected.is_none(),
            Units::Workload => false,
            _ => needs_scale(rules) && self.singles > 0,
        };
        asked && !(self.scales.missing.is_empty() && self.scales.scaleless.is_empty())
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
            None if needs_scale(rules) => self.scales.sum,
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
            unreachable: false,
            raised: false,
        }) as u32;
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
        entry.family = standing.family;
        entry.unreachable = standing.unreachable;
        entry.raised = standing.raised;
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
        let (whole, complete) = (entry.is_whole(), entry.is_complete());
        let (down, unresolved) = (!whole && !complete, entry.min_count.is_none() && !complete);
        let key = entry.family.clone();
        let Some(family) = self.families.get_mut(&key) else { return };
        let step = |count: &mut u32, by: bool| {
            let by = u32::from(by);
            *count = if up { *count + by } else { *count - by };
        };
        step(&mut family.units, true);
        step(&mut family.whole, whole);
        step(&mut family.complete, complete);
        self.refresh_family(&key);
        mark(&mut self.down, unit, up && down);
        mark(&mut self.unresolved, unit, up && unresolved);
    }

    /// Makes the observed family count the groups that are gone, also when no group of it is left.
    fn refresh_observed(&mut self) {
        self.families.entry(Family::Observed).or_default();
        self.refresh_family(&Family::Observed);
    }

    /// Brings what a family adds to the sums up to date, and drops the family when nothing is left of it.
    fn refresh_family(&mut self, key: &Family) {
        let Some(family) = self.families.get(key) else { return };
        let used = family.units > 0 || (*key == Family::Observed && !self.gone.is_empty());
        let size = if used { self.size_of(key, family) } else { 0 };
        let adds = (family.whole.min(size), size);
        self.groups_current = self.groups_current + adds.0 - family.adds.0;
        self.groups_expected = self.groups_expected + adds.1 - family.adds.1;
        if !used {
            self.families.remove(key);
        } else if let Some(family) = self.families.get_mut(key) {
            family.adds = adds;
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
        let step = |count: &mut u32| *count = if up { *count + 1 } else { *count - 1 };
        let Some(owner) = pod.controller() else {
            step(&mut self.unmanaged);
            if single {
                step(&mut self.unmanaged_singles);
            }
            return;
        };
        let known = self.owned.contains_key(&owner.uid);
        let entry = self.owned.entry(owner.uid.clone()).or_default();
        step(if single { &mut entry.single } else { &mut entry.seated });
        let gone = *entry == Owned::default();
        if gone {
            self.owned.remove(&owner.uid);
        }
        if gone || !known {
            self.rescale(world);
        } else if single || self.singles > 0 {
            self.resingle(world);
        }
    }

    fn rescale(&mut self, world: &World) {
        self.scales = world.scales(self.owned.keys());
        self.resingle(world);
    }

    /// How many single pods there should be: what their controllers want, less what sits in groups.
    fn resingle(&mut self, world: &World) {
        let mut seated: FxHashMap<&Uid, (u32, u32, u32)> = FxHashMap::default();
        for (uid, owned) in &self.owned {
            if let Some(scaled) = world.scaled(uid) {
                let entry = seated.entry(&scaled.uid).or_default();
                entry.0 += owned.seated;
                entry.1 += owned.single;
                entry.2 = scaled.replicas.unwrap_or(0);
            }
        }
        self.singles_expected = seated
            .values()
            .filter(|(_, single, _)| *single > 0)
            .map(|(seated, single, replicas)| (*single).max(replicas.saturating_sub(*seated)))
            .sum();
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
