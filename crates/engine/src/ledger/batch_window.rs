//! Those who ask at one queue at about the same time.
//!
//! Requests come in storms: whoever drains many nodes asks again as soon as an answer has come, and the API server
//! carries out what was admitted in steps, so that the next requests come together. The first of them would be written
//! of alone, for the price of all. In a storm it waits for a lull; who asks now and then, or for the first time, never
//! does.

use std::time::Duration;

use crate::basics::Time;
use crate::ledger::Settings;

/// For so long after a write that told of several requests there is a storm.
const BURST: Duration = Duration::from_millis(400);
/// Nobody waits for more than so many lulls.
const MAX_PAUSES: u32 = 3;

/// Who waits at a queue for others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BatchWindow {
    /// When the first and the last of them came.
    waiting: Option<(Time, Time)>,
    /// When a write last told of several.
    several_at: Option<Time>,
}

impl BatchWindow {
    /// Somebody comes.
    pub(super) fn add(&mut self, now: Time) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    /// Nobody waits any more.
    pub(super) fn clear(&mut self) {
        self.waiting = None;
    }

    /// So many were written of.
    pub(super) fn wrote(&mut self, requests: usize, now: Time) {
        if requests > 1 {
            self.several_at = Some(now);
        }
    }

    /// How long those who are here wait for others, if nobody else comes.
    pub(super) fn closes_at(&self, settings: &Settings) -> Option<Time> {
        let (first, last) = self.waiting?;
        self.several_at.filter(|several| first < several.after(BURST))?;
        Some(last.after(settings.batch_pause).min(first.after(settings.batch_pause * MAX_PAUSES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write, at that time, that told of so many requests.
    type Write = (usize, i64);

    fn window(writes: &[Write], requests: &[i64]) -> BatchWindow {
        let mut window = BatchWindow::default();
        writes.iter().for_each(|(requests, at)| window.wrote(*requests, Time(*at)));
        requests.iter().for_each(|at| window.add(Time(*at)));
        window
    }

    #[test]
    fn in_a_storm_a_request_waits_until_nobody_comes_but_not_for_ever() {
        let settings = Settings { batch_pause: Duration::from_millis(8), ..Settings::new("a") };
        let waits = |writes: &[Write], requests: &[i64]| {
            window(writes, requests).closes_at(&settings).map(|until| until.0)
        };
        assert_eq!(waits(&[], &[50, 51, 52]), None, "the first time they come");
        assert_eq!(waits(&[(1, 0)], &[50]), None, "one after the other");
        assert_eq!(waits(&[(2, 0)], &[]), None, "nobody is here");
        assert_eq!(waits(&[(2, 0)], &[50]), Some(58));
        assert_eq!(waits(&[(2, 0), (1, 10)], &[50]), Some(58), "the first of many may have been alone");
        assert_eq!(waits(&[(2, 0)], &[50, 55]), Some(63), "somebody else came");
        assert_eq!(waits(&[(2, 0)], &[50, 57, 64, 71]), Some(74), "others do not end");
        assert_eq!(waits(&[(2, 0)], &[400]), None, "the storm is over");
    }

    #[test]
    fn whoever_was_written_of_waits_no_more() {
        let settings = Settings::new("a");
        let mut window = window(&[(2, 0)], &[50]);
        assert!(window.closes_at(&settings).is_some());
        window.clear();
        assert_eq!(window.closes_at(&settings), None);
    }
}
