//! The groups of one source of the expected number, and what they add to the sums of the budget.

use super::{Tally, mark};
use crate::units::ExpectedFrom;

#[derive(Clone, Debug, Default)]
pub(crate) struct SourceTally {
    /// The expected number, if the source states it.
    pub(super) size: Option<u32>,
    pub(super) units: u32,
    pub(super) complete: u32,
    pub(super) whole: u32,
    /// The groups that exist and are not a surge.
    pub(super) regular: u32,
    /// The groups that were complete when their last pod was removed.
    pub(super) done: u32,
    /// The source stays expected even without pods.
    pub(super) kept: bool,
    /// Whether `kept` has been determined.
    pub(super) considered: bool,
    /// What this source last added to the sums of current and of expected groups.
    pub(super) adds: (u32, u32),
}

impl Tally {
    /// Removes a unit from the counters of its source. The opposite of [`Self::count_unit`].
    pub(super) fn uncount_unit(&mut self, unit: u32) {
        self.count(unit, false);
    }

    /// Adds a unit to the counters of its source. Returns whether the caller must determine if the source stays
    /// expected.
    pub(super) fn count_unit(&mut self, unit: u32) -> bool {
        self.count(unit, true)
    }

    fn count(&mut self, unit: u32, up: bool) -> bool {
        let entry = &self.units[unit as usize];
        if entry.members.is_empty() {
            return false;
        }
        let surge = entry.surge;
        let (whole, complete) = (entry.is_whole() && !entry.surge, entry.is_complete() && !entry.surge);
        let whole_unmanaged = entry.is_whole_unmanaged() && !entry.surge && entry.source.is_by_pods();
        let (down, unresolved) =
            (!whole && !complete && !entry.surge, entry.min_count.is_none() && !complete);
        let key = entry.expected_from.clone();
        let mut first = false;
        if key == ExpectedFrom::Declared {
            let count = self.sources.entry(entry.source.clone()).or_default();
            *count = if up { *count + 1 } else { *count - 1 };
            first = up && *count == 1;
            if *count == 0 {
                self.sources.remove(&entry.source);
            }
        }
        let Some(expected_from) = self.source_tallies.get_mut(&key) else { return false };
        let step = |count: &mut u32, by: bool| {
            let by = u32::from(by);
            *count = if up { *count + by } else { *count - by };
        };
        step(&mut expected_from.units, true);
        step(&mut expected_from.regular, !surge);
        let news = first || !expected_from.considered;
        step(&mut expected_from.whole, whole);
        step(&mut expected_from.complete, complete);
        step(&mut self.groups_whole, whole);
        step(&mut self.groups_whole_unmanaged, whole_unmanaged);
        self.refresh_sums(&key);
        mark(&mut self.down, unit, up && down);
        mark(&mut self.unresolved, unit, up && unresolved);
        news
    }

    /// Makes the tally of observed groups count those that are gone, even if none is left.
    pub(super) fn refresh_observed(&mut self) {
        self.source_tallies.entry(ExpectedFrom::Observed).or_default();
        self.refresh_sums(&ExpectedFrom::Observed);
        self.drop_unused(&ExpectedFrom::Observed);
    }

    /// Updates what the groups of a source add to the sums.
    pub(super) fn refresh_sums(&mut self, key: &ExpectedFrom) {
        let Some(expected_from) = self.source_tallies.get(key) else { return };
        let size = if self.is_used(key, expected_from) { self.size_of(key, expected_from) } else { 0 };
        let adds = (expected_from.whole.min(size), size);
        self.groups_current = self.groups_current + adds.0 - expected_from.adds.0;
        self.groups_expected = self.groups_expected + adds.1 - expected_from.adds.1;
        if let Some(expected_from) = self.source_tallies.get_mut(key) {
            expected_from.adds = adds;
        }
    }

    fn is_used(&self, key: &ExpectedFrom, expected_from: &SourceTally) -> bool {
        expected_from.units > 0
            || expected_from.kept
            || (*key == ExpectedFrom::Observed && !self.gone.is_empty())
    }

    /// Drops the tally of a source that is no longer used. Must not be called while one of its units is withdrawn.
    pub(super) fn drop_unused(&mut self, key: &ExpectedFrom) {
        if self.source_tallies.get(key).is_some_and(|expected_from| !self.is_used(key, expected_from)) {
            self.source_tallies.remove(key);
        }
    }

    /// The expected number of groups of a source.
    pub(super) fn size_of(&self, key: &ExpectedFrom, expected_from: &SourceTally) -> u32 {
        let stated = match expected_from.size {
            Some(size) => size,
            None if *key == ExpectedFrom::Observed => expected_from.units + self.gone.len() as u32,
            None => expected_from.units,
        };
        // New groups may have replaced complete ones whose pods are still there.
        let unfinished = expected_from.regular.saturating_sub(expected_from.complete);
        stated.saturating_sub(expected_from.complete + expected_from.done).max(unfinished.min(stated))
    }
}
