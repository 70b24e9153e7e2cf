//! Consistent reads of single objects, before a decision that the watches cannot prove.
//!
//! A review only names a pod. What it says about that pod, and everything else that would let a request pass for free, is
//! read from the API server first. Reviews can be forged, so the reads are bounded:
//! - one read of an object at a time, shared by all requests that wait for it;
//! - a limit on the reads in flight, with a share for each namespace, and namespaces take turns;
//! - an object that was not there is not read again for a second.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::basics::{GroupKind, ObjectKey, Text, Time, Uid};
use crate::ledger::messages::RequestId;

/// The maximum number of reads in flight.
const MOST: usize = 64;

/// The maximum number of them for one namespace.
const SHARE: usize = 16;

/// How long an absent object is remembered.
const ABSENT_FOR: Duration = Duration::from_secs(1);

/// The maximum number of absent objects that are remembered.
const ABSENT_MOST: usize = 4096;

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ReadTarget {
    /// A pod, by name.
    Pod(ObjectKey),
    /// A controller between a pod and its workload.
    Owner(GroupKind, ObjectKey, Uid),
}

impl ReadTarget {
    fn namespace(&self) -> &Text {
        match self {
            Self::Pod(key) | Self::Owner(_, key, _) => &key.namespace,
        }
    }
}

/// A pod that was not there: by name, or by the UID that a request insisted on.
pub(super) type Absent = (ObjectKey, Option<Uid>);

/// The requests that wait for one read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Read {
    pub(super) requests: Vec<RequestId>,
    /// When it was sent, by the replica's own count; `None` while it waits for its turn.
    sent: Option<u64>,
}

impl Read {
    /// Whether it was sent after a request arrived. Only such a read proves that something is not there.
    pub(super) fn is_later_than(&self, arrived: u64) -> bool {
        self.sent.is_some_and(|sent| sent >= arrived)
    }
}

/// The reads that requests wait for.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ConsistentReads {
    reads: BTreeMap<ReadTarget, Read>,
    /// Reads that wait for their turn, by namespace.
    waiting: BTreeMap<Text, VecDeque<ReadTarget>>,
    /// Reads in flight, by namespace.
    in_flight: BTreeMap<Text, usize>,
    /// The namespace that had the last turn.
    last: Option<Text>,
    absent: BTreeMap<Absent, Time>,
    /// The same in the order of their expiry.
    forgotten_next: VecDeque<(Time, Absent)>,
}

impl ConsistentReads {
    /// A request waits for a read of this object.
    pub(super) fn want(&mut self, target: ReadTarget, pending: RequestId) {
        if let Some(read) = self.reads.get_mut(&target) {
            read.requests.push(pending);
            return;
        }
        self.waiting.entry(target.namespace().clone()).or_default().push_back(target.clone());
        self.reads.insert(target, Read { requests: vec![pending], sent: None });
    }

    /// The next read to send now, if there is one within the limits. A read that no request waits for any more is dropped.
    pub(super) fn next(&mut self, sequence: u64, waits: impl Fn(RequestId) -> bool) -> Option<ReadTarget> {
        while self.in_flight.values().sum::<usize>() < MOST {
            let namespace = self.turn()?;
            let target = self.take_waiting(&namespace)?;
            let read = self.reads.get_mut(&target)?;
            if read.requests.iter().any(|pending| waits(*pending)) {
                read.sent = Some(sequence);
                *self.in_flight.entry(namespace.clone()).or_default() += 1;
                self.last = Some(namespace);
                return Some(target);
            }
            self.reads.remove(&target);
        }
        None
    }

    /// The namespace whose turn it is: the next one in order that has reads waiting and has not used up its share.
    fn turn(&self) -> Option<Text> {
        let has_room = |namespace: &&Text| self.in_flight.get(*namespace).is_none_or(|n| *n < SHARE);
        let after = |namespace: &&Text| self.last.as_ref().is_none_or(|last| *namespace > last);
        let mut rest = self.waiting.keys().filter(has_room);
        rest.clone().find(after).or_else(|| rest.next()).cloned()
    }

