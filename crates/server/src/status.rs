//! The status of budgets: what readers see. All processes know it, the holder writes it.
//!
//! Keys are queued, not values: what is written is what holds when it is written. It holds counters, groups and
//! conditions, and nothing of the ledger, so it never stands in the way of a commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::Error;
use quorate_engine::facts::BudgetKey;
use quorate_engine::status::{ConditionType, Status, reason};
use quorate_intake::budget;
use quorate_kit::Plain;
use quorate_kit::election::Election;
use serde_json::Value;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::calls::Calls;
use crate::clock;
use crate::events::Events;
use crate::keeper::Keeper;
use crate::metrics::Metrics;
use crate::stored::Stored;

/// Changes come in bursts: a moment later one write tells of all of them.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// How many are written at once: after a node's loss many change together.
const AT_ONCE: usize = 16;

/// After a write that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes statuses.
pub(crate) struct Writer {
    pub(crate) keeper: Keeper,
    pub(crate) calls: Arc<Calls>,
    pub(crate) stored: Arc<Stored>,
    pub(crate) election: Arc<Election>,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
}

impl Writer {
    /// Writes the status of every budget that changes while this process is the holder, until nobody tells of changes
    /// any more. A new holder is told of all of them.
    pub(crate) async fn run(self, mut changed: mpsc::UnboundedReceiver<BTreeSet<BudgetKey>>) {
        let mut due = BTreeSet::new();
        loop {
            if due.is_empty() {
                match changed.recv().await {
                    Some(keys) => due.extend(keys),
                    None => return,
                }
            }
            tokio::time::sleep(DEBOUNCE).await;
            while let Ok(keys) = changed.try_recv() {
                due.extend(keys);
            }
            let keys = std::mem::take(&mut due);
            let outcomes = futures::stream::iter(keys).map(|key| async {
                let written = self.write(&key).await;
                (key, written)
            });
            let mut outcomes = std::pin::pin!(outcomes.buffer_unordered(AT_ONCE));
            while let Some((key, written)) = outcomes.next().await {
                if let Err(error) = written {
                    warn!(budget = %key, error = %Plain(&error), "cannot write the status");
                    due.insert(key);
                }
            }
            if !due.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn write(&self, key: &BudgetKey) -> Result<(), Error> {
        let Some(status) = self.keeper.status(key.clone()).await else { return Ok(()) };
        let Some(seen) = self.stored.status(key) else { return Ok(()) };
        let Some(patch) = budget::status_patch(key.front, &seen, &status, clock::now()) else {
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
        self.tell_trouble(key, &seen, &status);
        Ok(())
    }

    /// Tells people that a budget cannot do what it was written for, when that begins.
    fn tell_trouble(&self, key: &BudgetKey, seen: &Value, status: &Status) {
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

/// The reason of `BudgetConfigured` as it was last written.
fn reason_seen(status: &Value) -> Option<&str> {
    let conditions = status.get("conditions")?.as_array()?;
    let configured = conditions.iter().find(|c| c["type"] == ConditionType::BudgetConfigured.name())?;
    configured["reason"].as_str()
}
