//! The initial sync: complete when every watched kind has been listed once.

use std::sync::Arc;

use quorate_engine::ledger::Event;
use tokio::sync::watch;

use crate::actor::ReplicaHandle;

/// Counts the lists that are pending.
#[derive(Clone)]
pub(super) struct InitialSync {
    unseen: Arc<watch::Sender<usize>>,
}

/// A list that is pending until this is dropped.
pub(super) struct PendingList {
    unseen: Arc<watch::Sender<usize>>,
}

impl InitialSync {
    pub(super) fn new() -> Self {
        Self { unseen: Arc::new(watch::Sender::new(0)) }
    }

    /// Adds a pending list. Add all initial lists before the first one is dropped.
    pub(super) fn pending_list(&self) -> PendingList {
        self.unseen.send_modify(|unseen| *unseen += 1);
        PendingList { unseen: self.unseen.clone() }
    }

    /// Waits until at most `few` lists are pending.
    pub(super) async fn left(&self, few: usize) {
        // This cannot fail, because `self` owns the sender.
        let _ = self.unseen.subscribe().wait_for(|unseen| *unseen <= few).await;
    }

    /// Sends `Synced` to the actor when no list is pending.
    pub(super) async fn tell(self, replica: ReplicaHandle) {
        self.left(0).await;
        replica.send(Event::Synced).await;
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        self.unseen.send_modify(|unseen| *unseen -= 1);
    }
}
