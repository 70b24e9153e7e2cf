//! How long requests wait for others, so that one write records all of them.
//!
//! Requests come in bursts: a client that drains many nodes sends the next request as soon as it has an answer, and the API
//! server carries out admitted requests in steps, so that the next ones arrive together. The first of them would be written
//! alone, at the price of all. In a burst it waits until no request has arrived for a moment. Outside of bursts no request
//! waits.

use std::time::Duration;

use crate::basics::Time;
use crate::ledger::Settings;

/// How long a burst lasts after a write that recorded several requests.
const BURST: Duration = Duration::from_millis(400);
/// The maximum number of pauses that a request waits.
const MAX_PAUSES: u32 = 3;

/// The batch window of one commit queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BatchWindow {
    /// When the first and the last of the waiting requests arrived.
    waiting: Option<(Time, Time)>,
    /// When a write last recorded several requests.
    several_at: Option<Time>,
}

impl BatchWindow {
    /// A request arrives.
    pub(super) fn add(&mut self, now: Time) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    /// No request waits any more.
    pub(super) fn clear(&mut self) {
        self.waiting = None;
    }

    /// A write records this many requests.
    pub(super) fn wrote(&mut self, requests: usize, now: Time) {
        if requests > 1 {
            self.several_at = Some(now);
        }
    }

    /// When the waiting requests are written, if no other request arrives.
    pub(super) fn closes_at(&self, settings: &Settings) -> Option<Time> {
        let (first, last) = self.waiting?;
        self.several_at.filter(|several| first < several.after(BURST))?;
        Some(last.after(settings.batch_pause).min(first.after(settings.batch_pause * MAX_PAUSES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of requests of a write, and its time.
    type Write = (usize, i64);

    fn window(writes: &[Write], requests: &[i64]) -> BatchWindow {
        let mut window = BatchWindow::default();
        writes.iter().for_each(|(requests, at)| window.wrote(*requests, Time(*at)));
        requests.iter().for_each(|at| window.add(Time(*at)));
        window
    }

    #[test]
    fn in_a_burst_a_request_waits_until_no_other_arrives_but_not_forever() {
        let settings = Settings { batch_pause: Duration::from_millis(8), ..Settings::new("a") };
        let waits = |writes: &[Write], requests: &[i64]| {
            window(writes, requests).closes_at(&settings).map(|until| until.0)
        };
        assert_eq!(waits(&[], &[50, 51, 52]), None, "the first burst");
        assert_eq!(waits(&[(1, 0)], &[50]), None, "one after the other");
        assert_eq!(waits(&[(2, 0)], &[]), None, "no request waits");
        assert_eq!(waits(&[(2, 0)], &[50]), Some(58));
        assert_eq!(waits(&[(2, 0), (1, 10)], &[50]), Some(58), "the first of many may have been alone");
        assert_eq!(waits(&[(2, 0)], &[50, 55]), Some(63), "another request arrived");
        assert_eq!(waits(&[(2, 0)], &[50, 57, 64, 71]), Some(74), "requests keep arriving");
        assert_eq!(waits(&[(2, 0)], &[400]), None, "the burst is over");
    }

    #[test]
    fn a_request_that_is_taken_out_does_not_wait() {
        let settings = Settings::new("a");
        let mut window = window(&[(2, 0)], &[50]);
        assert!(window.closes_at(&settings).is_some());
        window.clear();
        assert_eq!(window.closes_at(&settings), None);
    }
}
