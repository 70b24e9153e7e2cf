//! The status of budgets: what readers see.
//!
//! Keys are queued, not values: what is written is what holds when it is written. It holds counters, groups and
//! conditions, and nothing of the ledger, so it never stands in the way of a commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Error;
use quorate_engine::facts::BudgetKey;
use quorate_intake::budget;
use quorate_kit::Plain;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::calls::Calls;
use crate::clock;
use crate::keeper::Keeper;
use crate::stored::Stored;

/// Changes come in bursts: a moment later one write tells of all of them.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// After a write that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes the status of every budget that changes, until nobody tells of changes any more.
pub(crate) async fn run(
    mut changed: mpsc::UnboundedReceiver<BTreeSet<BudgetKey>>,
    keeper: Keeper,
    calls: Arc<Calls>,
    stored: Arc<Stored>,
) {
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
        for key in std::mem::take(&mut due) {
            if let Err(error) = write(&key, &keeper, &calls, &stored).await {
                warn!(budget = %key, error = %Plain(&error), "cannot write the status");
                due.insert(key);
            }
        }
        if !due.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn write(key: &BudgetKey, keeper: &Keeper, calls: &Calls, stored: &Stored) -> Result<(), Error> {
    let Some(status) = keeper.status(key.clone()).await else { return Ok(()) };
    let Some(seen) = stored.status(&key.object) else { return Ok(()) };
    let Some(patch) = budget::status_patch(&seen, &status, clock::now()) else { return Ok(()) };
    match calls.write_status(&key.object, "application/merge-patch+json", &patch).await {
        Ok(_) => debug!(budget = %key, "status written"),
        // Gone: there is nothing to tell any more.
        Err(Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
