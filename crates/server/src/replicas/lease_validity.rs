//! Until when this process may decide.

use parking_lot::Mutex;
use quorate_kit::watch::Interruptions;
use tokio::sync::watch;

use super::RENEW_DEADLINE;
use crate::clock::Reading;

/// What the last renewal of the Lease allows this process.
pub(super) struct LeaseValidity {
    /// When the last renewal was sent; `None` if this process must not decide.
    renewed: Mutex<Option<Reading>>,
    /// How often the watches lost the API server.
    interruptions: Interruptions,
    /// The number of interruptions before the last renewal: since then, the store did not go back unnoticed.
    verified: watch::Sender<u64>,
}

impl LeaseValidity {
    pub(super) fn new(interruptions: Interruptions) -> Self {
        Self { renewed: Mutex::default(), interruptions, verified: watch::Sender::new(0) }
    }

    pub(super) fn interruptions(&self) -> &Interruptions {
        &self.interruptions
    }

    /// Whether the Lease was renewed recently, by every clock of this machine: the other processes went on while it was
    /// suspended.
    pub(super) fn is_current(&self) -> bool {
        self.renewed.lock().is_some_and(|renewed| Reading::now().most_since(renewed) < RENEW_DEADLINE)
    }

    /// Whether the Lease was renewed since the watches last lost the API server.
    pub(super) fn is_verified(&self) -> bool {
        *self.verified.borrow() >= self.interruptions.count()
    }

    /// Waits until the Lease was renewed since the watches last lost the API server.
    pub(super) async fn until_verified(&self) {
        // This cannot fail: `self` keeps the sender alive.
        let _ = self.verified.subscribe().wait_for(|verified| *verified >= self.interruptions.count()).await;
    }

    /// A renewal that was sent at this time succeeded; `interruptions` is their number before it was sent.
    pub(super) fn renewed(&self, sent: Reading, interruptions: u64) {
        *self.renewed.lock() = Some(sent);
        self.verified.send_replace(interruptions);
    }

    /// Stops to decide, for ever.
    pub(super) fn give_up(&self) {
        *self.renewed.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_machine_that_was_suspended_does_not_decide_until_the_next_renewal() {
        let validity = LeaseValidity::new(Interruptions::default());
        assert!(!validity.is_current(), "never renewed");
        validity.renewed(Reading::now(), 0);
        assert!(validity.is_current());
        validity.renewed(Reading::now().with_time_of_day_before(Duration::from_secs(11)), 0);
        assert!(!validity.is_current(), "by the time of day, the renewal was 11 s ago");
        validity.renewed(Reading::now(), 0);
        assert!(validity.is_current());
        validity.give_up();
        assert!(!validity.is_current());
    }
}
