//! Voluntary disruptions, counted exactly.
//!
//! A pod that was taken does not count at any instant of a window, however old: servers know what they have admitted. A
//! pod that was removed never counts again; its successor is another pod. A pod that was updated in place counts again
//! once truth has shown it healthy with its new containers. A pod that was relabelled does not count where it was before.
//!
//! Under one budget, disruptions are in the order in which they were decided: that of their claims. What was decided later
//! does not count, even if it was carried out first. It is judged itself, with what was decided before it.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::callers::{by_controller, operation_of};
use super::coverage::covers;
use super::decode::{Disruption, Id, Operation, Pod, Spec};
use super::memory::LAG;
use super::states::{Effect, Entry, NamespaceHistory, State};
use crate::history::Request;

/// All voluntary disruptions of a run.
#[derive(Debug, Default)]
pub(super) struct Taken {
    records: HashMap<Id, Vec<Record>>,
}

/// A voluntary disruption.
#[derive(Debug)]
pub(super) struct Record {
    effect: Rc<Effect>,
    /// The operations of the requests that can have caused it.
    operations: Vec<Operation>,
    /// The budgets that must know of it, because they were enforced and covered the pod before it was decided.
    known_to: Vec<Id>,
    /// Whether every other budget that covers the pod must know of it too.
    visible: bool,
    /// The revision since which each budget has had a claim for it.
    claims: HashMap<Id, u64>,
    /// When the first request that can have caused it was received, with the revision.
    pub(super) received: Duration,
    pub(super) received_at: u64,
    /// Whether a controller deleted the pod.
    pub(super) by_controller: bool,
    /// The request, in words.
    pub(super) by: String,
    /// The revision with which the pod was whole again.
    over: Option<u64>,
}

impl Record {
    /// A disruption with its causes, of which `first` was received first. `moved`: the labels or owners of the pod changed
    /// shortly before.
    pub(super) fn new(
        namespace: &NamespaceHistory,
        effect: &Rc<Effect>,
        first: &Request,
        causes: &[&Request],
        moved: bool,
        by: String,
    ) -> Self {
        let states = namespace.between(first.received_at, effect.revision.saturating_sub(1));
        let claims = claims(effect.pod.id(), states);
        Self {
            effect: Rc::clone(effect),
            operations: causes.iter().filter_map(|cause| operation_of(cause, effect.kind)).collect(),
            known_to: known_to(namespace, effect, first, moved),
            visible: effect.kind == Disruption::Removed && !moved,
            claims,
            received: first.received,
            received_at: first.received_at,
            by_controller: causes.iter().any(|cause| by_controller(cause)),
            by,
            over: None,
        }
    }

    /// What happened.
    pub(super) fn effect(&self) -> &Rc<Effect> {
        &self.effect
    }

    /// The place among the decisions under a budget. Without a claim, it was decided when it happened.
    fn decided(&self, budget: Id) -> (u64, u64) {
        (self.claims.get(&budget).copied().unwrap_or(self.effect.revision), self.effect.revision)
    }

    /// Whether a budget protects against it, whichever of the operations it was.
    pub(super) fn concerns(&self, spec: &Spec) -> bool {
        let protects = |operation: &Operation| spec.operations.contains(operation);
        let all = self.operations.iter().all(protects);
        match self.effect.kind {
            Disruption::Labelled => spec.kruise && all,
            // It announces an update or a deletion.
            Disruption::Paused => all && protects(&Operation::Delete),
            _ => all,
        }
    }

    /// Whether a budget must count it from then on.
    ///
    /// A budget learns from the pods what went before it was enforced. An update that has only begun does not show there.
    /// A budget that the pod entered shortly before does not know what was admitted while it did not cover the pod.
    fn counts(&self, budget: Id, spec: &Spec) -> bool {
        self.concerns(spec) && (self.visible || self.known_to.contains(&budget))
    }

    /// Whether the pod was out at this revision, or is still at the revision `now`. A pod that left counts where it belongs
    /// since then.
    fn out(&self, revision: u64, now: u64) -> bool {
        if self.effect.kind == Disruption::Relabelled {
            return revision < self.effect.revision;
        }
        let over = self.over.filter(|over| *over <= now);
        over.is_none_or(|over| (self.effect.revision..over).contains(&revision))
    }

