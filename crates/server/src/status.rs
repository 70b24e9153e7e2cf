//! The status of budgets: what readers see. All processes know it, the holder writes it.
//!
//! Keys are queued, not values: what is written is what holds when it is written. It holds counters, groups and
//! conditions, and nothing of the ledger, so it never stands in the way of a commit. The holder's own commits tell of
//! the status too: while there are some, nothing is written here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::Error;
use quorate_engine::facts::BudgetKey;
use quorate_engine::status::{ConditionType, Status, reason};
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

/// Changes come in bursts: a moment later one write tells of all of them.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// What was admitted is carried out, seen and settled within this time, as a rule: one write tells of all of that, and
/// readers still see the truth within a second.
const SETTLES: Duration = Duration::from_millis(700);

/// While a budget changes all the time it is written this often: readers see the truth within a second, and whoever
/// evicts does not pay for a reader at each step.
const APART: Duration = Duration::from_millis(800);

/// How many are written at once: after a node's loss many change together.
const AT_ONCE: usize = 16;

/// After a write that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A budget whose status may have changed.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) budget: BudgetKey,
    /// Something was admitted that the pods do not show yet.
    pub(crate) unsettled: bool,
}

/// What is to be known of statuses.
#[derive(Clone, Debug)]
pub(crate) enum StatusChange {
    /// These may have changed.
    Changed(Vec<Changed>),
    /// A commit has told of this one as it was a moment ago; whether it has groups.
    Written { budget: BudgetKey, groups: bool },
}

/// Writes statuses.
pub(crate) struct Writer {
    pub(crate) replica: ReplicaHandle,
    pub(crate) calls: Arc<Calls>,
    pub(crate) raw_budgets: Arc<RawBudgets>,
    pub(crate) election: Arc<Election>,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
}

