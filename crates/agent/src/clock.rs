//! Time, as an argument.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the time of day comes from: the system, or somebody who shows what happens when that clock is set.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// As this tells it.
    pub fn from_fn(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(clock))
    }

    /// Since 1970.
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

/// A moment by both clocks of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Since the process started. Nobody can set this clock: schedules follow it.
    pub(crate) steady: Duration,
    /// The time of day in milliseconds since 1970, which anybody may set: conditions and Leases show it, and the
    /// kubelet's starts of containers are told in it.
    pub(crate) wall: i64,
}

impl Now {
    /// The time of day in whole seconds, as conditions have it.
    pub(crate) fn second(self) -> i64 {
        self.wall.div_euclid(1000)
    }

    /// How far the time of day was moved since an earlier moment, in milliseconds.
    pub(crate) fn moved_since(self, earlier: Self) -> i64 {
        let passed = self.steady.saturating_sub(earlier.steady);
        let passed = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        self.wall.saturating_sub(earlier.wall).saturating_sub(passed)
    }
}
