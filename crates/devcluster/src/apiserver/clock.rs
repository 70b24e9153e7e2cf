//! The server's clock: the system clock, or one that a test controls.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// The server's source of the current time. Clones share the clock.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    offset: Arc<Mutex<SignedDuration>>,
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("now", &self.now()).finish()
    }
}

impl Clock {
    /// The system clock.
    pub fn system() -> Self {
        Self::from_source(Timestamp::now)
    }

    /// A clock that starts at `start` and follows tokio's time. A paused runtime stops it.
    ///
    /// Must be created inside a tokio runtime.
    pub fn following_tokio(start: Timestamp) -> Self {
        let began = tokio::time::Instant::now();
        Self::from_source(move || {
            let passed = SignedDuration::try_from(began.elapsed()).unwrap_or(SignedDuration::ZERO);
            start.saturating_add(passed).unwrap_or(start)
        })
    }

    /// A clock that reads `source` each time.
    pub fn from_source(source: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { source: Arc::new(source), offset: Arc::new(Mutex::new(SignedDuration::ZERO)) }
    }

    /// The current time, including all active steps.
    pub fn now(&self) -> Timestamp {
        let now = (self.source)();
        now.saturating_add(*self.offset.lock()).unwrap_or(now)
    }

    /// Moves the clock by `step`, which may be negative.
    pub(crate) fn step(&self, step: SignedDuration) {
        let mut offset = self.offset.lock();
        *offset = offset.saturating_add(step);
    }

    /// The current time as `metav1.Time` writes it: in whole seconds.
    pub(crate) fn now_text(&self) -> String {
        seconds_text(self.now())
    }

    /// `duration` from now, as `metav1.Time` writes it.
    pub(crate) fn text_after(&self, duration: Duration) -> String {
        let now = self.now();
        let step = SignedDuration::try_from(duration).unwrap_or(SignedDuration::ZERO);
        seconds_text(now.saturating_add(step).unwrap_or(now))
    }
}

/// A timestamp in whole seconds, as `metav1.Time` writes it.
pub(crate) fn seconds_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::Clock;
    use jiff::{SignedDuration, Timestamp};

    #[test]
    fn a_step_moves_the_clock_both_ways() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::from_source(move || start);
        clock.step(SignedDuration::from_secs(90));
        assert_eq!(clock.now_text(), "2026-01-01T00:01:30Z");
        clock.step(SignedDuration::from_secs(-90));
        assert_eq!(clock.now_text(), "2026-01-01T00:00:00Z");
    }
}
