//! What a replica wants done, and the calls that it waits for.

use std::collections::{BTreeMap, BTreeSet};

use crate::basics::{GroupKind, ObjectKey, Uid, Version};
use crate::coverage::Coverage;
use crate::decision::Decision;
use crate::engine::Changes;
use crate::facts::BudgetKey;
use crate::ledger::lists::GroupObject;
use crate::ledger::messages::{Acknowledged, Call, CallId, Note, Output, RequestId};
use crate::ledger::reads::ReadTarget;

/// What a call in flight is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// The write of a budget's queue.
    Write(BudgetKey),
    /// The read of a budget after a write that failed or was lost.
    Reread(BudgetKey),
    /// A list of a budget's pods, and what the budget covered when it was sent.
    ListPods(BudgetKey, Option<Coverage>),
    /// The read of a pod or of an owner that requests wait for.
    Read(ReadTarget),
    /// The read of an object that says how many groups of a budget there should be.
    ReadSource(BudgetKey, GroupObject),
    /// The read of a pod whose token is due.
    Expire(BudgetKey, Uid),
    /// The list of a budget's pods because several tokens are due, and what the budget covered when it was sent.
    ExpireListed(BudgetKey, Option<Coverage>),
    /// The version of the store of pods, because the `settledVersion` of a budget lies ahead.
    PodsVersion,
    /// The list of replicas before budgets open, each with the version in which it was first seen.
    ListReplicas(Vec<(BudgetKey, Version)>),
    /// The list of pods before such a budget opens.
    ListPodsToOpen(BudgetKey, Version),
}

/// Outputs of the present step, and calls in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    calls: BTreeMap<CallId, Purpose>,
    /// Reads in flight of controllers whose end was shown since.
    outdated: BTreeSet<CallId>,
    next_call: CallId,
    outputs: Vec<Output>,
    changes: Changes,
}

impl Outbox {
    /// Calls the API server.
    pub(super) fn call(&mut self, call: Call, purpose: Purpose) {
        let id = self.next_call;
        self.next_call += 1;
        self.calls.insert(id, purpose);
        self.outputs.push(Output::Call(id, call));
    }

    /// A call came back. Returns what it was for, once.
    pub(super) fn returned(&mut self, id: CallId) -> Option<Purpose> {
        self.outdated.remove(&id);
        self.calls.remove(&id)
    }

    /// A controller is gone. The reads in flight of its name may show it all the same, or miss its successor.
    pub(super) fn outdate(&mut self, kind: &GroupKind, key: &ObjectKey) {
        let reads = |purpose: &Purpose| match purpose {
            Purpose::Read(ReadTarget::Owner(of, name, _)) | Purpose::ReadSource(_, (of, name)) => {
                of == kind && name == key
            }
            _ => false,
        };
        let calls = self.calls.iter().filter(|(_, purpose)| reads(purpose));
        self.outdated.extend(calls.map(|(id, _)| *id));
    }

    /// Whether a call in flight reads a controller whose end was shown since it was sent.
    pub(super) fn is_outdated(&self, id: CallId) -> bool {
        self.outdated.contains(&id)
    }

    /// The number of lists of pods in flight that are for openings.
    pub(super) fn lists_to_open(&self) -> usize {
        self.calls.values().filter(|purpose| matches!(purpose, Purpose::ListPodsToOpen(..))).count()
    }

    pub(super) fn answer(&mut self, request: RequestId, decision: Decision) {
        self.outputs.push(Output::Answer(request, decision));
    }

    pub(super) fn acknowledge(&mut self, acknowledged: Acknowledged) {
        self.outputs.push(Output::Acknowledge(acknowledged));
    }

    pub(super) fn note(&mut self, note: Note) {
        self.outputs.push(Output::Note(note));
    }

    /// The status of budgets may have changed.
    pub(super) fn changed(&mut self, changes: Changes) {
        self.changes.budgets.extend(changes.budgets);
    }

    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Feeds the calls in flight into a hasher, in their order. Their names only count up.
    pub(super) fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.calls.iter().for_each(|(id, purpose)| (purpose, self.is_outdated(*id)).hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ObjectKey;

    #[test]
    fn a_reply_is_matched_with_its_call_once() {
        let mut outbox = Outbox::default();
        let pod = ObjectKey::new("shop", "web-0");
        outbox.call(Call::GetPod(pod.clone()), Purpose::Read(ReadTarget::Pod(pod.clone())));
        let outputs = outbox.take_outputs();
        let [Output::Call(id, _)] = outputs.as_slice() else { panic!("{outputs:?}") };
        assert_eq!(outbox.returned(*id), Some(Purpose::Read(ReadTarget::Pod(pod))));
        assert_eq!(outbox.returned(*id), None);
        assert!(outbox.take_outputs().is_empty());
    }

    #[test]
    fn only_reads_of_its_name_are_outdated_by_the_end_of_a_controller() {
        let kind = GroupKind::new("apps", "ReplicaSet");
        let mut outbox = Outbox::default();
        for name in ["web", "db"] {
            let key = ObjectKey::new("shop", name);
            let target = ReadTarget::Owner(kind.clone(), key.clone(), name.into());
            outbox.call(Call::GetController(kind.clone(), key), Purpose::Read(target));
        }
        outbox.outdate(&kind, &ObjectKey::new("shop", "web"));
        assert_eq!([0, 1].map(|id| outbox.is_outdated(id)), [true, false]);
        outbox.returned(0);
        assert!(!outbox.is_outdated(0), "it is not in flight any more");
    }
}
