//! Opening: from a budget that is new, or covers other pods than before, to one that is enforced.
//!
//! Until every replica knows such a budget, one that does not would let its pods pass. So a closed budget denies everything.
//! The leader opens it in three steps: it lists the replicas until each has acknowledged the budget, lists the pods after
//! that, and writes what the budget covers into its status.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::basics::{Time, Version};
use crate::claims::TokenId;
use crate::facts::{BudgetKey, BudgetKind};
use crate::ledger::messages::{Acknowledged, ReplicaLease};

/// How long the opening of a budget pauses if the installed CustomResourceDefinition drops what is written.
pub(super) const RETRY_PRUNED_AFTER: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    NotStarted,
    /// It waits for the next list of the replicas.
    Queued,
    ListingReplicas,
    /// A replica has not acknowledged the budget, or the budget lacks a token: the next tick lists again.
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
    /// The generation that the installed CustomResourceDefinition does not store: that of the release before does not
    /// have the field. The budget is open without it.
    dropped: Option<i64>,
    /// The tokens of replicas that have ended that the budget got.
    handed_over: BTreeSet<TokenId>,
}

impl Opening {
    /// The budget covers other pods from this version on.
    pub(super) fn restart(&mut self, seen_at: Version) {
        *self = Self { seen_at, ..Self::default() };
    }

    /// The budget is open, or gone.
    pub(super) fn reset(&mut self) {
        self.phase = Phase::NotStarted;
    }

    /// Whether a tick may go on: nothing is in flight and no pause holds.
    pub(super) fn is_due(&self, now: Time) -> bool {
        match self.phase {
            Phase::Queued | Phase::ListingReplicas | Phase::ListingPods => false,
            Phase::Pruned(until) => now >= until,
            Phase::NotStarted | Phase::Waiting => true,
        }
    }

    /// The budget waits for the next list of the replicas.
    pub(super) fn queue(&mut self) {
        self.phase = Phase::Queued;
    }

    /// The replicas are being listed. Returns what identifies the list, if the budget waits for one.
    pub(super) fn list_replicas(&mut self) -> Option<Version> {
        (self.phase == Phase::Queued).then(|| {
            self.phase = Phase::ListingReplicas;
            self.seen_at
        })
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

    /// The generation was written, and the status does not have it.
    pub(super) fn dropped(&mut self, generation: i64) {
        self.dropped = Some(generation);
    }

    pub(super) fn drops(&self, generation: i64) -> bool {
        self.dropped == Some(generation)
    }

    /// Whether a replica keeps the budget closed: it may admit requests and has not acknowledged this coverage. One that
    /// died before it did that may have admitted something that only it knew. One that died later denied every
    /// request for the budget since, and what it had admitted before is in the budget.
    pub(super) fn is_blocked_by(&self, replica: &ReplicaLease, kind: BudgetKind) -> bool {
        replica.serves && replica.acknowledged.of(kind) < self.seen_at
    }

    /// Takes a token that a replica handed over when it ended. Returns whether it is new here: each is added to the
    /// budget once, and is settled as any other from then on.
    pub(super) fn take_token(&mut self, token: &TokenId) -> bool {
        self.handed_over.insert(token.clone())
    }

    /// Feeds what the future depends on into a hasher: when the budget was first seen only until it is open.
    pub(super) fn fingerprint(&self, closed: bool, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (closed.then_some((self.seen_at, &self.handed_over)), &self.phase, self.dropped).hash(state);
    }
}

/// The lists of the replicas. One list serves all budgets that wait to be opened: those that were first seen before it
/// is sent. So a thousand budgets cost no more lists than one.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaLists {
    /// The budgets that wait for the next list.
    queued: BTreeSet<BudgetKey>,
    in_flight: bool,
    /// When the last list was sent.
    sent: Option<Time>,
    /// How often in a row a list let no budget get on.
    in_vain: u32,
}

impl ReplicaLists {
    /// A budget waits for the next list.
    pub(super) fn queue(&mut self, budget: &BudgetKey) {
        self.queued.insert(budget.clone());
    }

