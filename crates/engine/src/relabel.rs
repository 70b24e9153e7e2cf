//! Relabels: changes of labels or owners that take a pod out of a budget, or out of a group of it.
//!
//! The pod before the change is the one that this replica knows; only what the change requests comes from the request. A
//! change that takes the pod out of nothing is not decided.

use smallvec::SmallVec;

use crate::basics::Text;
use crate::decision::{Departure, Noun};
use crate::engine::{BudgetRecord, Engine, Membership, PodRecord};
use crate::facts::{BudgetKey, Operation};
use crate::ledger::ProtocolRule;
use crate::request::Request;
use crate::tally::UnitSlot;
use crate::units;

impl Engine {
    /// Whether a budget of a namespace may deny an operation.
    pub fn may_deny(&self, operation: Operation, namespace: &Text) -> bool {
        self.budgets_in(namespace)
            .into_iter()
            .map(|id| &self.budgets[id as usize])
            .any(|budget| self.decides(budget, operation) && !budget.rules.observe)
    }

    /// Whether a budget decides an operation.
    pub(crate) fn decides(&self, budget: &BudgetRecord, operation: Operation) -> bool {
        budget.decides(operation, !self.is_without(ProtocolRule::ReopensForAll))
    }

    /// The budgets that a request is about: those that cover the pod, or for a relabel those that the pod leaves, itself or
    /// one of their groups.
    pub(crate) fn concerned<'a>(
        &self,
        request: &Request,
        record: &'a PodRecord,
    ) -> SmallVec<[&'a Membership; 4]> {
        let placement = request.placement.as_deref().filter(|_| request.operation == Operation::Relabel);
        let Some(placement) = placement else { return record.members.iter().collect() };
        let after = placement.applied_to(&record.fact);
        let covering = self.covering_by(&after);
        let stays = |member: &Membership| {
            let rules = &self.budgets[member.budget as usize].rules;
            covering.contains(&member.budget)
                && units::unit_key(rules, &after) == units::unit_key(rules, &record.fact)
        };
        record.members.iter().filter(|member| !stays(member)).collect()
    }

    /// What a pod leaves in a budget.
    pub(crate) fn departure(&self, uid: &str, key: &BudgetKey) -> Option<Departure> {
        let budget = self.budget_id(key)?;
        let record = &self.pods[self.pod_id(uid)? as usize];
        let member = record.members.iter().find(|member| member.budget == budget)?;
        let home = &self.budgets[budget as usize];
        let (tally, healthy) = (&home.tally, member.counts.healthy);
        let (mut numbers, group, counted) = match member.slot {
            UnitSlot::Pod => (tally.numbers(&home.rules), None, healthy),
            UnitSlot::Single => (tally.single_numbers(&home.rules), None, healthy),
            UnitSlot::Ungrouped => (tally.numbers(&home.rules), None, false),
            UnitSlot::Group(unit) => {
                let unit = &tally.units[unit as usize];
                let falls = healthy && unit.is_whole() && unit.min_count == Some(unit.healthy);
                (tally.numbers(&home.rules), Some(tally.shown(&unit.name)), falls)
            }
        };
        numbers.current -= u32::from(counted).min(numbers.current);
        numbers.allowed = numbers.current.saturating_sub(numbers.desired);
        let by_group = matches!(member.slot, UnitSlot::Group(_) | UnitSlot::Ungrouped);
        let noun = if by_group { Noun::Group } else { Noun::Pod };
        Some(Departure {
            pod: record.fact.key.name.clone(),
            budget: key.clone(),
            is_twin: home.fact.is_twin,
            group,
            noun,
            numbers,
        })
    }
}
