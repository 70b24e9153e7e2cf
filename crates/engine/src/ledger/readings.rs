//! What a replica shows of itself without anything happening to it.

use std::time::Duration;

use crate::basics::Time;
use crate::facts::Budget;
use crate::ledger::replica::Replica;
use crate::status::Status;

impl Replica {
    /// The status that a budget would have if it were there now.
    pub fn preview(&mut self, budget: Budget, now: Time) -> Option<Status> {
        self.engine.preview(budget, now)
    }

    /// How long the pod watch has shown nothing.
    pub fn silence(&self, now: Time) -> Duration {
        now.since(self.last_pod_event)
    }

    /// How long nothing was heard of pods, where that is too long to decide anything.
    pub fn stale_for(&self, now: Time) -> Option<Duration> {
        Some(self.silence(now)).filter(|silence| *silence > self.settings.fresh_for)
    }

    /// Whether it admitted nothing lately that a new budget would have to be told of.
    pub fn admitted_nothing_recently(&self) -> bool {
        self.recent.is_empty()
    }
}
