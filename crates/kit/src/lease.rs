//! The Leases of other processes, as this process observes them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// A Lease as last read, and when it was last renewed by the clock of this process.
///
/// A holder is alive while its Lease changes. The renewal time in the Lease is only compared with the previous one: it
/// is from the clock of another machine, which may be wrong.
///
/// `T` is an instant of a clock that never goes back.
#[derive(Clone, Debug)]
pub struct ObservedLease<T> {
    holder: Option<String>,
    renew_time: Option<MicroTime>,
    since: T,
}

impl<T: Copy> ObservedLease<T> {
    /// A Lease that is read for the first time. It counts as renewed at `since`.
    pub fn new(holder: Option<&str>, renew_time: Option<&MicroTime>, since: T) -> Self {
        Self { holder: holder.map(str::to_owned), renew_time: renew_time.cloned(), since }
    }

    /// Takes the Lease as read at `now`; returns when it was last renewed. Another holder or renewal time is a renewal.
    pub fn read(&mut self, holder: Option<&str>, renew_time: Option<&MicroTime>, now: T) -> T {
        if self.holder.as_deref() != holder || self.renew_time.as_ref() != renew_time {
            *self = Self::new(holder, renew_time, now);
        }
        self.since
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn wall(text: &str) -> MicroTime {
        MicroTime(format!("2026-11-15T{text}Z").parse().unwrap())
    }

    #[test]
    fn a_lease_ages_by_the_clock_of_the_observer_until_it_changes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut lease = ObservedLease::new(Some("a"), Some(&wall("10:00:00")), at(0));
        // What is read, when, and how old the renewal is then.
        for (holder, renewed, now, age, why) in [
            (Some("a"), Some("10:00:00"), 0, 0, "just read"),
            (Some("a"), Some("10:00:00"), 7, 7, "the same"),
            (Some("a"), Some("10:00:00"), 20, 20, "still the same"),
            (Some("a"), Some("10:00:02"), 21, 0, "renewed"),
            (Some("a"), Some("10:00:02"), 25, 4, "the same"),
            (Some("a"), Some("09:00:00"), 26, 0, "the clock of the holder went back"),
            (Some("a"), Some("23:59:59"), 28, 0, "the clock of the holder is ahead"),
            (Some("a"), Some("23:59:59"), 60, 32, "and it does not live longer for that"),
            (Some("b"), Some("23:59:59"), 61, 0, "another holder"),
            (None, Some("23:59:59"), 62, 0, "released"),
            (None, None, 63, 0, "never renewed"),
            (None, None, 65, 2, "the same"),
        ] {
            let since = lease.read(holder, renewed.map(wall).as_ref(), at(now));
            assert_eq!(at(now) - since, Duration::from_secs(age), "{why}");
        }
    }

    #[test]
    fn a_lease_may_count_as_renewed_before_it_was_read() {
        let mut lease = ObservedLease::new(Some("a"), None, -40);
        assert_eq!(lease.read(Some("a"), None, 5), -40);
        assert_eq!(lease.read(Some("a"), Some(&wall("10:00:00")), 6), 6);
    }
}
