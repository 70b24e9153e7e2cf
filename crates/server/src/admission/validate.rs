//! Our own objects, and the probes of pods: whether they make sense, and what they would do.

use quorate_api::budget::StoredBudget;
use quorate_engine::facts::{Budget, BudgetKind};
use quorate_engine::status::{ConditionType, Status, reason};
use quorate_intake::admission::{self as reviews, Rejected, Review};
use quorate_intake::budget::{self, Known};
use serde_json::Value;

use super::{AdmissionState, LIMIT};

/// Says whether a budget, a Workload or the probes of a pod make sense; a budget that does and will hurt gets a warning.
pub(super) async fn validate(state: &AdmissionState, body: &[u8]) -> Result<Value, Rejected> {
    let review = reviews::read(body, LIMIT)?;
    let kind = match review.resource().as_str() {
        "disruptionbudgets" => BudgetKind::DisruptionBudget,
        "podunavailablebudgets" => BudgetKind::PodUnavailableBudget,
        // Where nobody reads probes, none is wrong.
        "pods" if !state.gates.disruption_probe => return Ok(reviews::allow(review.uid())),
        _ => return review.validate(Known::default(), &[], &[]),
    };
    // What somebody else serves is for somebody else to judge.
    if kind == BudgetKind::PodUnavailableBudget && *state.kruise.borrow() != Some(true) {
        return Ok(reviews::allow(review.uid()));
    }
    let Some(budget) = budget(kind, &review) else { return review.validate(Known::default(), &[], &[]) };
    let neighbours = match kind {
        BudgetKind::DisruptionBudget => Vec::new(),
        BudgetKind::PodUnavailableBudget => state.replica.neighbours(budget.key.clone()).await,
    };
    let status = state.replica.preview(budget).await;
    let (known, warnings) = status.as_ref().map(foresee).unwrap_or_default();
    review.validate(known, &warnings, &neighbours)
}

/// The budget as a fact, if it is one that can be read.
fn budget(kind: BudgetKind, review: &Review<'_>) -> Option<Budget> {
    let mut object: StoredBudget = serde_json::from_value(review.object().ok()?).ok()?;
    // A new one has neither, and is counted like one that has.
    let meta = &mut object.metadata;
    meta.uid.get_or_insert_with(|| "new".to_owned());
    meta.resource_version.get_or_insert_with(|| "1".to_owned());
    // Nothing of what was admitted before, which a status may tell, belongs to the question.
    object.status = Value::Null;
    budget::fact(kind, &object).ok()
}

/// What the numbers say, and the warnings that come from what is in the cluster.
fn foresee(status: &Status) -> (Known, Vec<String>) {
    let expected = Some(status.units.expected).filter(|expected| *expected > 0);
    let known = Known { expected, ..Known::default() };
    let warned = |reason: &str| {
        // Those that the numbers alone tell are told by them already.
        ![reason::NEVER_ALLOWS, reason::INVALID, reason::EXPECTED_FROM_OBSERVATION].contains(&reason)
    };
    let warnings = status
        .conditions
        .iter()
        .filter(|c| c.kind == ConditionType::BudgetConfigured && !c.status && warned(c.reason))
        .map(|condition| format!("{}: {}", condition.reason, condition.message))
        .collect();
    (known, warnings)
}
