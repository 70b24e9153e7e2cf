//! The one clock of the process.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quorate_engine::basics::Time;

static START: LazyLock<(Instant, i64)> = LazyLock::new(|| {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
});

/// The time as it was when the process started, and what has passed since. Nobody can set this clock: a token does not
/// expire because somebody corrected the time of day.
pub(crate) fn now() -> Time {
    let (start, wall) = *START;
    Time(wall.saturating_add(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX)))
}
