//! Controllers in the owner chain of a pod that are not known yet.
//!
//! A budget with a `targetRef` covers the pods of a workload, found by following the controllers of each pod upwards.
//! If one of them is unknown, the engine cannot decide whether the budget covers the pod. A kind that is not watched
//! ends the chain: its owners are never known.

use crate::SafetyRule;
use crate::basics::{GroupKind, ObjectKey, Uid};
use crate::decision::{Denial, DenialReason, Unresolved};
use crate::engine::{Engine, PodRecord};
use crate::facts::{BudgetKey, Controller, Covers, Operation, Owner};
use crate::sources;
use crate::tally::UnitSlot;

impl Engine {
    /// The first unknown controller above a pod, with its namespace and name; only if a budget of the namespace has a
    /// `targetRef`.
    pub(crate) fn unknown_owner(&self, uid: &str) -> Option<(ObjectKey, Owner)> {
        let record = &self.pods[self.pod_id(uid)? as usize];
        let owner = self.unknown_owner_of(record)?;
        let namespace = record.fact.key.namespace.clone();
        Some((ObjectKey { namespace, name: owner.name.clone() }, owner.clone()))
    }

    /// Whether a budget covers a pod, or may cover it: a controller above the pod is not known.
    pub(crate) fn may_cover(&self, key: &BudgetKey, uid: &str) -> bool {
        let by_target = self.budget(key).is_some_and(|budget| {
            let rules = budget.spec.as_ref();
            rules.is_ok_and(|rules| matches!(rules.covers, Covers::Target(..)))
        });
        let in_namespace =
            || self.unknown_owner(uid).is_some_and(|(owner, _)| owner.namespace == key.object.namespace);
        (by_target && in_namespace()) || self.covering(uid).contains(key)
    }

    /// Notes that a consistent read did not find this controller.
    pub(crate) fn owner_is_absent(&mut self, uid: Uid) {
        self.cluster.set_absent_owner(uid);
    }

    /// Takes every controller that is unknown for absent, because all pods and then all controllers were just listed.
    pub fn owners_are_listed(&mut self) {
        let unknown = self.pods.iter().filter_map(|(_, record)| self.cluster.unknown_owner(&record.fact));
        let unknown: Vec<Uid> = unknown.map(|owner| owner.uid.clone()).collect();
        unknown.into_iter().for_each(|uid| self.owner_is_absent(uid));
    }

    /// The denial by a budget with a `targetRef` that may or may not cover the pod.
    pub(crate) fn may_be_covered(&self, record: &PodRecord, operation: Operation) -> Option<Denial> {
        let owner = self.unknown_owner_of(record)?;
        let targets = self.targeting(record).map(|id| &self.budgets[id as usize]);
        let deciding = targets.filter(|budget| self.decides(budget, operation) && !budget.rules.observe);
        let budget = deciding.map(|budget| &budget.fact.key).min()?;
        Some(Denial { budget: Some(budget.clone()), reason: unknown(record, owner) })
    }

    /// The controller because of which the unit of a pod is above the expected number; `None` if the unit is expected.
    pub(crate) fn source_of(&self, uid: &str, key: &BudgetKey) -> Option<(GroupKind, ObjectKey)> {
        let (record, budget) = (&self.pods[self.pod_id(uid)? as usize], self.budget_id(key)?);
        let member = record.members.iter().find(|member| member.budget == budget)?;
        let UnitSlot::Group(unit) = member.slot else { return None };
        let unit = &self.budgets[budget as usize].tally.units[unit as usize];
        if !unit.surge {
            return None;
        }
        let says = sources::idle_controller(
            &unit.key,
            &unit.expected_from,
            &record.fact.key.namespace,
            &self.cluster,
        )?;
        Some((says.kind.clone(), says.key.clone()))
    }

    /// The controller with this kind and name.
    pub(crate) fn controller_named(&self, kind: &GroupKind, key: &ObjectKey) -> Option<&Controller> {
        self.cluster.controller_named(kind, key)
    }

    /// A denial if the namespace has a pod of which it is not known whether a budget with a `targetRef` covers it. A pod
    /// that is terminating or has ended makes no group whole: its controller may be gone for good.
    pub(crate) fn undecided_member(&self, record: &PodRecord, covers: &Covers) -> Option<DenialReason> {
        let Covers::Target(..) = covers else { return None };
        let index = self.namespaces.get(&record.fact.key.namespace)?;
        let pods = index.pods.iter().map(|id| &self.pods[*id as usize]);
        let may_count = |record: &&PodRecord| {
            !record.absent && !record.fact.terminating && !record.fact.phase.is_terminal()
        };
        pods.filter(may_count).find_map(|record| Some(unknown(record, self.unknown_owner_of(record)?)))
    }

    fn unknown_owner_of<'a>(&'a self, record: &'a PodRecord) -> Option<&'a Owner> {
        if SafetyRule::UnknownOwnersAreRead.is_left_out() {
            return None;
        }
        self.targeting(record).next()?;
        self.cluster.unknown_owner(&record.fact)
    }

    /// The budgets with a `targetRef` in the namespace of a pod.
    fn targeting(&self, record: &PodRecord) -> impl Iterator<Item = u32> {
        let index = self.namespaces.get(&record.fact.key.namespace);
        index.into_iter().flat_map(|index| index.targets.values().flatten().copied())
    }
}

fn unknown(record: &PodRecord, owner: &Owner) -> DenialReason {
    DenialReason::Unresolved(Unresolved::Owner {
        pod: record.fact.key.name.clone(),
        kind: owner.kind.kind.clone(),
        name: owner.name.clone(),
    })
}
