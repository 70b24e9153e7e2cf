//! What the engine knows, for readers.

use super::{ControllerPods, Engine};
use crate::basics::{ObjectKey, Text};
use crate::claims::Ledger;
use crate::decision::ProbeDoubt;
use crate::facts::{Budget, BudgetKey, Pod};

impl Engine {
    /// The pod with this name.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Pod> {
        let record = &self.pods[self.pod_id_by_name(key)? as usize];
        (!record.absent).then_some(&record.fact)
    }

    /// The pod with this UID.
    pub fn pod_by_uid(&self, uid: &str) -> Option<&Pod> {
        let record = &self.pods[self.pod_id(uid)? as usize];
        (!record.absent).then_some(&record.fact)
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|(_, record)| !record.absent).map(|(_, record)| &record.fact)
    }

    /// Whether a node with this name is known.
    pub fn knows_node(&self, name: &str) -> bool {
        self.cluster.node_names().any(|node| **node == *name)
    }

    /// Why the probes of a pod do not allow a disruption; `None` if they do, or if it has none.
    pub fn probe_doubt(&self, uid: &str) -> Option<ProbeDoubt> {
        let pod = self.pod_by_uid(uid)?;
        self.cluster.doubt(pod, pod.probe.as_ref()?, self.now)
    }

    /// Hashes pods, budgets, controllers, ages and the time. Nothing else changes in the state-space search of the tests.
    pub(crate) fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        let mut pods: Vec<_> = self.pods.iter().map(|(_, record)| (&record.fact, record.absent)).collect();
        pods.sort_by(|(a, _), (b, _)| a.uid.cmp(&b.uid));
        let mut budgets: Vec<_> = self
            .budgets
            .iter()
            .map(|(_, record)| (&record.fact, &record.draft, record.steady_since))
            .collect();
        budgets.sort_by(|(a, ..), (b, ..)| a.key.cmp(&b.key));
        (pods, budgets, self.cluster.sorted_controllers()).hash(state);
        (&self.absences, &self.pod_lists, self.pods_version, self.now, &self.ages).hash(state);
    }

    /// Whether a pod is known, even if only as absent from a list.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        self.pod_id(uid).is_some()
    }

    /// A budget.
    pub fn budget(&self, key: &BudgetKey) -> Option<&Budget> {
        self.by_key.get(key).map(|id| &self.budgets[*id as usize].fact)
    }

    /// The ledger of a budget that decisions count: the draft of a write in flight, else the observed one.
    pub(crate) fn ledger(&self, key: &BudgetKey) -> Option<&Ledger> {
        self.by_key.get(key).map(|id| self.budgets[*id as usize].ledger())
    }

    /// Whether every replica knows what a budget covers.
    pub(crate) fn is_open(&self, key: &BudgetKey) -> bool {
        self.by_key.get(key).is_some_and(|id| self.budgets[*id as usize].is_open())
    }

    /// Whether the budget may be opened: its namespace is labeled or excluded, or the budget only observes.
    pub(crate) fn is_guarded(&self, key: &BudgetKey) -> bool {
        let observes =
            self.budget(key).is_some_and(|budget| budget.spec.as_ref().is_ok_and(|rules| rules.observe));
        let namespace = self.cluster.namespaces.get(&key.object.namespace);
        observes || namespace.is_some_and(|namespace| namespace.guarded || namespace.excluded)
    }

    /// All budgets.
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budgets.iter().map(|(_, record)| &record.fact)
    }

    /// The budgets that cover a pod, in the order in which they are checked.
    pub fn covering(&self, uid: &str) -> Vec<BudgetKey> {
        let Some(id) = self.pod_id(uid) else { return Vec::new() };
        let mut keys: Vec<_> = self.pods[id as usize]
            .members
            .iter()
            .map(|member| self.budgets[member.budget as usize].fact.key.clone())
            .collect();
        keys.sort();
        keys
    }

    /// Whether a budget covers a pod.
    pub(crate) fn is_covered_by(&self, uid: &str, key: &BudgetKey) -> bool {
        let (Some(pod), Some(budget)) = (self.pod_id(uid), self.budget_id(key)) else { return false };
        self.pods[pod as usize].members.iter().any(|member| member.budget == budget)
    }

    /// The pods that a budget covers, in the order of their names.
    pub fn covered(&self, key: &BudgetKey) -> Vec<&Pod> {
        let mut pods: Vec<&Pod> = self.covered_unsorted(key).collect();
        pods.sort_by(|a, b| a.key.cmp(&b.key).then_with(|| a.uid.cmp(&b.uid)));
        pods
    }

    /// The pods that a budget covers.
    pub(crate) fn covered_unsorted(&self, key: &BudgetKey) -> impl Iterator<Item = &Pod> {
        let budget = self.budget_id(key);
        self.pods_in(&key.object.namespace)
            .map(|pod| &self.pods[pod as usize])
            .filter(move |record| record.members.iter().any(|member| Some(member.budget) == budget))
            .map(|record| &record.fact)
    }

    /// The pods of a namespace.
    pub(crate) fn pods_in(&self, namespace: &Text) -> impl Iterator<Item = u32> {
        self.namespaces.get(namespace).into_iter().flat_map(|index| index.pods.iter().copied())
    }

    pub(crate) fn pod_id(&self, uid: &str) -> Option<u32> {
        self.index.by_uid(&self.pods, uid)
    }

    pub(crate) fn pod_id_by_name(&self, key: &ObjectKey) -> Option<u32> {
        self.index.by_name(&self.pods, key)
    }

    pub(crate) fn budget_id(&self, key: &BudgetKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn pods_of_controller(&self, uid: &str) -> impl Iterator<Item = u32> {
        self.by_controller.get(uid).into_iter().flat_map(ControllerPods::pods)
    }
}