impl Writer {
    /// Writes the status of every budget that changes while this process is the holder, until nobody tells of changes
    /// any more. A new holder is told of all of them.
    pub(crate) async fn run(self, mut news: mpsc::UnboundedReceiver<StatusChange>) {
        let mut queue = StatusQueue::default();
        let mut writing = FuturesUnordered::new();
        loop {
            while writing.len() < AT_ONCE
                && let Some(key) = queue.take(Instant::now())
            {
                writing.push(self.attempt(key));
            }
            let next = queue.next().filter(|_| writing.len() < AT_ONCE);
            tokio::select! {
                news = news.recv() => match news {
                    Some(StatusChange::Changed(budgets)) => {
                        budgets.into_iter().for_each(|budget| queue.changed(budget, Instant::now()));
                    }
                    Some(StatusChange::Written { budget, groups }) => {
                        queue.committed(budget, Instant::now());
                        self.metrics.reconciled(groups, false);
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
        // Right before the write: the lease may have been lost while waiting.
        if !self.election.is_held() {
            return Ok(());
        }
        match self.calls.write_status(key, "application/merge-patch+json", &patch).await {
            Ok(_) => debug!(budget = %key, "status written"),
            // Gone: there is nothing to tell any more.
            Err(Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(error),
        }
        self.report_trouble(key, &seen, &status);
        Ok(())
    }

    /// Tells people that a budget cannot do what it was written for, when that begins.
    fn report_trouble(&self, key: &BudgetKey, seen: &Value, status: &Status) {
        let configured = status.conditions.iter().find(|c| c.kind == ConditionType::BudgetConfigured);
        let news = configured.filter(|now| !now.status && reason_seen(seen) != Some(now.reason));
        if let Some(condition) = news {
            self.events.misconfigured(key, condition.reason, &condition.message);
        }
        let ungrouped = [reason::MISSING_WORKLOAD_REFERENCE, reason::MISSING_GROUP_LABEL];
        let misconfigured = news.is_some_and(|condition| ungrouped.contains(&condition.reason));
        self.metrics.reconciled(!status.groups.is_empty(), misconfigured);
    }
}

/// Which budgets are to be written, and when.
#[derive(Default)]
struct StatusQueue {
    due: BTreeSet<(Instant, BudgetKey)>,
    budgets: HashMap<BudgetKey, Entry>,
    /// When budgets were written, the oldest first.
    recent: VecDeque<(Instant, BudgetKey)>,
}

/// What is known of a budget that was written lately, is being written, or is to be.
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
        let soonest = now + if unsettled { SETTLES } else { DEBOUNCE };
        let due = entry.written.map_or(soonest, |written| soonest.max(written + APART));
        entry.due = Some(due);
        // While it is being written nobody else may: what is older would come last.
        if !entry.writing {
            self.due.insert((due, key));
        }
    }

    /// Others told of it. What has changed since is told as after a write of our own.
    fn committed(&mut self, key: BudgetKey, now: Instant) {
        let entry =
            self.budgets.entry(key.clone()).or_insert(Entry { due: None, written: None, writing: false });
        entry.written = Some(now);
        if let Some(due) = entry.due.as_mut() {
            let was = std::mem::replace(due, (*due).max(now + APART));
            if !entry.writing {
                self.due.remove(&(was, key.clone()));
                self.due.insert((*due, key.clone()));
            }
        }
        self.recent.push_back((now, key));
        self.forget(now);
    }

    /// The next one that is due.
    fn take(&mut self, now: Instant) -> Option<BudgetKey> {
        let first = self.due.first().filter(|(due, _)| *due <= now)?.clone();
        self.due.remove(&first);
        let (_, key) = first;
        let entry = self.budgets.get_mut(&key)?;
        entry.due = None;
        entry.writing = true;
        Some(key)
    }

    /// When one is due.
    fn next(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    fn written(&mut self, key: BudgetKey, success: bool, now: Instant) {
        let Some(entry) = self.budgets.get_mut(&key) else { return };
        entry.writing = false;
        entry.written = Some(now);
        entry.due = match (success, entry.due) {
            (true, due) => due.map(|due| due.max(now + APART)),
            (false, _) => Some(now + PAUSE),
        };
        if let Some(due) = entry.due {
            self.due.insert((due, key.clone()));
        }
        self.recent.push_back((now, key));
        self.forget(now);
    }

    /// Whatever was written long ago may be written at once, as what was never written.
    fn forget(&mut self, now: Instant) {
        while let Some((written, key)) = self.recent.pop_front_if(|(written, _)| *written + APART <= now) {
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
    fn a_first_change_is_told_at_once_and_many_within_a_second() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(settled("llm"), start);
        assert_eq!(queue.take(start), None, "more may come");
        assert_eq!(queue.take(start + DEBOUNCE), Some(budget("llm")));
        let written = start + DEBOUNCE * 2;
        queue.written(budget("llm"), true, written);
        for step in 1..8 {
            queue.changed(settled("llm"), written + DEBOUNCE * step);
        }
        assert_eq!(queue.next(), Some(written + APART));
        assert_eq!(queue.take(written + APART), Some(budget("llm")));
        assert_eq!(queue.take(written + APART), None, "once");
    }

    #[test]
    fn what_is_about_to_be_settled_is_told_once() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(Changed { budget: budget("llm"), unsettled: true }, start);
        assert_eq!(queue.take(start + DEBOUNCE), None, "the claim is about to go");
        queue.changed(settled("llm"), start + SETTLES - DEBOUNCE / 2);
        assert_eq!(
            queue.take(start + SETTLES),
            Some(budget("llm")),
            "and it is told within a second all the same"
        );
        assert!(SETTLES < Duration::from_secs(1));
        queue.written(budget("llm"), true, start + SETTLES);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn what_a_commit_has_told_is_not_told_again_but_what_comes_later_is() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(settled("llm"), start);
        queue.committed(budget("llm"), start + DEBOUNCE / 2);
        assert_eq!(queue.take(start + DEBOUNCE), None, "it was told a moment ago");
        let later = start + DEBOUNCE / 2 + APART;
        assert_eq!(queue.take(later), Some(budget("llm")), "the commit may have been older than the change");
        queue.written(budget("llm"), true, later);
        queue.committed(budget("llm"), later + APART);
        queue.changed(settled("llm"), later + APART + DEBOUNCE);
        assert_eq!(queue.next(), Some(later + APART * 2), "as after a write");
    }

    #[test]
    fn nothing_is_written_twice_at_once_nor_forgotten() {
        let mut queue = StatusQueue::default();
        let start = Instant::now();
        queue.changed(settled("llm"), start);
        queue.take(start + DEBOUNCE).expect("one that is due");
        queue.changed(settled("llm"), start + DEBOUNCE);
        assert_eq!(queue.take(start + PAUSE), None, "it is being written");
        queue.written(budget("llm"), true, start + PAUSE);
        assert_eq!(queue.take(start + PAUSE + APART), Some(budget("llm")));
        queue.written(budget("llm"), false, start + PAUSE * 3);
        assert_eq!(queue.next(), Some(start + PAUSE * 4), "what failed is tried again");
        assert_eq!(queue.take(start + PAUSE * 4), Some(budget("llm")));
        queue.written(budget("llm"), true, start + PAUSE * 5);
        queue.changed(settled("other"), start + PAUSE * 9);
        queue.take(start + PAUSE * 10).expect("the other");
        queue.written(budget("other"), true, start + PAUSE * 10);
        assert_eq!(queue.budgets.len(), 1, "what was written long ago is forgotten");
    }
}
