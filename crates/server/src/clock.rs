//! The clock of the process: the time of day of the API server, which never goes back.
//!
//! The process writes times that other processes read, and reads times that others wrote: of pods, and of groups that
//! vanished. The API server writes most of them, so its clock is the reference. The clock of this machine may be wrong
//! when the process starts, and be corrected later.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorate_engine::basics::Time;

/// The clocks agree if they differ by less than this. Times of the API server are whole seconds, rounded down, and its
/// answer takes a moment.
const TOLERANCE: Duration = Duration::from_secs(2);

/// An instant, and its time of day in milliseconds.
static START: OnceLock<(Instant, i64)> = OnceLock::new();

fn time_of_day() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

/// The time of day when the clock was set, plus the monotonic time since then. Setting the system clock does not change
/// it, so a correction of the time of day does not make a token expire.
pub(crate) fn now() -> Time {
    let (start, at_start) = *START.get_or_init(|| (Instant::now(), time_of_day()));
    Time(at_start.saturating_add(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX)))
}

/// The clocks of this machine at one moment.
///
/// Monotonic time stands still while the machine is suspended, or while a virtual machine is paused. The time of day goes on,
/// or is corrected afterwards. But it may also be set back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    monotonic: Instant,
    time_of_day: SystemTime,
}

impl Reading {
    pub(crate) fn now() -> Self {
        Self { monotonic: Instant::now(), time_of_day: SystemTime::now() }
    }

    /// The same moment, with a time of day that lies this much before.
    #[cfg(test)]
    pub(crate) fn with_time_of_day_before(self, by: Duration) -> Self {
        Self { time_of_day: self.time_of_day - by, ..self }
    }

    /// The time since an earlier reading, by the clock that shows more: use this where too much is safe.
    pub(crate) fn most_since(self, earlier: Self) -> Duration {
        let by_day = self.time_of_day.duration_since(earlier.time_of_day).unwrap_or_default();
        self.monotonic.saturating_duration_since(earlier.monotonic).max(by_day)
    }
}

/// Sets the clock by a time that the API server wrote just now, unless it was read or set before. Returns by how many
/// seconds the clock of this machine is ahead, if the two do not agree.
pub(crate) fn set_by(server: Time) -> Option<i64> {
    let here = time_of_day();
    let there = reference(here, server.0);
    let set = START.set((Instant::now(), there)).is_ok();
    (set && here != there).then(|| (here - there) / 1000)
}

/// The time of day, from the clock of this machine and a time that the API server wrote. If they agree, that of this
/// machine is more precise.
fn reference(here: i64, server: i64) -> i64 {
    let tolerance = i64::try_from(TOLERANCE.as_millis()).unwrap_or(i64::MAX);
    // On average, half a second was cut off.
    let there = server.saturating_add(500);
    if here.abs_diff(there) <= tolerance.unsigned_abs() { here } else { there }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_api_server_is_the_reference() {
        const NOW: i64 = 1_800_000_000_000;
        const HOUR: i64 = 3_600_000;
        for (here, expected, why) in [
            (NOW + 700, NOW + 700, "they agree"),
            (NOW + 2_400, NOW + 2_400, "a slow answer"),
            (NOW - 1_400, NOW - 1_400, "the clocks differ a little"),
            (NOW - HOUR, NOW + 500, "this machine is behind"),
            (NOW + HOUR, NOW + 500, "this machine is ahead"),
            (0, NOW + 500, "this machine has no clock"),
        ] {
            assert_eq!(reference(here, NOW), expected, "{why}");
        }
    }

    #[test]
    fn the_clock_that_shows_more_counts() {
        let (instant, day) = (Instant::now(), SystemTime::now());
        let seconds = Duration::from_secs;
        let reading = |monotonic, time_of_day| Reading { monotonic, time_of_day };
        let start = reading(instant, day);
        for (later, most, why) in [
            (reading(instant + seconds(3), day + seconds(3)), 3, "both go on"),
            (reading(instant + seconds(1), day + seconds(600)), 600, "the machine was suspended"),
            (reading(instant + seconds(4), day - seconds(3600)), 4, "the time of day was set back"),
        ] {
            assert_eq!(later.most_since(start), seconds(most), "{why}");
        }
    }

    #[test]
    fn the_clock_is_set_once_and_does_not_go_back() {
        let before = now();
        assert_eq!(set_by(Time(0)), None, "it was read before");
        assert!(now() >= before && now().since(before) < Duration::from_secs(60));
    }
}
