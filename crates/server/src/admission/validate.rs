//! Validates budgets, Workloads and the probes of pods, and warns about what a budget would do.

use quorate_api::budget::StoredBudget;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::facts::{Budget, BudgetKind};
use quorate_engine::status::{ConditionType, Status};
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

/// The expected number, and the warnings that come from the state of the cluster.
fn foresee(status: &Status) -> (KnownNumbers, Vec<String>) {
    let expected = Some(status.units.expected).filter(|expected| *expected > 0);
    let known = KnownNumbers { expected, ..KnownNumbers::default() };
    let warned = |reason: ConditionReason| {
        // `Review::validate` finds these by itself, from the spec and the expected number.
        ![ConditionReason::NeverAllows, ConditionReason::Invalid, ConditionReason::ExpectedFromObservation]
            .contains(&reason)
    };
    let warnings = status
        .conditions
        .iter()
        .filter(|c| c.kind == ConditionType::BudgetConfigured && !c.status && warned(c.reason))
        .map(|condition| format!("{}: {}", condition.reason, condition.message))
        .collect();
    (known, warnings)
}
