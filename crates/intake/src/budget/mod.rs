//! Budgets: reads spec and ledger, writes status and claims.
//!
//! One parser reads the spec for the webhook and for the engine, so that both agree on its meaning. A stored budget
//! with an invalid spec becomes a [`Broken`] budget: it denies requests with the reason, and affects no other budget.

mod commit;
mod ledger;
mod memory;
mod release;
mod spec;
mod status;
mod warnings;

pub use commit::{MissingFields, json_patch};
pub use ledger::{admissions_to_json, claim_to_json, coverage_to_json, read_admissions};
pub use release::release_patch;
pub use spec::validate;
pub(crate) use spec::{ParsedSpec, read_covers, read_quantity, required};
pub use status::{patch as status_patch, steps as status_steps};
pub use warnings::{KnownNumbers, warnings};

use quorate_api::DisruptionBudget;
use quorate_api::budget::StoredBudget;
use quorate_engine::facts::{self, Broken, BudgetKey, BudgetKind, RuleAnnotations, Rules};
use serde_json::Value;

use crate::error::{Problem, Unreadable};
use crate::kruise;
use crate::objects::{Incoming, is_twin};

/// A stored `DisruptionBudget` as a fact.
pub fn budget(object: &StoredBudget) -> Result<facts::Budget, Unreadable> {
    fact(BudgetKind::DisruptionBudget, object)
}

/// A stored budget of either kind as a fact. Only a budget without a name, a UID or a version is an error.
pub fn fact(kind: BudgetKind, object: &StoredBudget) -> Result<facts::Budget, Unreadable> {
    let (name, reading) = match kind {
        BudgetKind::DisruptionBudget => ("DisruptionBudget", spec::read(&object.spec)),
        BudgetKind::PodUnavailableBudget => ("PodUnavailableBudget", kruise::read(object)),
    };
    let incoming = Incoming::new(name, &object.metadata);
    let mut problems = reading.refused;
    let ledger = ledger::read(&object.status, &mut problems);
    let spec = match problems.first() {
        None => Ok(reading.rules),
        Some(first) => Err(Broken {
            why: why(first, problems.len() - 1).into(),
            covers: reading.rules.covers,
            operations: reading.operations_if_broken,
        }),
    };
    Ok(facts::Budget {
        key: BudgetKey { object: incoming.key()?, kind },
        uid: incoming.uid()?,
        generation: object.metadata.generation.unwrap_or_default(),
        version: incoming.version()?,
        spec,
        annotations: match kind {
            BudgetKind::DisruptionBudget => RuleAnnotations::default(),
            BudgetKind::PodUnavailableBudget => kruise::rule_annotations(object),
        },
        is_twin: kind == BudgetKind::DisruptionBudget && is_twin(&object.metadata),
        ledger,
        gone: ledger::gone(&object.status),
        memory: memory::read(&object.status),
    })
}

/// A decoded `DisruptionBudget` as a fact.
pub fn typed(object: &DisruptionBudget) -> Result<facts::Budget, Unreadable> {
    budget(&StoredBudget {
        metadata: object.metadata.clone(),
        spec: serde_json::to_value(&object.spec).unwrap_or_default(),
        status: serde_json::to_value(&object.status).unwrap_or_default(),
    })
}

/// The rules of a stored spec, or its problems.
pub fn rules(spec: &Value) -> Result<Rules, Vec<Problem>> {
    let reading = spec::read(spec);
    if reading.refused.is_empty() { Ok(reading.rules) } else { Err(reading.refused) }
}

fn why(first: &Problem, more: usize) -> String {
    match more {
        0 => first.to_string(),
        1 => format!("{first}; and one more problem"),
        more => format!("{first}; and {more} more problems"),
    }
}
