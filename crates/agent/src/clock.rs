//! Clocks. Functions take the time as an argument, so that tests can set it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Source of the wall clock time: the system, or a test that sets the clock.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// Takes the time from a function.
    pub fn from_fn(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(clock))
    }

    /// Milliseconds since 1970.
    pub(crate) fn milliseconds(&self) -> i64 {
        let since = (self.0)().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::from_fn(SystemTime::now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

/// The present time by the steady clock and by the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Time since the process started. This clock cannot be set, so schedules use it.
    pub(crate) steady: Duration,
    /// Wall clock time in milliseconds since 1970. It may jump. Conditions, Leases and the container start times that
    /// the kubelet reports use it.
    pub(crate) wall: i64,
}

impl Now {
    /// The wall clock time in whole seconds, as in conditions.
    pub(crate) fn second(self) -> i64 {
        self.wall.div_euclid(1000)
    }

    /// How far the wall clock jumped since an earlier time, in milliseconds; negative if it was set back.
    pub(crate) fn moved_since(self, earlier: Self) -> i64 {
        let passed = self.steady.saturating_sub(earlier.steady);
        let passed = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        self.wall.saturating_sub(earlier.wall).saturating_sub(passed)
    }
}
