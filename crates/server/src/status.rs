//! The status of budgets, for readers. All processes compute it; the leader writes it.
//!
//! The queue contains keys, not values: each write uses the status at the time of the write. A write contains counters,
//! groups and conditions, and nothing of the ledger, so it never conflicts with a commit. The commits of this process
//! include the status too: while there are commits, nothing is written here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::Error;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::facts::BudgetKey;
use quorate_engine::status::{ConditionType, Scope, Status};
use quorate_intake::budget;
use quorate_kit::Plain;
use quorate_kit::election::Election;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::actor::ReplicaHandle;
use crate::calls::Calls;
use crate::clock;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::raw_budgets::RawBudgets;

/// Delay before a write: changes come in bursts, and one write covers all of them.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Delay before a write while a claim is unsettled. An admitted disruption is usually carried out, observed and settled
/// within this time: one write covers all of that, and readers still see the current status within a second.
const SETTLE_DELAY: Duration = Duration::from_millis(700);

/// Minimum time between two writes to a budget that changes all the time: readers see the current status within a
/// second, and evictions do not pay for a status write at each step.
const MIN_INTERVAL: Duration = Duration::from_millis(800);

/// Maximum number of concurrent writes: after the loss of a node, many budgets change together.
const MAX_CONCURRENT: usize = 16;

/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(1);

/// A budget whose status may have changed.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) budget: BudgetKey,
    /// The budget has claims: admissions that the pods do not show yet.
    pub(crate) unsettled: bool,
}

/// A message to the status writer.
#[derive(Clone, Debug)]
pub(crate) enum StatusChange {
    /// The status of these budgets may have changed.
    Changed(Vec<Changed>),
    /// A commit has written the status of this budget, which counts this.
    Written { budget: BudgetKey, scope: Scope },
}

/// Writes the status of budgets.
pub(crate) struct Writer {
    pub(crate) replica: ReplicaHandle,
    pub(crate) calls: Arc<Calls>,
    pub(crate) raw_budgets: Arc<RawBudgets>,
    pub(crate) election: Arc<Election>,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
}

