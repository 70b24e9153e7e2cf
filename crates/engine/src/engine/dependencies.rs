//! The kinds that a budget depends on. If what is known of one of them is stale, the budget cannot be decided on.
//!
//! | kind | a budget depends on it if |
//! |---|---|
//! | pods | always; the replica checks their age before every decision |
//! | controllers of its pods, and their owners | it needs a scale, its `targetRef` follows owners, or the controller itself deletes the pod |
//! | PodGroup, Workload | a group of it is such an object |
//! | the object of a group source | a group of it belongs to such an object |
//! | controllers of these objects | one of these objects has such a controller: a suspended one wants no groups |
//! | PodDisruptionBudget | it is the twin of one, which states its rules |
//! | agents' Leases, nodes | a pod of it has a disruption probe: its result counts only while its agent and its node are there |
//!
//! This runs only while a kind is stale, and stops at the first object of that kind. So its cost does not matter, and
//! nothing is stored for it.

use crate::basics::{GroupKind, ObjectKey, Text, Uid};
use crate::decision::DenialReason;
use crate::engine::{BudgetRecord, Engine, PodRecord};
use crate::facts::{Covers, WorkloadSource};
use crate::group_source::GroupSource;
use crate::sources;
use crate::units::{ExpectedFrom, GroupKey};

/// The kind of the Leases of agents.
const LEASE: (&str, &str) = ("coordination.k8s.io", "Lease");
const NODE: (&str, &str) = ("", "Node");
const NAMESPACE: (&str, &str) = ("", "Namespace");
const NATIVE: (&str, &str) = ("policy", "PodDisruptionBudget");

impl Engine {
    /// The denial because of a stale kind. `by_controller`: the controller of the pod itself deletes it, so what it
    /// wants matters.
    pub(crate) fn stale_dependency(
        &self,
        budget: &BudgetRecord,
        record: &PodRecord,
        by_controller: impl Fn() -> bool,
    ) -> Option<DenialReason> {
        let depends = |kind: &GroupKind| {
            ((is(kind, LEASE) || is(kind, NODE)) && self.depends_on_probes(budget, record))
                || (is(kind, NATIVE) && budget.fact.is_twin)
                || self.depends_on_controllers(budget, kind, &by_controller)
                || self.depends_on_groups(budget, kind)
        };
        let (kind, age) = self.ages.stale(self.now).find(|(kind, _)| depends(kind))?;
        Some(DenialReason::Stale { kind: kind.clone(), seconds: age.as_secs() })
    }

    /// Whether the result of a probe decides on the pod of the request, or on the health of another pod of the budget.
    fn depends_on_probes(&self, budget: &BudgetRecord, record: &PodRecord) -> bool {
        let Some(id) = self.budget_id(&budget.fact.key) else { return false };
        let is_member = |pod: &u32| self.pods[*pod as usize].members.iter().any(|member| member.budget == id);
        self.cluster.probes && (record.fact.probe.is_some() || self.probed.values().flatten().any(is_member))
    }

    /// Whether a namespace is certainly terminating. A watch that lags may still show a namespace that was deleted and
    /// created again since.
    pub(crate) fn is_terminating(&self, namespace: &Text) -> bool {
        let is_shown = self.cluster.namespaces.get(namespace).is_some_and(|namespace| namespace.terminating);
        is_shown && !self.ages.stale(self.now).any(|(kind, _)| is(kind, NAMESPACE))
    }

    fn depends_on_controllers(
        &self,
        budget: &BudgetRecord,
        kind: &GroupKind,
        by_controller: impl Fn() -> bool,
    ) -> bool {
        let (rules, tally) = (&budget.rules, &budget.tally);
        let follows = match &rules.covers {
            Covers::Target(target, _) if target == kind => return true,
            covers => matches!(covers, Covers::Target(..)),
        };
        let needs_scale = tally.needs_scale_of_singles(rules).is_some();
        (follows || needs_scale || by_controller())
            && tally.scales.controllers().any(|uid| self.cluster.has_in_chain(uid, kind))
    }

    fn depends_on_groups(&self, budget: &BudgetRecord, kind: &GroupKind) -> bool {
        let (role, tally) = (Role::of(kind), &budget.tally);
        if tally.units.iter().any(|(_, unit)| role.makes(&unit.key)) {
            return true;
        }
        let states = |source: &ExpectedFrom| match source {
            ExpectedFrom::Scale(uid) => self.cluster.has_in_chain(uid, kind),
            source => role.states(source),
        };
        if tally.expected_sources().any(states) {
            return true;
        }
        let namespace = &budget.fact.key.object.namespace;
        tally.units.iter().any(|(_, unit)| {
            let owner = self.owner_of_group(namespace, &unit.key);
            owner.is_some_and(|(owner, uid)| owner == kind || self.cluster.has_in_chain(uid, kind))
        })
    }

    /// The kind and UID of the controller of a group object.
    fn owner_of_group(&self, namespace: &Text, key: &GroupKey) -> Option<(&GroupKind, &Uid)> {
        let object = |name: &Text| ObjectKey { namespace: namespace.clone(), name: name.clone() };
        let owner = match key {
            GroupKey::PodGroup(name) => self.cluster.pod_group(&object(name))?.controller.as_ref()?,
            GroupKey::Replica(source, name, ..) => {
                self.cluster.workload(*source, object(name))?.owner.as_ref()?
            }
            GroupKey::OfSource(source, name, _) => {
                self.cluster.of_source(source, namespace, name)?.owner.as_ref()?
            }
            GroupKey::Label(_) | GroupKey::Owner(_) => return None,
        };
        Some((&owner.kind, &owner.uid))
    }
}

/// What the objects of a kind are to groups.
enum Role {
    PodGroup,
    Workload(WorkloadSource),
    Source(&'static GroupSource),
    None,
}

impl Role {
    fn of(kind: &GroupKind) -> Self {
        let workload = [WorkloadSource::Own, WorkloadSource::Upstream];
        if *kind == sources::pod_group_kind() {
            Self::PodGroup
        } else if let Some(source) = workload.into_iter().find(|s| *kind == sources::workload_kind(*s)) {
            Self::Workload(source)
        } else {
            GroupSource::of_kind(kind).map_or(Self::None, Self::Source)
        }
    }

    /// Whether a group is made by an object of this kind.
    fn makes(&self, key: &GroupKey) -> bool {
        match (self, key) {
            (Self::PodGroup, GroupKey::PodGroup(_)) => true,
            (Self::Workload(of), GroupKey::Replica(source, ..)) => of == source,
            (Self::Source(of), GroupKey::OfSource(source, ..)) => of == source,
            _ => false,
        }
    }

    /// Whether an object of this kind states an expected number of groups.
    fn states(&self, source: &ExpectedFrom) -> bool {
        match (self, source) {
            (Self::PodGroup, ExpectedFrom::Lone(_) | ExpectedFrom::Template(..)) => true,
            (Self::Workload(of), ExpectedFrom::Workload(source, ..)) => of == source,
            _ => false,
        }
    }
}

fn is(kind: &GroupKind, (group, name): (&str, &str)) -> bool {
    *kind.group == *group && *kind.kind == *name
}
