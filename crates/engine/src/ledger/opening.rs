//! Opening: from a budget that is new, or covers other pods than before, to one that is enforced.
//!
//! Until every replica knows such a budget, one that does not would let its pods pass. So a closed budget denies everything.
//! The leader opens it in three steps: it lists the replicas until each has acknowledged the budget, lists the pods after
//! that, and writes what the budget covers into its status.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::basics::{Time, Version};
use crate::facts::{BudgetKey, BudgetKind};
use crate::ledger::messages::{Acknowledged, ReplicaLease};

/// How long the opening of a budget pauses if the installed CustomResourceDefinition drops what is written.
const RETRY_PRUNED_AFTER: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    NotStarted,
    ListingReplicas,
    /// A replica has not acknowledged the budget: the next tick lists again.
    Waiting,
    /// Every replica has acknowledged it.
    ListingPods,
    /// The write was answered, and the status does not have it. To be tried again from this time on.
    Pruned(Time),
}

/// How far the opening of one budget has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Opening {
    /// The version in which the present coverage was first seen here.
    seen_at: Version,
    phase: Phase,
}

impl Opening {
    /// The budget covers other pods from this version on.
    pub(super) fn restart(&mut self, seen_at: Version) {
        *self = Self { seen_at, phase: Phase::NotStarted };
    }

    /// The budget is open, or gone.
    pub(super) fn reset(&mut self) {
        self.phase = Phase::NotStarted;
    }

    /// Whether a tick may go on: nothing is in flight and no pause holds.
    pub(super) fn is_due(&self, now: Time) -> bool {
        match self.phase {
            Phase::ListingReplicas | Phase::ListingPods => false,
            Phase::Pruned(until) => now >= until,
            Phase::NotStarted | Phase::Waiting => true,
        }
    }

    /// The replicas are being listed. Returns what identifies the list.
    pub(super) fn list_replicas(&mut self) -> Version {
        self.phase = Phase::ListingReplicas;
        self.seen_at
    }

    /// A list of replicas came back. Returns whether it counts: a list that was sent before the budget covered what it
    /// covers now is too old, since a replica may have started in between.
    pub(super) fn replicas_listed(&mut self, seen_at: Version) -> bool {
        self.arrived(&Phase::ListingReplicas, seen_at)
    }

    /// Not every replica has acknowledged the budget.
    pub(super) fn wait(&mut self) {
        self.phase = Phase::Waiting;
    }

    /// The pods are being listed. Returns what identifies the list.
    pub(super) fn list_pods(&mut self) -> Version {
        self.phase = Phase::ListingPods;
        self.seen_at
    }

    /// A list of pods came back. Returns whether it counts.
    pub(super) fn pods_listed(&mut self, seen_at: Version) -> bool {
        self.arrived(&Phase::ListingPods, seen_at)
    }

    fn arrived(&mut self, phase: &Phase, seen_at: Version) -> bool {
        let counts = self.phase == *phase && self.seen_at == seen_at;
        if counts {
            self.phase = Phase::Waiting;
        }
        counts
    }

    /// What was written is not in the status.
    pub(super) fn pruned(&mut self, now: Time) {
        self.phase = Phase::Pruned(now.after(RETRY_PRUNED_AFTER));
    }

    pub(super) fn is_pruned(&self) -> bool {
        matches!(self.phase, Phase::Pruned(_))
    }

    /// Whether a replica has acknowledged this coverage and is alive. A replica that vanished may have admitted something
    /// that only it knew.
    pub(super) fn is_acknowledged_by(&self, replica: &ReplicaLease, kind: BudgetKind) -> bool {
        replica.acknowledged.of(kind) >= self.seen_at && !replica.vanished
    }

    /// Feeds what the future depends on into a hasher: when the budget was first seen only until it is open.
    pub(super) fn fingerprint(&self, closed: bool, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (closed.then_some(self.seen_at), &self.phase).hash(state);
    }
}

/// What this replica acknowledges to the others: up to which version it knows every budget and has backfilled it.
#[derive(Clone, Debug, Default)]
pub(super) struct Acknowledgements {
    seen: Acknowledged,
    acknowledged: Acknowledged,
    /// Budgets that lack the token of a recent admission of this replica.
    backfilling: BTreeSet<BudgetKey>,
    /// Budgets that are closed: other replicas wait for acknowledgements.
    closed: BTreeSet<BudgetKey>,
}

impl Acknowledgements {
    /// The watch of one kind of budgets has shown everything up to a version.
    pub(super) fn saw(&mut self, kind: BudgetKind, version: Version) {
        self.seen = self.seen.with(kind, self.seen.of(kind).max(version));
    }

