//! Waits between retries.

use std::time::Duration;

/// Waits that grow with every failure and reset after a success.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// The first wait is about `first`, each next one twice as long, none longer than `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Resets the waits after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and returns how long to wait. The wait is random between half and all of the nominal value, so
    /// that clients that failed together do not retry together.
    pub fn failed(&mut self) -> Duration {
        let due = self.first.saturating_mul(1 << self.failures.min(20)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        due.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for due in [100, 200, 400, 800, 1000, 1000] {
            let wait = backoff.failed();
            assert!((due / 2..=due).contains(&wait.as_millis()), "{wait:?}, due {due} ms");
        }
        backoff.reset();
        assert!(backoff.failed().as_millis() <= 100);
    }
}
