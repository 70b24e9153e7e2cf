//! Limits the number of open connections.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Two pools of slots. Targets whose last probe timed out have a pool of their own, so hanging targets delay only each
/// other.
#[derive(Clone)]
pub(super) struct ProbeSlots {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl ProbeSlots {
    /// Splits the slots: a quarter for hanging targets, the rest for all others.
    pub(super) fn new(slots: usize) -> Self {
        let slow = (slots / 4).max(1);
        Self {
            quick: Arc::new(Semaphore::new(slots.saturating_sub(slow).max(1))),
            slow: Arc::new(Semaphore::new(slow)),
        }
    }

    /// Waits for a free slot.
    pub(super) async fn acquire(&self, hangs: bool) -> Option<SemaphorePermit<'_>> {
        let pool = if hangs { &self.slow } else { &self.quick };
        // The semaphores are never closed, so this is never `None`.
        pool.acquire().await.ok()
    }
}
