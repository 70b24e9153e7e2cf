//! Voluntary disruptions, counted exactly.
//!
//! A pod that was taken does not count at any instant of a window, however old: servers know what they have admitted. A
//! pod that was removed never counts again; its successor is another pod. A pod that was updated in place counts again
//! once truth has shown it healthy with its new containers.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::decode::{Disruption, Id, Operation, Pod, Spec};
use super::world::Effect;

/// All voluntary disruptions so far.
#[derive(Debug, Default)]
pub(super) struct Taken {
    records: HashMap<Id, Vec<Record>>,
}

/// A voluntary disruption.
#[derive(Debug)]
pub(super) struct Record {
    effect: Rc<Effect>,
    /// What the requests that can have caused it asked for.
    operations: Vec<Operation>,
    /// The budgets that were enforced when the request was received.
    known_to: Vec<Id>,
    /// The request, in words.
    pub(super) by: String,
    /// The revision with which the pod was whole again.
    over: Option<u64>,
}

impl Record {
    /// A disruption that these operations can have caused.
    pub(super) fn new(
        effect: &Rc<Effect>,
        operations: Vec<Operation>,
        known_to: Vec<Id>,
        by: String,
    ) -> Self {
        Self { effect: Rc::clone(effect), operations, known_to, by, over: None }
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
    fn counts(&self, budget: Id, spec: &Spec) -> bool {
        self.concerns(spec) && (!self.in_place() || self.known_to.contains(&budget))
    }

    /// Whether the pod was out at this revision, or is still.
    fn out(&self, revision: u64) -> bool {
        self.over.is_none_or(|over| (self.effect.revision..over).contains(&revision))
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

    /// Whether the pod still exists after it.
    pub(super) fn in_place(&self) -> bool {
        self.effect.kind != Disruption::Removed
    }
}

impl Taken {
    /// Adds a disruption. `seen` are the states of the pod since then, with their revisions.
    pub(super) fn add<'a>(&mut self, mut record: Record, seen: impl Iterator<Item = (&'a Pod, u64)>) {
        for (pod, revision) in seen {
            record.observe(pod, revision);
        }
        self.records.entry(record.effect.pod.id()).or_default().push(record);
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

    /// The disruption because of which a budget must not count the pod at this revision.
    pub(super) fn out(&self, pod: Id, budget: Id, spec: &Spec, revision: u64) -> Option<&Record> {
        self.records.get(&pod)?.iter().find(|record| record.out(revision) && record.counts(budget, spec))
    }

    /// Whether an update in place of this pod is not over.
    pub(super) fn updating(&self, pod: Id) -> bool {
        let records = self.records.get(&pod);
        records.is_some_and(|records| records.iter().any(|record| record.in_place() && record.over.is_none()))
    }
}
