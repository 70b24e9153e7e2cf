//! The clock of the process.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quorate_engine::basics::Time;

static START: LazyLock<(Instant, i64)> = LazyLock::new(|| {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
});

/// The wall time when the process started, plus the monotonic time since then. Setting the system clock does not change
/// it, so a correction of the time of day does not make a token expire.
pub(crate) fn now() -> Time {
    let (start, wall) = *START;
    Time(wall.saturating_add(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX)))
}
