//! Consistent reads that a budget's decisions rest on: lists of its pods, and reads of the objects that say how many groups
//! there should be.
//!
//! A watch that lags makes a charge too careful, but a free pass too generous: the pod that is "unready anyway" may be ready
//! by now. So before a free pass the pods are listed, after the request arrived and after the ledger number was read that the
//! write will test. A group beyond the replicas of its source passes for free as well, so there the source is read.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::basics::{GroupKind, ObjectKey, Time, Version};
use crate::coverage::Coverage;

/// The object that says how many groups there should be.
pub(super) type GroupObject = (GroupKind, ObjectKey);

/// What was known when a read was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadStamp {
    /// The number of the budget's ledger.
    number: u64,
    /// How many requests had arrived, by the replica's own count.
    sequence: u64,
    /// What the budget covered: a list of other pods says nothing about those that it covers now.
    coverage: Option<Coverage>,
}

impl ReadStamp {
    pub(super) fn new(number: u64, sequence: u64, coverage: Option<Coverage>) -> Self {
        Self { number, sequence, coverage }
    }

    /// Whether the read was sent after a request arrived and after this number of the ledger was read.
    fn is_fresh(&self, number: u64, arrived: u64) -> bool {
        self.number == number && self.sequence >= arrived
    }
}

/// Whether the pods here are as new as a budget needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lag {
    /// They are.
    None,
    /// The watch will show newer ones.
    Waiting,
    /// The watch has taken too long: list the pods.
    Overdue,
}

/// The consistent reads of one budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FreshLists {
    /// A list of the pods is in flight.
    listing: Option<ReadStamp>,
    /// The last list of the pods.
    listed: Option<ReadStamp>,
    /// The version of the newest list.
    version: Version,
    sources_reading: BTreeMap<GroupObject, ReadStamp>,
    sources_read: BTreeMap<GroupObject, ReadStamp>,
    /// Since when the pods here are older than the budget needs them, or when they were last listed for that.
    behind_since: Option<Time>,
}

impl FreshLists {
    /// Starts a list of the pods, unless one is in flight.
    pub(super) fn start_list(&mut self, stamp: ReadStamp) -> bool {
        let starts = self.listing.is_none();
        self.listing.get_or_insert(stamp);
        starts
    }

    /// A list came back that was sent for this coverage. Returns its stamp if it is the list in flight.
    pub(super) fn take_list(&mut self, coverage: Option<Coverage>) -> Option<ReadStamp> {
        self.listing.take_if(|stamp| stamp.coverage == coverage)
    }

    /// The pods of a list are in the engine now.
    pub(super) fn listed(&mut self, stamp: Option<ReadStamp>, version: Version) {
        self.listed = stamp;
        self.saw_version(version);
    }

