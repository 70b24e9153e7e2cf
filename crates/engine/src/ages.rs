//! The age of what is known of each kind: how long ago its watch last received something.
//!
//! A kind that was never read, or is not watched any more, has no age and is never stale.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::basics::{GroupKind, Time};

/// How long a kind is fresh after its watch last received something.
pub const FRESH_FOR: Duration = Duration::from_secs(90);

/// The age of each kind.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Ages {
    fresh_for: Duration,
    heard: BTreeMap<GroupKind, Heard>,
    /// No kind is stale before this time, unless it is in doubt.
    fresh_until: Time,
    /// The number of kinds in doubt.
    doubted: usize,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Heard {
    at: Time,
    /// The API server seems not to serve the kind any more.
    is_doubted: bool,
}

impl Default for Ages {
    fn default() -> Self {
        Self { fresh_for: FRESH_FOR, heard: BTreeMap::new(), fresh_until: Time(i64::MAX), doubted: 0 }
    }
}

impl Ages {
    pub(crate) fn set_limit(&mut self, fresh_for: Duration) {
        self.fresh_for = fresh_for;
        self.refresh();
    }

    /// Everything that happened to a kind up to this time is known.
    pub(crate) fn heard(&mut self, kind: &GroupKind, at: Time) {
        let heard = Heard { at, is_doubted: false };
        match self.heard.get_mut(kind) {
            Some(known) => *known = Heard { at: known.at.max(at), ..heard },
            None => drop(self.heard.insert(kind.clone(), heard)),
        }
        self.refresh();
    }

    /// The API server seems not to serve a kind any more: it is stale until it is heard of again, or forgotten.
    pub(crate) fn doubt(&mut self, kind: &GroupKind) {
        if let Some(heard) = self.heard.get_mut(kind) {
            heard.is_doubted = true;
        }
        self.refresh();
    }

    /// A kind is not watched any more.
    pub(crate) fn forget(&mut self, kind: &GroupKind) {
        self.heard.remove(kind);
        self.refresh();
    }

    /// Whether a kind was read, and is still watched.
    pub(crate) fn is_read(&self, kind: &GroupKind) -> bool {
        self.heard.contains_key(kind)
    }

    /// The stale kinds, and how old what is known of each is. Costs nothing while no kind is stale.
    pub(crate) fn stale(&self, now: Time) -> impl Iterator<Item = (&GroupKind, Duration)> {
        let may_be_stale = self.doubted > 0 || now > self.fresh_until;
        let kinds = may_be_stale.then_some(&self.heard).into_iter().flatten();
        let kinds = kinds.map(move |(kind, heard)| (kind, heard, now.since(heard.at)));
        kinds
            .filter(move |(_, heard, age)| heard.is_doubted || *age > self.fresh_for)
            .map(|(kind, _, age)| (kind, age))
    }

    fn refresh(&mut self) {
        let oldest = self.heard.values().map(|heard| heard.at).min();
        self.fresh_until = oldest.map_or(Time(i64::MAX), |oldest| oldest.after(self.fresh_for));
        self.doubted = self.heard.values().filter(|heard| heard.is_doubted).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> GroupKind {
        GroupKind::new("apps", name)
    }

    fn stale(ages: &Ages, second: i64) -> Vec<(String, u64)> {
        let stale = ages.stale(Time(second * 1000));
        stale.map(|(kind, age)| (kind.kind.to_string(), age.as_secs())).collect()
    }

    #[test]
    fn a_kind_is_stale_after_the_limit_until_it_is_heard_of() {
        let mut ages = Ages::default();
        assert_eq!(stale(&ages, 1_000_000), [], "a kind that was never read has no age");
        ages.heard(&kind("Deployment"), Time(0));
        ages.heard(&kind("ReplicaSet"), Time(30_000));
        assert_eq!(stale(&ages, 90), []);
        assert_eq!(stale(&ages, 91), [("Deployment".to_owned(), 91)]);
        assert_eq!(stale(&ages, 121).len(), 2);
        ages.heard(&kind("Deployment"), Time(121_000));
        assert_eq!(stale(&ages, 121), [("ReplicaSet".to_owned(), 91)]);
        ages.heard(&kind("ReplicaSet"), Time(20_000));
        assert_eq!(
            stale(&ages, 120),
            [],
            "a list that was requested before an event arrived changes nothing"
        );
        ages.set_limit(Duration::from_secs(10));
        assert_eq!(stale(&ages, 41), [("ReplicaSet".to_owned(), 11)]);
    }

    #[test]
    fn a_kind_in_doubt_is_stale_until_it_is_heard_of_or_forgotten() {
        let mut ages = Ages::default();
        ages.doubt(&kind("Deployment"));
        assert_eq!(stale(&ages, 0), [], "it was never read");
        ages.heard(&kind("Deployment"), Time(0));
        ages.doubt(&kind("Deployment"));
        assert_eq!(stale(&ages, 5), [("Deployment".to_owned(), 5)]);
        ages.heard(&kind("Deployment"), Time(6_000));
        assert_eq!(stale(&ages, 7), []);
        ages.doubt(&kind("Deployment"));
        ages.forget(&kind("Deployment"));
        assert_eq!(stale(&ages, 1_000_000), []);
    }
}
