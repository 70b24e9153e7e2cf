//! Which revision etcd had at a time.

use std::time::Duration;

/// Readings of the revision, in their order.
#[derive(Debug, Default)]
pub(super) struct Revisions {
    /// A reading that was requested at this time or later has at least this revision.
    requested: Vec<(Duration, u64)>,
    /// At this time etcd had at least this revision.
    known: Vec<(Duration, u64)>,
}

impl Revisions {
    /// The revision was read: it is the one of some moment between the two times.
    pub(super) fn read(&mut self, requested: Duration, answered: Duration, revision: u64) {
        self.requested.push((requested, revision));
        self.seen(answered, revision);
    }

    /// A change of this revision was seen at this time.
    pub(super) fn seen(&mut self, at: Duration, revision: u64) {
        let (at, revision) = match self.known.last() {
            Some((time, known)) => (at.max(*time), revision.max(*known)),
            None => (at, revision),
        };
        self.known.push((at, revision));
    }

    /// The latest revision that was read.
    pub(super) fn last(&self) -> Option<u64> {
        self.requested.last().map(|(_, revision)| *revision)
    }

    /// A revision that etcd had at this time, or had before.
    pub(super) fn before(&self, time: Duration) -> u64 {
        let after = self.known.partition_point(|(at, _)| *at <= time);
        after.checked_sub(1).and_then(|last| self.known.get(last)).map_or(0, |(_, revision)| *revision)
    }

    /// A revision that etcd had at this time, or got after it.
    pub(super) fn after(&self, time: Duration) -> u64 {
        let first = self.requested.partition_point(|(requested, _)| *requested < time);
        self.requested.get(first).map_or(u64::MAX, |(_, revision)| *revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_of_a_request_never_becomes_shorter() {
        let at = Duration::from_millis;
        let mut revisions = Revisions::default();
        revisions.read(at(10), at(12), 5);
        revisions.seen(at(15), 8);
        // A change is seen after a later one was read.
        revisions.read(at(20), at(22), 9);
        revisions.seen(at(30), 7);
        revisions.read(at(40), at(45), 12);
        for (time, before, after) in
            [(0, 0, 5), (11, 0, 9), (12, 5, 9), (16, 8, 9), (20, 8, 9), (30, 9, 12), (41, 9, u64::MAX)]
        {
            assert_eq!(revisions.before(at(time)), before, "before {time}");
            assert_eq!(revisions.after(at(time)), after, "after {time}");
        }
    }
}
