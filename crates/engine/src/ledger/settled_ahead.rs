//! A `settledVersion` that the store of pods has not reached.
//!
//! Nothing is decided under a budget until the pods are as new as its `settledVersion`. If that comes from another time, the
//! budget would wait for as long as the store takes to get there: after etcd was restored from an older snapshot while a
//! server wrote, or when a saved status is applied.
//!
//! A leader writes only versions of pods that it has seen. So a consistent read that is sent after the budget was read
//! shows at least its `settledVersion`. If it shows less, the leader lowers `settledVersion` to what it shows. The write
//! requires that the budget has not changed since: a claim that was settled meanwhile may need a later version.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::basics::{Time, Version};
use crate::facts::BudgetKey;

/// What a read has shown about a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Refuted {
    /// The version of the budget when the read was sent.
    budget: Version,
    /// How far the store of pods had come.
    pods: Version,
}

/// The budgets whose `settledVersion` lies ahead of all pods that are known here.
#[derive(Clone, Debug, Default)]
pub(super) struct SettledAhead {
    /// The newest version that a read has shown.
    reached: Version,
    since: BTreeMap<BudgetKey, Time>,
    /// Budgets that wait for the next read, with their versions.
    queued: BTreeMap<BudgetKey, Version>,
    /// The budgets that the read in flight is for.
    reading: Option<BTreeMap<BudgetKey, Version>>,
    refuted: BTreeMap<BudgetKey, Refuted>,
}

impl SettledAhead {
    /// How far the store of pods has come at least.
    pub(super) fn reached(&self) -> Version {
        self.reached
    }

    /// A budget does not lie ahead, or is gone.
    pub(super) fn clear(&mut self, budget: &BudgetKey) {
        self.since.remove(budget);
        self.queued.remove(budget);
        self.refuted.remove(budget);
    }

    /// A budget lies ahead, at this version of it. Returns the version to lower it to, if a read has shown that it is from
    /// another time. Otherwise it waits for a read, once the watch of pods has had time to catch up.
    pub(super) fn check(
        &mut self,
        budget: &BudgetKey,
        version: Version,
        now: Time,
        patience: Duration,
    ) -> Option<Version> {
        let since = *self.since.entry(budget.clone()).or_insert(now);
        let refuted = self.refuted.remove(budget).filter(|refuted| refuted.budget == version);
        let reading = self.reading.as_ref().is_some_and(|reading| reading.get(budget) == Some(&version));
        if refuted.is_some() || reading {
            self.queued.remove(budget);
        } else if now >= since.after(patience) {
            self.queued.insert(budget.clone(), version);
        }
        refuted.map(|refuted| refuted.pods)
    }

    /// Whether to read now how far the store has come: for all budgets that wait, one read at a time.
    pub(super) fn start(&mut self) -> bool {
        let starts = self.reading.is_none() && !self.queued.is_empty();
        if starts {
            self.reading = Some(std::mem::take(&mut self.queued));
        }
        starts
    }

    /// The read came back with a version, or without an answer. Returns the budgets to look at.
    pub(super) fn read(&mut self, shown: Option<Version>) -> Vec<BudgetKey> {
        let reading = self.reading.take().unwrap_or_default();
        let Some(pods) = shown else { return Vec::new() };
        self.reached = self.reached.max(pods);
        let known = reading.into_iter().filter(|(key, _)| self.since.contains_key(key)).collect::<Vec<_>>();
        let refuted = known.iter().map(|(key, budget)| (key.clone(), Refuted { budget: *budget, pods }));
        self.refuted.extend(refuted);
        known.into_iter().map(|(key, _)| key).collect()
    }

    /// The mutation that takes what was read before for what was read after: the budgets are as they are now.
    pub(super) fn assume(&mut self, budget: &BudgetKey, version: Version) {
        if let Some(refuted) = self.refuted.get_mut(budget) {
            refuted.budget = version;
        }
    }

    /// Feeds what the future depends on into a hasher.
    pub(super) fn fingerprint(&self, watched: Version, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (self.reached.max(watched), &self.since, &self.queued, &self.reading, &self.refuted).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ObjectKey;
    use crate::facts::BudgetKind;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn key(name: &str) -> BudgetKey {
        BudgetKey { object: ObjectKey::new("shop", name), kind: BudgetKind::DisruptionBudget }
    }

    #[test]
    fn the_watch_has_time_to_catch_up_before_anything_is_read() {
        let mut ahead = SettledAhead::default();
        assert_eq!(ahead.check(&key("a"), Version(5), Time(0), PATIENCE), None);
        assert_eq!(ahead.check(&key("a"), Version(5), Time(9_999), PATIENCE), None);
        assert!(!ahead.start());
        ahead.clear(&key("a"));
        assert_eq!(ahead.check(&key("a"), Version(5), Time(10_000), PATIENCE), None);
        assert!(!ahead.start(), "it had caught up");
        assert_eq!(ahead.check(&key("a"), Version(5), Time(20_000), PATIENCE), None);
        assert!(ahead.start());
    }

    #[test]
    fn one_read_serves_all_budgets_that_were_known_when_it_was_sent() {
        let mut ahead = SettledAhead::default();
        let check = |ahead: &mut SettledAhead, name: &str, version, at| {
            ahead.check(&key(name), Version(version), Time(at), PATIENCE)
        };
        for name in ["a", "b", "c"] {
            check(&mut ahead, name, 5, 0);
            check(&mut ahead, name, 5, 10_000);
        }
        assert!(ahead.start());
        check(&mut ahead, "d", 7, 0);
        check(&mut ahead, "d", 7, 10_000);
        assert!(!ahead.start(), "one is in flight");
        ahead.clear(&key("c"));
        assert_eq!(ahead.read(Some(Version(9))), [key("a"), key("b")]);
        assert_eq!(ahead.reached(), Version(9));
        assert_eq!(check(&mut ahead, "a", 5, 10_001), Some(Version(9)));
        assert_eq!(check(&mut ahead, "b", 6, 10_001), None, "it has changed since the read was sent");
        assert_eq!(check(&mut ahead, "d", 7, 10_001), None, "the read was sent before it was seen");
        assert!(ahead.start(), "for b and d");
    }

    #[test]
    fn a_read_without_an_answer_is_repeated() {
        let mut ahead = SettledAhead::default();
        ahead.check(&key("a"), Version(5), Time(0), PATIENCE);
        ahead.check(&key("a"), Version(5), Time(10_000), PATIENCE);
        assert!(ahead.start());
        assert_eq!(ahead.read(None), []);
        assert!(!ahead.start(), "the next tick looks at it again");
        assert_eq!(ahead.check(&key("a"), Version(5), Time(10_250), PATIENCE), None);
        assert!(ahead.start());
    }
}