    /// The pods are known up to this version.
    pub(super) fn saw_version(&mut self, version: Version) {
        self.version = self.version.max(version);
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Whether the pods were listed after a request arrived and after this number of the ledger was read. Without a number
    /// any will do, which is a mutation.
    pub(super) fn has_fresh_list(&self, number: Option<u64>, arrived: u64) -> bool {
        self.listed.is_some_and(|stamp| stamp.is_fresh(number.unwrap_or(stamp.number), arrived))
    }

    /// Starts a read of a source, unless one is in flight.
    pub(super) fn start_source(&mut self, source: GroupObject, stamp: ReadStamp) -> bool {
        let starts = !self.sources_reading.contains_key(&source);
        self.sources_reading.entry(source).or_insert(stamp);
        starts
    }

    /// The read of a source came back without an answer.
    pub(super) fn source_lost(&mut self, source: &GroupObject) {
        self.sources_reading.remove(source);
    }

    /// A source was read.
    pub(super) fn source_read(&mut self, source: GroupObject) {
        if let Some(stamp) = self.sources_reading.remove(&source) {
            self.sources_read.insert(source, stamp);
        }
    }

    /// Whether a source was read after a request arrived and after this number of the ledger was read.
    pub(super) fn has_fresh_source(&self, source: &GroupObject, number: u64, arrived: u64) -> bool {
        self.sources_read.get(source).is_some_and(|stamp| stamp.is_fresh(number, arrived))
    }

    /// A write of this replica raised the number of the ledger: the reads before it are no older than they were.
    pub(super) fn own_write(&mut self, tested: u64, written: u64) {
        let pods = [&mut self.listed, &mut self.listing].into_iter().flatten();
        let sources = self.sources_read.values_mut().chain(self.sources_reading.values_mut());
        for stamp in pods.chain(sources) {
            if stamp.number == tested && written == tested + 1 {
                stamp.number = written;
            }
        }
    }

    /// Whether the pods, which the watch has shown up to `watched`, are as new as `needed`. A list may show nothing newer: if
    /// the store went back in time, none ever does. So the next list waits as long as the first one did.
    pub(super) fn lag(&mut self, watched: Version, needed: Version, now: Time, patience: Duration) -> Lag {
        if watched.max(self.version) >= needed {
            self.behind_since = None;
            return Lag::None;
        }
        let since = *self.behind_since.get_or_insert(now);
        if now < since.after(patience) {
            return Lag::Waiting;
        }
        self.behind_since = Some(now);
        Lag::Overdue
    }

    /// No request waits for newer pods.
    pub(super) fn not_behind(&mut self) {
        self.behind_since = None;
    }

    pub(super) fn is_behind(&self) -> bool {
        self.behind_since.is_some()
    }

    /// The budget is gone: reads in flight are of no use.
    pub(super) fn close(&mut self) {
        self.listing = None;
        self.sources_reading.clear();
        self.sources_read.clear();
        self.behind_since = None;
    }

    /// Feeds what the future depends on into a hasher: a list only while a request waits that arrived before the list was
    /// sent, its version only if it is ahead of the watch.
    pub(super) fn fingerprint(
        &self,
        first_request: Option<u64>,
        watched: Version,
        state: &mut impl std::hash::Hasher,
    ) {
        use std::hash::Hash;
        let listed = self.listed.filter(|stamp| first_request.is_some_and(|first| first <= stamp.sequence));
        (&self.listing, listed, self.version.max(watched), self.behind_since).hash(state);
        (&self.sources_reading, &self.sources_read).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COVERAGE: Option<Coverage> = Some(Coverage(7));

    fn source() -> GroupObject {
        (GroupKind::new("example.com", "ModelServer"), ObjectKey::new("shop", "llm"))
    }

    #[test]
    fn a_list_serves_requests_that_arrived_before_it_was_sent() {
        let mut lists = FreshLists::default();
        assert!(!lists.has_fresh_list(Some(3), 1));
        assert!(lists.start_list(ReadStamp::new(3, 5, COVERAGE)));
        assert!(!lists.start_list(ReadStamp::new(3, 6, COVERAGE)), "one is in flight");
        let stamp = lists.take_list(COVERAGE);
        lists.listed(stamp, Version(10));
        assert!(lists.has_fresh_list(Some(3), 5));
        assert!(!lists.has_fresh_list(Some(3), 6), "the request arrived later");
        assert!(!lists.has_fresh_list(Some(4), 5), "another write raised the number");
    }

    #[test]
    fn a_list_for_another_coverage_is_not_the_one_in_flight() {
        let mut lists = FreshLists::default();
        lists.start_list(ReadStamp::new(3, 5, COVERAGE));
        assert_eq!(lists.take_list(Some(Coverage(8))), None);
        assert!(lists.take_list(COVERAGE).is_some());
    }

    #[test]
    fn a_write_of_this_replica_keeps_its_reads_fresh() {
        let mut lists = FreshLists::default();
        lists.start_list(ReadStamp::new(3, 5, COVERAGE));
        let stamp = lists.take_list(COVERAGE);
        lists.listed(stamp, Version(10));
        lists.start_source(source(), ReadStamp::new(3, 5, COVERAGE));
        lists.source_read(source());
        lists.own_write(3, 4);
        assert!(lists.has_fresh_list(Some(4), 5) && lists.has_fresh_source(&source(), 4, 5));
        lists.own_write(3, 5);
        assert!(!lists.has_fresh_list(Some(5), 5), "another write came in between");
    }

    #[test]
    fn pods_are_listed_when_the_watch_takes_too_long() {
        let mut lists = FreshLists::default();
        let patience = Duration::from_millis(100);
        assert_eq!(lists.lag(Version(9), Version(10), Time(0), patience), Lag::Waiting);
        assert_eq!(lists.lag(Version(9), Version(10), Time(99), patience), Lag::Waiting);
        assert_eq!(lists.lag(Version(9), Version(10), Time(100), patience), Lag::Overdue);
        lists.saw_version(Version(10));
        assert_eq!(lists.lag(Version(9), Version(10), Time(101), patience), Lag::None);
        assert!(!lists.is_behind());
    }

    #[test]
    fn pods_are_not_listed_again_at_once_if_a_list_shows_nothing_newer() {
        let mut lists = FreshLists::default();
        let patience = Duration::from_millis(100);
        let mut lag = |now| {
            lists.saw_version(Version(9));
            lists.lag(Version(9), Version(10), Time(now), patience)
        };
        assert_eq!([0, 100].map(&mut lag), [Lag::Waiting, Lag::Overdue]);
        assert_eq!([101, 199, 200].map(&mut lag), [Lag::Waiting, Lag::Waiting, Lag::Overdue]);
    }

    #[test]
    fn a_source_is_read_again_after_a_lost_reply() {
        let mut lists = FreshLists::default();
        assert!(lists.start_source(source(), ReadStamp::new(3, 5, COVERAGE)));
        assert!(!lists.start_source(source(), ReadStamp::new(3, 5, COVERAGE)));
        lists.source_lost(&source());
        assert!(!lists.has_fresh_source(&source(), 3, 5));
        assert!(lists.start_source(source(), ReadStamp::new(3, 6, COVERAGE)));
    }
}
