//! The groups of which one source says how many there should be, and what they add to the budget's sums.

use super::{Tally, mark};
use crate::units::Family;

#[derive(Clone, Debug, Default)]
pub(crate) struct FamilyTally {
    /// How many there should be, where somebody says so.
    pub(super) size: Option<u32>,
    pub(super) units: u32,
    pub(super) complete: u32,
    pub(super) whole: u32,
    /// The groups that are there and are not a surge.
    pub(super) seated: u32,
    /// Those that were complete when their pods were collected.
    pub(super) done: u32,
    /// What says how many there should be stays expected also without pods.
    pub(super) kept: bool,
    /// Whether that has been found out.
    pub(super) considered: bool,
    /// What it last added to the sums of healthy and of expected groups.
    pub(super) adds: (u32, u32),
}

impl Tally {
    /// Takes a unit out of its family's counters; the opposite of [`Self::deposit`].
    pub(super) fn withdraw(&mut self, unit: u32) {
        self.count(unit, false);
    }

    /// Puts a unit into its family's counters. Returns whether it is still to be found out if the family stays.
    pub(super) fn deposit(&mut self, unit: u32) -> bool {
        self.count(unit, true)
    }

    fn count(&mut self, unit: u32, up: bool) -> bool {
        let entry = &self.units[unit as usize];
        if entry.members.is_empty() {
            return false;
        }
        let surge = entry.surge;
        let (whole, complete) = (entry.is_whole() && !entry.surge, entry.is_complete() && !entry.surge);
        let (down, unresolved) =
            (!whole && !complete && !entry.surge, entry.min_count.is_none() && !complete);
        let key = entry.family.clone();
        let mut first = false;
        if key == Family::Declared {
            let count = self.sources.entry(entry.source.clone()).or_default();
            *count = if up { *count + 1 } else { *count - 1 };
            first = up && *count == 1;
            if *count == 0 {
                self.sources.remove(&entry.source);
            }
        }
        let Some(family) = self.families.get_mut(&key) else { return false };
        let step = |count: &mut u32, by: bool| {
            let by = u32::from(by);
            *count = if up { *count + by } else { *count - by };
        };
        step(&mut family.units, true);
        step(&mut family.seated, !surge);
        let news = first || !family.considered;
        step(&mut family.whole, whole);
        step(&mut family.complete, complete);
        step(&mut self.groups_whole, whole);
        self.refresh_family(&key);
        mark(&mut self.down, unit, up && down);
        mark(&mut self.unresolved, unit, up && unresolved);
        news
    }

    /// Makes the observed family count the groups that are gone, also when no group of it is left.
    pub(super) fn refresh_observed(&mut self) {
        self.families.entry(Family::Observed).or_default();
        self.refresh_family(&Family::Observed);
        self.drop_unused(&Family::Observed);
    }

    /// Brings what a family adds to the sums up to date.
    pub(super) fn refresh_family(&mut self, key: &Family) {
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
        family.units > 0 || family.kept || (*key == Family::Observed && !self.gone.is_empty())
    }

    /// Forgets a family of which nothing is left. Never while one of its units is only withdrawn for a moment.
    pub(super) fn drop_unused(&mut self, key: &Family) {
        if self.families.get(key).is_some_and(|family| !self.is_used(key, family)) {
            self.families.remove(key);
        }
    }

    /// How many groups of a family there should be.
    pub(super) fn size_of(&self, key: &Family, family: &FamilyTally) -> u32 {
        let stated = match family.size {
            Some(size) => size,
            None if *key == Family::Observed => family.units + self.gone.len() as u32,
            None => family.units,
        };
        stated.saturating_sub(family.complete + family.done)
    }
}