    fn take_waiting(&mut self, namespace: &Text) -> Option<ReadTarget> {
        let queue = self.waiting.get_mut(namespace)?;
        let target = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(namespace);
        }
        target
    }

    /// A read came back, with an answer or without one.
    pub(super) fn done(&mut self, target: &ReadTarget) -> Option<Read> {
        let read = self.reads.remove(target)?;
        let namespace = target.namespace();
        if let Some(count) = self.in_flight.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(namespace);
            }
        }
        if self.reads.is_empty() {
            self.last = None;
        }
        Some(read)
    }

    /// A consistent read, sent after a request for it arrived, did not find this pod.
    pub(super) fn was_absent(&mut self, absent: Absent, now: Time) {
        if self.absent.len() < ABSENT_MOST && !self.absent.contains_key(&absent) {
            let until = now.after(ABSENT_FOR);
            self.absent.insert(absent.clone(), until);
            self.forgotten_next.push_back((until, absent));
        }
    }

    /// Whether this pod was not there a moment ago.
    pub(super) fn is_absent(&self, absent: &Absent, now: Time) -> bool {
        self.absent.get(absent).is_some_and(|until| now < *until)
    }

    /// Lets time pass.
    pub(super) fn forget(&mut self, now: Time) {
        while let Some((_, absent)) = self.forgotten_next.pop_front_if(|(until, _)| now >= *until) {
            self.absent.remove(&absent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> ReadTarget {
        ReadTarget::Pod(ObjectKey::new(namespace, name))
    }

    /// Everything that can be sent now.
    fn sent(reads: &mut ConsistentReads) -> Vec<ReadTarget> {
        std::iter::from_fn(|| reads.next(1, |_| true)).collect()
    }

    #[test]
    fn requests_for_one_pod_share_one_read() {
        let mut reads = ConsistentReads::default();
        reads.want(pod("a", "x"), 1);
        assert_eq!(sent(&mut reads), [pod("a", "x")]);
        reads.want(pod("a", "x"), 2);
        assert_eq!(sent(&mut reads), []);
        let read = reads.done(&pod("a", "x")).expect("it was in flight");
        assert_eq!(read.requests, [1, 2]);
        assert!(read.is_later_than(1) && !read.is_later_than(2), "the second request came after it was sent");
        assert_eq!(reads.done(&pod("a", "x")), None);
    }

    #[test]
    fn one_namespace_cannot_use_up_all_reads() {
        let mut reads = ConsistentReads::default();
        for name in 0..1_000 {
            reads.want(pod("evil", &format!("ghost-{name}")), name);
        }
        assert_eq!(sent(&mut reads).len(), SHARE);
        reads.want(pod("shop", "web-0"), 5_000);
        assert_eq!(sent(&mut reads), [pod("shop", "web-0")]);
        reads.done(&pod("evil", "ghost-0"));
        assert_eq!(sent(&mut reads), [pod("evil", &format!("ghost-{SHARE}"))]);
    }

    #[test]
    fn namespaces_take_turns_below_the_limit() {
        let mut reads = ConsistentReads::default();
        for namespace in ["a", "b", "c", "d", "e", "f"] {
            for name in 0..SHARE {
                reads.want(pod(namespace, &name.to_string()), 1);
            }
        }
        let first = sent(&mut reads);
        assert_eq!(first.len(), MOST);
        let of = |namespace: &str| first.iter().filter(|read| **read.namespace() == *namespace).count();
        assert!(
            ["a", "b", "c", "d", "e", "f"].iter().all(|namespace| of(namespace) >= MOST / 6),
            "{first:?}"
        );
    }

    #[test]
    fn a_read_that_no_request_waits_for_is_not_sent() {
        let mut reads = ConsistentReads::default();
        reads.want(pod("a", "x"), 1);
        reads.want(pod("a", "y"), 2);
        assert_eq!(reads.next(1, |pending| pending == 2), Some(pod("a", "y")));
        assert_eq!(reads.next(1, |pending| pending == 2), None);
        reads.want(pod("a", "x"), 3);
        assert_eq!(reads.next(1, |_| true), Some(pod("a", "x")));
    }

    #[test]
    fn a_pod_that_was_not_there_is_remembered_for_a_second() {
        let mut reads = ConsistentReads::default();
        let absent = (ObjectKey::new("a", "x"), None);
        reads.was_absent(absent.clone(), Time(0));
        assert!(reads.is_absent(&absent, Time(999)));
        assert!(!reads.is_absent(&(absent.0.clone(), Some("u".into())), Time(0)), "by name alone");
        assert!(!reads.is_absent(&absent, Time(1_000)));
        reads.forget(Time(1_000));
        assert!(reads.absent.is_empty() && reads.forgotten_next.is_empty());
    }

    #[test]
    fn the_memory_of_absent_pods_is_bounded() {
        let mut reads = ConsistentReads::default();
        for name in 0..2 * ABSENT_MOST {
            reads.was_absent((ObjectKey::new("a", name.to_string()), None), Time(0));
        }
        assert_eq!(reads.absent.len(), ABSENT_MOST);
    }
}
