//! Waits between retries.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Waits that grow with every failure and reset after a success.
///
/// The waits are those of `backon`. This type adds a reset, and that the waits never end.
#[derive(Debug)]
pub struct Backoff {
    waits: ExponentialBackoff,
    builder: ExponentialBuilder,
    longest: Duration,
}

impl Backoff {
    /// The first wait is about `first`, each next one twice as long, none longer than `longest`. Each wait is random
    /// between half and all of the nominal value, so that clients that failed together do not retry together.
    pub fn new(first: Duration, longest: Duration) -> Self {
        // The jitter of `backon` adds up to the whole wait.
        Self::of(Self::doubled(first / 2, longest / 2).with_jitter(), longest)
    }

    /// As [`Backoff::new`], but each wait has its nominal value.
    pub fn without_jitter(first: Duration, longest: Duration) -> Self {
        Self::of(Self::doubled(first, longest), longest)
    }

    fn doubled(first: Duration, longest: Duration) -> ExponentialBuilder {
        // `backon` does not limit the first wait.
        let first = first.min(longest);
        ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).without_max_times()
    }

    fn of(builder: ExponentialBuilder, longest: Duration) -> Self {
        Self { waits: builder.build(), builder, longest }
    }

    /// Resets the waits after a success.
    pub fn reset(&mut self) {
        self.waits = self.builder.build();
    }

    /// Counts a failure and returns how long to wait.
    pub fn failed(&mut self) -> Duration {
        self.waits.next().unwrap_or(self.longest)
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

    #[test]
    fn waits_without_jitter_are_exact() {
        let mut backoff = Backoff::without_jitter(Duration::from_millis(250), Duration::from_secs(3));
        for _ in 0..2 {
            for due in [250, 500, 1000, 2000, 3000, 3000] {
                assert_eq!(backoff.failed(), Duration::from_millis(due));
            }
            backoff.reset();
        }
    }

    #[test]
    fn the_first_wait_is_not_longer_than_the_longest() {
        let (first, longest) = (Duration::from_secs(5), Duration::from_secs(1));
        assert_eq!(Backoff::without_jitter(first, longest).failed(), longest);
        assert!(Backoff::new(first, longest).failed() <= longest);
    }

    #[test]
    fn waits_stay_at_the_limit_forever() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for _ in 0..10_000 {
            assert!(backoff.failed() <= Duration::from_secs(1));
        }
    }
}
