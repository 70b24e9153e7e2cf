//! The counters of one budget, kept up to date in steps whose cost does not depend on the budget's size.
//!
//! | event | work |
//! |---|---|
//! | a pod's health flips | its unit's counter; the family's when the unit crosses its minimum |
//! | a pod joins or leaves | the same, and its unit's standing |
//! | a controller, group or the budget itself changes | every unit of the budget ([`Tally::regroup`]) |
//!
//! Here pods take their seats, change and leave. `unit` says what a group is, `family` sums groups up by who says
//! how many there should be, `expected` makes the budget's numbers of it, `gone` remembers which groups vanished, and
//! `memory` which sources did.

mod expected;
mod family;
mod gone;
mod memory;
mod unit;

pub use gone::GONE_FOR;
pub(crate) use unit::Unit;

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::basics::{Text, Time, Uid};
use crate::facts::{Phase, Pod, Rules, Source, Units};
use crate::units::{self, Family, GroupKey, Place};
use crate::wants::Wants;
use crate::world::World;
use family::FamilyTally;
use memory::Done;

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
    /// Sources that are remembered, and whether their objects have been known since. Most budgets have one at most, and a
    /// map has room for several at once.
    remembered: BTreeMap<Box<Source>, bool>,
    /// Observed groups that vanished, and when.
    pub(crate) gone: BTreeMap<Text, Time>,
    /// Groups that were complete when the last of their pods was collected.
    done: BTreeMap<GroupKey, Done>,
}

impl Tally {
    /// Seats a pod.
    pub(crate) fn join(
        &mut self,
        rules: &Rules,
        (id, place): (u32, Place),
        pod: &Pod,
        share: Share,
        world: &World,
    ) -> Seat {
        self.pods += 1;
        self.pods_healthy += u32::from(share.healthy);
        let single = place == Place::Single;
        if let Some(met) = self.own(pod, single, true, world)
            && place == Place::Pod
        {
            self.consider(rules, &pod.key.namespace, &met, world);
        }
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
                self.begin_again(rules, &pod.key.namespace, &key, world);
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
                if self.deposit(unit) {
                    let entry = &self.units[unit as usize];
                    let (family, source) = (entry.family.clone(), entry.source.clone());
                    self.consider_family(rules, &pod.key.namespace, &source, world);
                    if let Some(family) = self.families.get_mut(&family) {
                        family.considered = true;
                    }
                }
                if !self.done.is_empty() {
                    let family = self.units[unit as usize].family.clone();
                    self.recount_done(rules, &pod.key.namespace, &family, world);
                }
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
                    if was_complete {
                        self.finish(rules, &pod.key.namespace, removed.key, world);
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
        let kept = self.wants.refresh(world);
        match rules.units {
            Units::Pods => self.consider_controllers(rules, namespace, kept, world),
            _ => self.consider_families(rules, namespace, world),
        }
        self.refresh_done(rules, namespace, world);
        self.gone.retain(|name, _| units::is_observed(rules, namespace, name, world));
        self.refresh_observed();
    }

    fn mark_down(&mut self, id: u32, down: bool) {
        mark(&mut self.down, id, down);
    }

    /// Keeps the pods of each controller counted. Returns the workload whose first pod this is.
    fn own(&mut self, pod: &Pod, single: bool, up: bool, world: &World) -> Option<Uid> {
        match pod.controller() {
            Some(owner) => self.wants.step(&owner.uid, single, up, world),
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