impl Writer {
    /// Writes the status of every budget that changes while this process is the leader, until the channel is closed. A
    /// new leader receives all budgets.
    pub(crate) async fn run(self, mut changes: mpsc::UnboundedReceiver<StatusChange>) {
        let mut queue = StatusQueue::default();
        let mut writing = FuturesUnordered::new();
        loop {
            while writing.len() < MAX_CONCURRENT
                && let Some(key) = queue.take(Instant::now())
            {
                writing.push(self.attempt(key));
            }
            let next = queue.next().filter(|_| writing.len() < MAX_CONCURRENT);
            tokio::select! {
                change = changes.recv() => match change {
                    Some(StatusChange::Changed(budgets)) => {
                        budgets.into_iter().for_each(|budget| queue.changed(budget, Instant::now()));
                    }
                    Some(StatusChange::Written { budget, scope }) => {
                        queue.committed(budget, Instant::now());
                        self.metrics.reconciled(scope, false);
                    }
                    None => return,
                },
                Some((key, written)) = writing.next() => queue.written(key, written, Instant::now()),
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    async fn attempt(&self, key: BudgetKey) -> (BudgetKey, bool) {
        let written = self.write(&key).await;
        if let Err(error) = &written {
            warn!(budget = %key, error = %Plain(error), "cannot write the status");
        }
        (key, written.is_ok())
    }

    async fn write(&self, key: &BudgetKey) -> Result<(), Error> {
        let Some(status) = self.replica.status(key.clone()).await else { return Ok(()) };
        let Some(seen) = self.raw_budgets.status(key) else { return Ok(()) };
        let Some(patch) = budget::status_patch(key.kind, &seen, &status, clock::now()) else {
            return Ok(());
        };
        // Checked right before the write: the lease may have been lost while waiting.
        if !self.election.is_held() {
            return Ok(());
        }
        match self.calls.write_status(key, "application/merge-patch+json", &patch).await {
            Ok(_) => debug!(budget = %key, "status written"),
            // The budget is gone, so there is no status to write.
            Err(Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(error),
        }
        self.report_trouble(key, &seen, &status);
        Ok(())
    }

    /// Writes an Event when a budget starts to be misconfigured.
    fn report_trouble(&self, key: &BudgetKey, seen: &Value, status: &Status) {
        let configured = status.conditions.iter().find(|c| c.kind == ConditionType::BudgetConfigured);
        let new = configured.filter(|now| !now.status && reason_seen(seen) != Some(now.reason.name()));
        if let Some(condition) = new {
            self.events.misconfigured(key, condition.reason.name(), &condition.message);
        }
        let ungrouped = [ConditionReason::MissingWorkloadReference, ConditionReason::MissingGroupLabel];
        let misconfigured = new.is_some_and(|condition| ungrouped.contains(&condition.reason));
        self.metrics.reconciled(status.scope, misconfigured);
    }
}

/// The budgets to write, and when.
#[derive(Default)]
struct StatusQueue {
    due: BTreeSet<(Instant, BudgetKey)>,
    budgets: HashMap<BudgetKey, Entry>,
    /// When budgets were written, oldest first.
    recent: VecDeque<(Instant, BudgetKey)>,
}

/// A budget that was written recently, is being written, or is queued.
struct Entry {
    due: Option<Instant>,
    written: Option<Instant>,
    writing: bool,
}

impl StatusQueue {
    fn changed(&mut self, Changed { budget: key, unsettled }: Changed, now: Instant) {
        let entry =
            self.budgets.entry(key.clone()).or_insert(Entry { due: None, written: None, writing: false });
        if entry.due.is_some() {
            return;
        }
        let soonest = now + if unsettled { SETTLE_DELAY } else { DEBOUNCE };
        let due = entry.written.map_or(soonest, |written| soonest.max(written + MIN_INTERVAL));
        entry.due = Some(due);
        // No second write while one is in progress: the older status could arrive last.
        if !entry.writing {
            self.due.insert((due, key));
        }
    }

    /// A commit has written the status. Later changes wait as after a write of this queue.
    fn committed(&mut self, key: BudgetKey, now: Instant) {
        let entry =
            self.budgets.entry(key.clone()).or_insert(Entry { due: None, written: None, writing: false });
        entry.written = Some(now);
        if let Some(due) = entry.due.as_mut() {
            let was = std::mem::replace(due, (*due).max(now + MIN_INTERVAL));
            if !entry.writing {
                self.due.remove(&(was, key.clone()));
                self.due.insert((*due, key.clone()));
            }
        }
        self.recent.push_back((now, key));
        self.forget(now);
    }

    /// Takes the next budget that is due.
    fn take(&mut self, now: Instant) -> Option<BudgetKey> {
        let first = self.due.first().filter(|(due, _)| *due <= now)?.clone();
        self.due.remove(&first);
        let (_, key) = first;
        let entry = self.budgets.get_mut(&key)?;
        entry.due = None;
        entry.writing = true;
        Some(key)
    }

    /// When the next budget is due.
    fn next(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    fn written(&mut self, key: BudgetKey, success: bool, now: Instant) {
        let Some(entry) = self.budgets.get_mut(&key) else { return };
        entry.writing = false;
        entry.written = Some(now);
        entry.due = match (success, entry.due) {
            (true, due) => due.map(|due| due.max(now + MIN_INTERVAL)),
            (false, _) => Some(now + PAUSE),
        };
        if let Some(due) = entry.due {
            self.due.insert((due, key.clone()));
        }
        self.recent.push_back((now, key));
        self.forget(now);
    }

    /// Forgets budgets that were written long ago: they may be written at once, like new budgets.
    fn forget(&mut self, now: Instant) {
        while let Some((written, key)) =
            self.recent.pop_front_if(|(written, _)| *written + MIN_INTERVAL <= now)
        {
            let idle =
                |entry: &Entry| entry.due.is_none() && !entry.writing && entry.written == Some(written);
            if self.budgets.get(&key).is_some_and(idle) {
                self.budgets.remove(&key);
            }
        }
    }
}

/// The reason of `BudgetConfigured` as it was last written.
fn reason_seen(status: &Value) -> Option<&str> {
    let conditions = status.get("conditions")?.as_array()?;
    let configured = conditions.iter().find(|c| c["type"] == ConditionType::BudgetConfigured.name())?;
    configured["reason"].as_str()
}

#[cfg(test)]
mod tests {
    use quorate_engine::basics::ObjectKey;
    use quorate_engine::facts::BudgetKind;

    use super::*;

    fn budget(name: &str) -> BudgetKey {
        BudgetKey { object: ObjectKey::new("inference", name), kind: BudgetKind::DisruptionBudget }
    }

    fn settled(name: &str) -> Changed {
        Changed { budget: budget(name), unsettled: false }
    }

    #[test]
    fn a_first_change_is_written_at_once_and_later_ones_together_within_a_second() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(settled("llm"), start);
        assert_eq!(queue.take(start), None, "more changes may come");
        assert_eq!(queue.take(start + DEBOUNCE), Some(budget("llm")));
        let written = start + DEBOUNCE * 2;
        queue.written(budget("llm"), true, written);
        for step in 1..8 {
            queue.changed(settled("llm"), written + DEBOUNCE * step);
        }
        assert_eq!(queue.next(), Some(written + MIN_INTERVAL));
        assert_eq!(queue.take(written + MIN_INTERVAL), Some(budget("llm")));
        assert_eq!(queue.take(written + MIN_INTERVAL), None, "once");
    }

    #[test]
    fn a_claim_and_its_settlement_are_written_together() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(Changed { budget: budget("llm"), unsettled: true }, start);
        assert_eq!(queue.take(start + DEBOUNCE), None, "the claim is about to be settled");
        queue.changed(settled("llm"), start + SETTLE_DELAY - DEBOUNCE / 2);
        assert_eq!(
            queue.take(start + SETTLE_DELAY),
            Some(budget("llm")),
            "and the status is still written within a second"
        );
        assert!(SETTLE_DELAY < Duration::from_secs(1));
        queue.written(budget("llm"), true, start + SETTLE_DELAY);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_status_that_a_commit_wrote_is_not_written_again_but_later_changes_are() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(settled("llm"), start);
        queue.committed(budget("llm"), start + DEBOUNCE / 2);
        assert_eq!(queue.take(start + DEBOUNCE), None, "the commit wrote it a moment ago");
        let later = start + DEBOUNCE / 2 + MIN_INTERVAL;
        assert_eq!(queue.take(later), Some(budget("llm")), "the commit may have been older than the change");
        queue.written(budget("llm"), true, later);
        queue.committed(budget("llm"), later + MIN_INTERVAL);
        queue.changed(settled("llm"), later + MIN_INTERVAL + DEBOUNCE);
        assert_eq!(queue.next(), Some(later + MIN_INTERVAL * 2), "as after a write");
    }

    #[test]
    fn no_budget_is_written_twice_at_once_and_no_change_is_lost() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(settled("llm"), start);
        queue.take(start + DEBOUNCE).expect("a budget that is due");
        queue.changed(settled("llm"), start + DEBOUNCE);
        assert_eq!(queue.take(start + PAUSE), None, "it is being written");
        queue.written(budget("llm"), true, start + PAUSE);
        assert_eq!(queue.take(start + PAUSE + MIN_INTERVAL), Some(budget("llm")));
        queue.written(budget("llm"), false, start + PAUSE * 3);
        assert_eq!(queue.next(), Some(start + PAUSE * 4), "a failed write is retried");
        assert_eq!(queue.take(start + PAUSE * 4), Some(budget("llm")));
        queue.written(budget("llm"), true, start + PAUSE * 5);
        queue.changed(settled("other"), start + PAUSE * 9);
        queue.take(start + PAUSE * 10).expect("the other");
        queue.written(budget("other"), true, start + PAUSE * 10);
        assert_eq!(queue.budgets.len(), 1, "budgets that were written long ago are forgotten");
    }
}
