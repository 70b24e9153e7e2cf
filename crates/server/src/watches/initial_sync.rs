//! The initial sync: complete when every watched kind has been listed once.

use std::sync::Arc;

use quorate_engine::ledger::Event;
use tokio::sync::watch;

use crate::actor::ReplicaHandle;

/// Counts the lists that are pending.
#[derive(Clone)]
pub(super) struct InitialSync {
    pending: Arc<watch::Sender<usize>>,
}

/// A list that is pending until this is dropped.
pub(super) struct PendingList {
    pending: Arc<watch::Sender<usize>>,
}

impl InitialSync {
    pub(super) fn new() -> Self {
        Self { pending: Arc::new(watch::Sender::new(0)) }
    }

    /// Adds a pending list. Add all initial lists before the first one is dropped.
    pub(super) fn pending_list(&self) -> PendingList {
        self.pending.send_modify(|pending| *pending += 1);
        PendingList { pending: self.pending.clone() }
    }

    /// Waits until at most `limit` lists are pending.
    pub(super) async fn wait_until_at_most(&self, limit: usize) {
        // This cannot fail, because `self` owns the sender.
        let _ = self.pending.subscribe().wait_for(|pending| *pending <= limit).await;
    }

    /// Sends `Synced` to the actor when no list is pending.
    pub(super) async fn report_to(self, replica: ReplicaHandle) {
        self.wait_until_at_most(0).await;
        replica.send(Event::Synced).await;
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        self.pending.send_modify(|pending| *pending -= 1);
    }
}
