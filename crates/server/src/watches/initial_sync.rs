//! When everything has been seen once.

use std::sync::Arc;

use quorate_engine::ledger::Event;
use tokio::sync::watch;

use crate::actor::ReplicaHandle;

/// Counts what has not been seen yet.
#[derive(Clone)]
pub(super) struct InitialSync {
    unseen: Arc<watch::Sender<usize>>,
}

/// Something that has not been seen yet. It has been when this is dropped.
pub(super) struct PendingList {
    unseen: Arc<watch::Sender<usize>>,
}

impl InitialSync {
    pub(super) fn new() -> Self {
        Self { unseen: Arc::new(watch::Sender::new(0)) }
    }

    /// One more thing to see. All first tickets are to be taken before the first one is dropped.
    pub(super) fn pending_list(&self) -> PendingList {
        self.unseen.send_modify(|unseen| *unseen += 1);
        PendingList { unseen: self.unseen.clone() }
    }

    /// Waits until only so many things are left.
    pub(super) async fn left(&self, few: usize) {
        // It cannot fail: the sender is here.
        let _ = self.unseen.subscribe().wait_for(|unseen| *unseen <= few).await;
    }

    /// Tells the keeper when everything has been seen.
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