    /// When the next list is due, if one is.
    pub(super) fn due_at(&self, pause: Duration) -> Option<Time> {
        let pause = (pause * (1 << self.in_vain.saturating_sub(1).min(4))).min(pause * 10);
        let due_at = self.sent.map_or(Time(i64::MIN), |sent| sent.after(pause));
        (!self.in_flight && !self.queued.is_empty()).then_some(due_at)
    }

    /// A list is being sent. Returns the budgets that it is for.
    pub(super) fn start(&mut self, now: Time) -> BTreeSet<BudgetKey> {
        (self.in_flight, self.sent) = (true, Some(now));
        std::mem::take(&mut self.queued)
    }

    /// The list came back. If no budget gets on by it, the next list waits longer.
    pub(super) fn done(&mut self, gets_on: bool) {
        self.in_flight = false;
        self.in_vain = if gets_on { 0 } else { self.in_vain.saturating_add(1) };
    }

    /// Feeds what the future depends on into a hasher. A search runs without a pause.
    pub(super) fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (&self.queued, self.in_flight).hash(state);
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

    /// Whether the watch of one kind of budgets has come as far as a version.
    pub(super) fn has_seen(&self, kind: BudgetKind, version: Version) -> bool {
        version <= self.seen.of(kind)
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

    #[cfg(feature = "mutations")]
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
        assert_eq!(opening.list_replicas(), None, "it does not wait for a list");
        opening.queue();
        let sent = opening.list_replicas().expect("it waits for a list");
        assert!(!opening.is_due(Time(0)), "one is in flight");
        opening.restart(Version(6));
        opening.queue();
        opening.list_replicas();
        assert!(!opening.replicas_listed(sent));
        assert!(opening.replicas_listed(Version(6)));
        assert!(!opening.pods_listed(Version(6)), "no list of pods is in flight");
        let sent = opening.list_pods();
        assert!(opening.pods_listed(sent) && opening.is_due(Time(0)));
    }

    #[test]
    fn a_replica_that_serves_blocks_until_it_has_acknowledged() {
        let mut opening = Opening::default();
        opening.restart(Version(5));
        for (version, serves, blocks, why) in [
            (4, true, true, "it does not know the budget, or died before it did"),
            (5, true, false, "it knows the budget, or died after it did"),
            (0, false, false, "it does not serve yet, never did, or handed over what it admitted"),
        ] {
            let (name, acknowledged) = ("a".into(), acknowledged(version));
            let replica = ReplicaLease { name, acknowledged, serves, admitted: Vec::new() };
            assert_eq!(opening.is_blocked_by(&replica, KIND), blocks, "{why}");
            let other = BudgetKind::PodUnavailableBudget;
            assert_eq!(opening.is_blocked_by(&replica, other), serves, "it acknowledges each kind by itself");
        }
    }

    #[test]
    fn one_list_serves_all_budgets_and_the_next_waits_longer_while_none_gets_on() {
        let pause = Duration::from_millis(100);
        let key = |name: &str| BudgetKey { object: ObjectKey::new("shop", name), kind: KIND };
        let mut lists = ReplicaLists::default();
        assert_eq!(lists.due_at(pause), None);
        for name in ["a", "b"] {
            lists.queue(&key(name));
        }
        let mut now = Time(0);
        let mut gaps = Vec::new();
        for _ in 0..6 {
            assert!(lists.due_at(pause).is_some_and(|due| due <= now));
            assert_eq!(lists.start(now).len(), 2);
            lists.queue(&key("c"));
            assert_eq!(lists.due_at(pause), None, "one is in flight");
            lists.done(false);
            lists.queue(&key("d"));
            let due = lists.due_at(pause).expect("two wait");
            gaps.push(due.since(now).as_millis());
            now = due;
        }
        assert_eq!(gaps, [100, 200, 400, 800, 1_000, 1_000]);
        lists.queue(&key("e"));
        lists.start(now);
        lists.done(true);
        lists.queue(&key("a"));
        assert_eq!(lists.due_at(pause), Some(now.after(pause)), "one got on");
    }

    #[test]
    fn a_token_that_was_handed_over_is_added_once() {
        let mut opening = Opening::default();
        assert!(opening.take_token(&"t1".into()));
        assert!(!opening.take_token(&"t1".into()));
        opening.restart(Version(6));
        assert!(opening.take_token(&"t1".into()), "another coverage");
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