    /// One kind of budgets is not watched any more. Returns what to publish: no replica may open such a budget on the
    /// word of this one before it watches them again.
    pub(super) fn unwatched(&mut self, kind: BudgetKind) -> Option<Acknowledged> {
        self.seen = self.seen.with(kind, Version(0));
        let without = self.acknowledged.with(kind, Version(0));
        (std::mem::replace(&mut self.acknowledged, without) != without).then_some(without)
    }

    /// A budget needs the token of a recent admission.
    pub(super) fn start_backfill(&mut self, budget: &BudgetKey) {
        self.backfilling.insert(budget.clone());
    }

    /// A budget has all tokens of recent admissions.
    pub(super) fn backfilled(&mut self, budget: &BudgetKey) {
        self.backfilling.remove(budget);
    }

    pub(super) fn set_closed(&mut self, budget: &BudgetKey, closed: bool) {
        if closed {
            self.closed.insert(budget.clone());
        } else {
            self.closed.remove(budget);
        }
    }

    /// A budget is not known any more.
    pub(super) fn remove(&mut self, budget: &BudgetKey) {
        self.backfilling.remove(budget);
        self.closed.remove(budget);
    }

    pub(super) fn has_closed_budgets(&self) -> bool {
        !self.closed.is_empty()
    }

    pub(super) fn acknowledged(&self) -> Acknowledged {
        self.acknowledged
    }

    /// What to publish now, if that has changed.
    pub(super) fn next(&mut self) -> Option<Acknowledged> {
        let changed = self.backfilling.is_empty() && self.acknowledged != self.seen;
        changed.then(|| {
            self.acknowledged = self.seen;
            self.acknowledged
        })
    }

    /// Feeds what the future depends on into a hasher.
    pub(super) fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (self.seen, self.acknowledged, &self.backfilling).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ObjectKey;

    const KIND: BudgetKind = BudgetKind::DisruptionBudget;

    fn acknowledged(version: u64) -> Acknowledged {
        Acknowledged::default().with(KIND, Version(version))
    }

    #[test]
    fn a_list_that_was_sent_for_an_older_coverage_does_not_count() {
        let mut opening = Opening::default();
        opening.restart(Version(5));
        let sent = opening.list_replicas();
        assert!(!opening.is_due(Time(0)), "one is in flight");
        opening.restart(Version(6));
        opening.list_replicas();
        assert!(!opening.replicas_listed(sent));
        assert!(opening.replicas_listed(Version(6)));
        assert!(!opening.pods_listed(Version(6)), "no list of pods is in flight");
        let sent = opening.list_pods();
        assert!(opening.pods_listed(sent) && opening.is_due(Time(0)));
    }

    #[test]
    fn a_replica_acknowledges_by_version_and_must_be_alive() {
        let mut opening = Opening::default();
        opening.restart(Version(5));
        let replica = |version, vanished| ReplicaLease {
            name: "a".into(),
            acknowledged: acknowledged(version),
            vanished,
        };
        assert!(!opening.is_acknowledged_by(&replica(4, false), KIND));
        assert!(opening.is_acknowledged_by(&replica(5, false), KIND));
        assert!(!opening.is_acknowledged_by(&replica(5, true), KIND));
        assert!(!opening.is_acknowledged_by(&replica(5, false), BudgetKind::PodUnavailableBudget));
    }

    #[test]
    fn an_opening_that_is_pruned_pauses() {
        let mut opening = Opening::default();
        opening.pruned(Time(0));
        assert!(opening.is_pruned() && !opening.is_due(Time(29_999)));
        assert!(opening.is_due(Time(30_000)));
        opening.reset();
        assert!(!opening.is_pruned());
    }

    #[test]
    fn a_budget_is_acknowledged_once_it_is_backfilled() {
        let key = BudgetKey { object: ObjectKey::new("shop", "web"), kind: KIND };
        let mut acknowledgements = Acknowledgements::default();
        acknowledgements.saw(KIND, Version(5));
        acknowledgements.start_backfill(&key);
        assert_eq!(acknowledgements.next(), None);
        acknowledgements.backfilled(&key);
        assert_eq!(acknowledgements.next(), Some(acknowledged(5)));
        assert_eq!(acknowledgements.next(), None, "nothing changed");
        acknowledgements.saw(KIND, Version(4));
        assert_eq!(acknowledgements.next(), None, "versions do not fall");
    }

    #[test]
    fn a_kind_that_is_not_watched_any_more_is_taken_back() {
        let mut acknowledgements = Acknowledgements::default();
        assert_eq!(acknowledgements.unwatched(KIND), None);
        acknowledgements.saw(KIND, Version(5));
        acknowledgements.next();
        assert_eq!(acknowledgements.unwatched(KIND), Some(acknowledged(0)));
        assert_eq!(acknowledgements.next(), None);
    }
}
