//! Validates budgets, Workloads and the probes of pods, and warns about what a budget would do.

use quorate_api::budget::StoredBudget;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::decision::Noun;
use quorate_engine::facts::{Budget, BudgetKind};
use quorate_engine::status::{ConditionType, Scope, Status};
use quorate_intake::admission::{self as reviews, Rejected, Review};
use quorate_intake::budget::{self, KnownNumbers};
use serde_json::Value;

use super::{AdmissionState, LIMIT};

/// Validates a budget, a Workload or the probes of a pod. A valid budget that would cause a problem gets a warning.
pub(super) async fn validate(state: &AdmissionState, body: &[u8]) -> Result<Value, Rejected> {
    let review = reviews::read(body, LIMIT)?;
    let kind = match review.resource().as_str() {
        "disruptionbudgets" => BudgetKind::DisruptionBudget,
        "podunavailablebudgets" => BudgetKind::PodUnavailableBudget,
        // With the gate off, Quorate does not read probes, so it does not validate them.
        "pods" if !state.gates.disruption_probe => return Ok(reviews::allow(review.uid())),
        _ => return review.validate(KnownNumbers::default(), &[], &[]),
    };
    // Budgets that this process does not serve are not validated here.
    if kind == BudgetKind::PodUnavailableBudget && *state.kruise.borrow() != Some(true) {
        return Ok(reviews::allow(review.uid()));
    }
    let Some(budget) = budget(kind, &review) else {
        return review.validate(KnownNumbers::default(), &[], &[]);
    };
    let neighbours = match kind {
        BudgetKind::DisruptionBudget => Vec::new(),
        BudgetKind::PodUnavailableBudget => state.replica.neighbours(budget.key.clone()).await,
    };
    let status = state.replica.preview(budget).await;
    let (known, warnings) = status.as_ref().map(foresee).unwrap_or_default();
    review.validate(known, &warnings, &neighbours)
}

/// The budget as a fact, if it can be read.
fn budget(kind: BudgetKind, review: &Review<'_>) -> Option<Budget> {
    let mut object: StoredBudget = serde_json::from_value(review.object().ok()?).ok()?;
    // A new object has neither a UID nor a version yet, and a fact needs both.
    let meta = &mut object.metadata;
    meta.uid.get_or_insert_with(|| "new".to_owned());
    meta.resource_version.get_or_insert_with(|| "1".to_owned());
    // The preview must not count the claims in the status of the object.
    object.status = Value::Null;
    budget::fact(kind, &object).ok()
}

/// The expected number and the size of the groups, and the warnings that come from the state of the cluster.
fn foresee(status: &Status) -> (KnownNumbers, Vec<String>) {
    // The warnings on the expected number are about the units of the budget, not about pods without a group.
    let expected = Some(status.units.expected)
        .filter(|expected| *expected > 0 && (status.noun == Noun::Group) == (status.scope != Scope::Pod));
    let known = KnownNumbers {
        expected,
        group_size: status.group_size.map(|size| size.pods),
        falls_whole: status.group_size.is_some_and(|size| size.falls_whole),
    };
    let warned = |reason: ConditionReason| match reason {
        // `Review::validate` finds these by itself, from the spec and the known numbers.
        ConditionReason::NeverAllows
        | ConditionReason::Invalid
        | ConditionReason::ExpectedFromObservation => false,
        ConditionReason::UnreachableMinimum => known.group_size.is_none(),
        _ => true,
    };
    let warnings = status
        .conditions
        .iter()
        .filter(|c| c.kind == ConditionType::BudgetConfigured && !c.status && warned(c.reason))
        .map(|condition| format!("{}: {}", condition.reason, condition.message))
        .collect();
    (known, warnings)
}

#[cfg(test)]
mod tests {
    use quorate_engine::decision::Numbers;
    use quorate_engine::facts::Memory;
    use quorate_engine::status::{Condition, GroupSize};

    use super::*;

    fn status(reason: ConditionReason, group_size: Option<GroupSize>) -> Status {
        let condition = |kind: ConditionType, reason: ConditionReason| Condition {
            kind,
            status: reason.remedy().is_none(),
            reason,
            message: "m".to_owned(),
        };
        Status {
            generation: 1,
            scope: Scope::Group,
            noun: Noun::Group,
            units: Numbers { allowed: 0, current: 4, desired: 3, expected: 4 },
            group_size,
            pods_healthy: 16,
            pods_desired: 12,
            pods_expected: 16,
            disrupted: Vec::new(),
            updating: Vec::new(),
            groups: Vec::new(),
            groups_omitted: 0,
            memory: Memory::default(),
            conditions: [
                condition(ConditionType::DisruptionAllowed, ConditionReason::SyncFailed),
                condition(ConditionType::BudgetConfigured, reason),
                condition(ConditionType::Enforced, ConditionReason::JustCreated),
            ],
        }
    }

    #[test]
    fn the_size_of_the_groups_is_known_and_nothing_is_warned_about_twice() {
        let whole = Some(GroupSize { pods: 4, falls_whole: true });
        let unreachable = "UnreachableMinimum: m";
        let cases = [
            (ConditionReason::ValidConfig, whole, None),
            // The warning comes from the size.
            (ConditionReason::UnreachableMinimum, whole, None),
            // Only the state of the cluster shows it.
            (ConditionReason::UnreachableMinimum, None, Some(unreachable)),
            (ConditionReason::MissingGroupLabel, whole, Some("MissingGroupLabel: m")),
            (ConditionReason::NeverAllows, None, None),
        ];
        for (reason, size, expected) in cases {
            let (known, warnings) = foresee(&status(reason, size));
            assert_eq!(known.group_size, size.map(|size| size.pods), "{reason}");
            assert_eq!((known.falls_whole, known.expected), (size.is_some(), Some(4)), "{reason}");
            assert_eq!(warnings, expected.into_iter().collect::<Vec<_>>(), "{reason}");
        }
    }

    #[test]
    fn pods_without_a_group_are_not_taken_for_groups() {
        let single = Status { noun: Noun::Pod, ..status(ConditionReason::MissingGroupLabel, None) };
        assert_eq!(foresee(&single).0.expected, None);
    }
}
