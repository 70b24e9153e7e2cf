//! Writes to the ledger, as JSON Patches on `/status`.

use quorate_api::budget::StoredBudget;
use quorate_engine::facts::BudgetKind;
use quorate_engine::ledger::{LedgerPatch, Step};
use serde_json::{Value, json};

use super::ledger::{claim_to_json, coverage_to_json};

/// What of the ledger is missing in a stored budget, and in which version of it.
///
/// A JSON Patch can test that a value is what it was, but not that there is none; and it cannot put anything into a
/// status that is not there. So the first write fills the places in, on the condition that nobody has written the
/// object since. Whoever writes keeps one of these per budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingFields {
    version: String,
    /// OpenKruise's definition does not take a status without its numbers; ours is another, but may not be there yet.
    kruise: bool,
    status: bool,
    ledger: bool,
    claims: bool,
    settled: bool,
}

impl MissingFields {
    /// What there is in a budget.
    pub fn of(kind: BudgetKind, budget: &StoredBudget) -> Self {
        let status = &budget.status;
        let has = |name: &str| status.get(name).is_some_and(|value| !value.is_null());
        Self {
            version: budget.metadata.resource_version.clone().unwrap_or_default(),
            kruise: kind == BudgetKind::PodUnavailableBudget,
            status: status.is_object(),
            ledger: has("ledger"),
            claims: has("claims"),
            // Empty is how a number that nobody has written looks in a text.
            settled: has("settledVersion") && status.get("settledVersion") != Some(&json!("")),
        }
    }

    fn fill_in(&self) -> Vec<Value> {
        let mut steps = Vec::new();
        if !self.status {
            let numbers = ["unavailableAllowed", "currentAvailable", "desiredAvailable", "totalReplicas"];
            let numbers = numbers.iter().filter(|_| self.kruise).map(|name| ((*name).to_owned(), json!(0)));
            steps.push(add("/status", Value::Object(numbers.collect())));
        }
        if !self.ledger {
            steps.push(add("/status/ledger", json!(0)));
        }
        if !self.claims {
            steps.push(add("/status/claims", json!({})));
        }
        if !self.settled {
            steps.push(add("/status/settledVersion", json!("0")));
        }
        if !steps.is_empty() {
            steps.insert(0, test("/metadata/resourceVersion", json!(self.version)));
        }
        steps
    }
}

/// A write to the ledger as a JSON Patch on `/status` of the budget, whose places are as `base` has seen them.
pub fn json_patch(patch: &LedgerPatch, missing: &MissingFields) -> Value {
    let mut steps = missing.fill_in();
    steps.extend(patch.steps.iter().map(|step| match step {
        Step::TestUid(uid) => test("/metadata/uid", json!(&**uid)),
        Step::TestGeneration(generation) => test("/metadata/generation", json!(generation)),
        Step::TestNumber(number) => test("/status/ledger", json!(number)),
        Step::TestSettled(version) => test("/status/settledVersion", json!(version.0.to_string())),
        Step::SetNumber(number) => operation("replace", "/status/ledger", json!(number)),
        Step::SetSettled(version) => add("/status/settledVersion", json!(version.0.to_string())),
        Step::PutClaim(uid, claim) => add(&claim_at(uid), claim_to_json(claim)),
        Step::RemoveClaim(uid) => json!({ "op": "remove", "path": claim_at(uid) }),
        Step::SetEnforced(coverage) => add("/status/openedFor", coverage_to_json(*coverage)),
        Step::SetProtocol(protocol) => add("/status/protocol", json!(protocol)),
    }));
    Value::Array(steps)
}

fn test(path: &str, value: Value) -> Value {
    operation("test", path, value)
}

/// Puts a value in, also in place of one that is there.
fn add(path: &str, value: Value) -> Value {
    operation("add", path, value)
}

fn operation(op: &str, path: &str, value: Value) -> Value {
    let members = [("op", op.into()), ("path", path.into()), ("value", value)];
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn claim_at(uid: &str) -> String {
    format!("/status/claims/{}", uid.replace('~', "~0").replace('/', "~1"))
}
