//! The budgets that a step looks at: those that something happened to, and those that wait for time to pass.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use crate::basics::Time;
use crate::facts::BudgetKey;

/// The work queue of a replica. Each budget is in it at most once.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkQueue {
    /// To be looked at in this step.
    due: BTreeSet<BudgetKey>,
    /// With something to do or to wait for: looked at whenever time passes.
    busy: BTreeSet<BudgetKey>,
    /// When batch windows close, and when lists may be sent again.
    wakes: BTreeSet<Time>,
}

impl WorkQueue {
    /// Something happened to this budget.
    pub(super) fn add(&mut self, key: BudgetKey) {
        self.due.insert(key);
    }

    /// Something happened to these budgets.
    pub(super) fn extend(&mut self, keys: impl IntoIterator<Item = BudgetKey>) {
        self.due.extend(keys);
    }

    /// Something happened that the busy budgets of this kind wait for.
    pub(super) fn add_busy(&mut self, waits: impl Fn(&BudgetKey) -> bool) {
        self.due.extend(self.busy.iter().filter(|key| waits(key)).cloned());
    }

    /// Takes the next budget out.
    pub(super) fn pop(&mut self) -> Option<BudgetKey> {
        self.due.pop_first()
    }

    /// A budget was looked at: whether it still has something to do or to wait for.
    pub(super) fn looked_at(&mut self, key: BudgetKey, busy: bool) {
        if busy {
            self.busy.insert(key);
        } else {
            self.busy.remove(&key);
        }
    }

    /// Time must pass at this moment, at the latest.
    pub(super) fn wake_at(&mut self, at: Time) {
        self.wakes.insert(at);
    }

    /// The next of these moments.
    pub(super) fn next_wake(&self) -> Option<Time> {
        self.wakes.first().copied()
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) {
        self.wakes.retain(|wake| *wake > now);
        self.due.extend(self.busy.iter().cloned());
    }

    /// What the future depends on: a tick comes without a wake, too.
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        (&self.due, &self.busy).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ObjectKey;
    use crate::facts::BudgetKind;

    fn key(name: &str) -> BudgetKey {
        BudgetKey { object: ObjectKey::new("ns", name), kind: BudgetKind::DisruptionBudget }
    }

    fn taken(queue: &mut WorkQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop()).map(|key| key.object.name.to_string()).collect()
    }

    #[test]
    fn a_budget_is_looked_at_once_however_often_it_was_added() {
        let mut queue = WorkQueue::default();
        queue.add(key("b"));
        queue.extend([key("a"), key("b")]);
        assert_eq!(taken(&mut queue), ["a", "b"]);
        assert_eq!(taken(&mut queue), [""; 0]);
    }

    #[test]
    fn a_busy_budget_is_looked_at_whenever_time_passes() {
        let mut queue = WorkQueue::default();
        queue.looked_at(key("a"), true);
        queue.looked_at(key("b"), true);
        queue.looked_at(key("b"), false);
        assert_eq!(taken(&mut queue), [""; 0]);
        queue.tick(Time(1));
        assert_eq!(taken(&mut queue), ["a"]);
        queue.tick(Time(2));
        assert_eq!(taken(&mut queue), ["a"]);
    }

    #[test]
    fn only_the_busy_budgets_that_wait_for_something_are_added() {
        let mut queue = WorkQueue::default();
        queue.looked_at(key("a"), true);
        queue.looked_at(key("b"), true);
        queue.add_busy(|key| &*key.object.name != "a");
        assert_eq!(taken(&mut queue), ["b"]);
    }

    #[test]
    fn a_wake_that_has_passed_is_forgotten() {
        let mut queue = WorkQueue::default();
        queue.wake_at(Time(20));
        queue.wake_at(Time(10));
        assert_eq!(queue.next_wake(), Some(Time(10)));
        queue.tick(Time(10));
        assert_eq!(queue.next_wake(), Some(Time(20)));
        queue.tick(Time(30));
        assert_eq!(queue.next_wake(), None);
    }
}