    fn observe(&mut self, pod: &Pod, revision: u64) {
        let ends = self.in_place() && revision >= self.effect.revision;
        if ends && self.over.is_none() && pod.updated_since(&self.effect.pod) {
            self.over = Some(revision);
        }
    }

    /// When it happened.
    pub(super) fn since(&self) -> Duration {
        self.effect.at
    }

    /// The name of the pod.
    pub(super) fn pod(&self) -> &str {
        &self.effect.pod.meta.name
    }

    /// Whether the pod is out until it runs again.
    pub(super) fn in_place(&self) -> bool {
        !matches!(self.effect.kind, Disruption::Removed | Disruption::Relabelled)
    }
}

impl Taken {
    /// Adds a disruption. `seen` are the states of the pod since then, with their revisions. Returns where it is.
    pub(super) fn add<'a>(
        &mut self,
        mut record: Record,
        seen: impl Iterator<Item = (&'a Pod, u64)>,
    ) -> (Id, usize) {
        for (pod, revision) in seen {
            record.observe(pod, revision);
        }
        let id = record.effect.pod.id();
        let records = self.records.entry(id).or_default();
        records.push(record);
        (id, records.len() - 1)
    }

    /// The disruption that was added there.
    pub(super) fn get(&self, (pod, index): (Id, usize)) -> Option<&Record> {
        self.records.get(&pod)?.get(index)
    }

    /// Takes a change of a pod in.
    pub(super) fn observe(&mut self, pod: &Pod, revision: u64) {
        for record in self.records.get_mut(&pod.id()).into_iter().flatten() {
            record.observe(pod, revision);
        }
    }

    /// Whether this very disruption was added already.
    pub(super) fn has(&self, effect: &Rc<Effect>) -> bool {
        let records = self.records.get(&effect.pod.id());
        records.is_some_and(|records| records.iter().any(|record| Rc::ptr_eq(&record.effect, effect)))
    }

    /// The disruption because of which a budget must not count the pod at this revision, when another is judged that ended
    /// at the revision `now`.
    pub(super) fn out(
        &self,
        pod: Id,
        (budget, spec): (Id, &Spec),
        revision: u64,
        (judged, now): (&Record, u64),
    ) -> Option<&Record> {
        let before = |record: &&Record| record.decided(budget) < judged.decided(budget);
        let counts = |record: &&Record| record.out(revision, now) && record.counts(budget, spec);
        self.records.get(&pod)?.iter().filter(before).find(counts)
    }

    /// Whether an update in place of this pod is not over.
    pub(super) fn updating(&self, pod: Id) -> bool {
        let records = self.records.get(&pod);
        records.is_some_and(|records| records.iter().any(|record| record.in_place() && record.over.is_none()))
    }
}

/// The revision since which each budget has had a claim on the pod, until the last of these states. A claim that ended
/// before is that of another request, if there is one that did not.
fn claims<'a>(pod: Id, states: impl Iterator<Item = &'a Rc<State>>) -> HashMap<Id, u64> {
    let (mut present, mut ended) = (HashMap::new(), HashMap::new());
    for state in states {
        let holds = |entry: &Entry| entry.budget.held.as_ref().is_some_and(|held| held.contains(&pod));
        for entry in state.budgets.iter() {
            let budget = entry.budget.meta.id;
            if holds(entry) {
                present.entry(budget).or_insert(state.revision);
            } else if let Some(since) = present.remove(&budget) {
                ended.entry(budget).or_insert(since);
            }
        }
    }
    ended.extend(present);
    ended
}

/// The budgets that were enforced when the first request was received, and covered the pod in whatever view servers had.
/// `moved`: the pod has not always been where it is.
fn known_to(namespace: &NamespaceHistory, effect: &Effect, first: &Request, moved: bool) -> Vec<Id> {
    let Some(start) = namespace.between(first.received_at, first.received_at).next_back() else {
        return Vec::new();
    };
    let knows = |entry: &&Entry| {
        let Some(spec) = entry.budget.spec.as_ref().filter(|_| entry.budget.enforced) else { return false };
        if effect.kind == Disruption::Relabelled {
            return effect.leaves(spec, start);
        }
        let covered =
            |state: &Rc<State>| state.pod(effect.pod.id()).is_none_or(|pod| covers(spec, pod, state));
        !moved || namespace.since(first.received.saturating_sub(LAG), effect.revision).all(covered)
    };
    start.budgets.iter().filter(knows).map(|entry| entry.budget.meta.id).collect()
}
