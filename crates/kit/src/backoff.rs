//! How long to wait before trying again.

use std::time::Duration;

/// Waits that grow with every failure and start over after a success.
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

    /// Something went well.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Something failed: how long to wait now. Between half of what is due and all of it, by chance, so that many who
    /// failed together do not come back together.
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
