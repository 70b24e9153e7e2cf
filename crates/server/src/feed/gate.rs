//! When everything has been seen once.

use std::sync::Arc;

use quorate_engine::ledger::Event;
use tokio::sync::watch;

use crate::keeper::Keeper;

/// Counts what has not been seen yet.
#[derive(Clone)]
pub(super) struct Gate {
    unseen: Arc<watch::Sender<usize>>,
}

/// Something that has not been seen yet. It has been when this is dropped.
pub(super) struct Ticket {
    unseen: Arc<watch::Sender<usize>>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self { unseen: Arc::new(watch::Sender::new(0)) }
    }

    /// One more thing to see. All first tickets are to be taken before the first one is dropped.
    pub(super) fn ticket(&self) -> Ticket {
        self.unseen.send_modify(|unseen| *unseen += 1);
        Ticket { unseen: self.unseen.clone() }
    }

    /// Waits until only so many things are left.
    pub(super) async fn left(&self, few: usize) {
        // It cannot fail: the sender is here.
        let _ = self.unseen.subscribe().wait_for(|unseen| *unseen <= few).await;
    }

    /// Tells the keeper when everything has been seen.
    pub(super) async fn tell(self, keeper: Keeper) {
        self.left(0).await;
        keeper.tell(Event::Synced).await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.unseen.send_modify(|unseen| *unseen -= 1);
    }
}
