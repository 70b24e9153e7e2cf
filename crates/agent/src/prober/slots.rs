//! Places for open connections.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Two lanes. Whoever did not answer the last time waits among its like, so that targets that hang hold up only each
/// other.
#[derive(Clone)]
pub(super) struct ProbeSlots {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl ProbeSlots {
    /// So many places in all; a quarter of them for those that hang.
    pub(super) fn new(places: usize) -> Self {
        let slow = (places / 4).max(1);
        Self {
            quick: Arc::new(Semaphore::new(places.saturating_sub(slow).max(1))),
            slow: Arc::new(Semaphore::new(slow)),
        }
    }

    /// Waits for a place.
    pub(super) async fn acquire(&self, hangs: bool) -> Option<SemaphorePermit<'_>> {
        let lane = if hangs { &self.slow } else { &self.quick };
        // Nobody closes them.
        lane.acquire().await.ok()
    }
}
