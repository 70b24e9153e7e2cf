//! Writes to the ledger, as JSON patches on `/status`.

use quorate_api::budget::StoredBudget;
use quorate_engine::facts::{BudgetKind, RuleAnnotations};
use quorate_engine::ledger::{LedgerPatch, Step};
use serde_json::{Value, json};

use super::ledger::{claim_to_json, coverage_to_json};

/// The ledger fields that a stored budget lacks, and the version of that budget.
///
/// A JSON patch can test that a value has not changed, but not that a value is missing; and it cannot add a field to a
/// missing status. So the first write adds the missing fields, on the condition that the object has not changed since.
/// A writer keeps one of these per budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingFields {
    version: String,
    /// OpenKruise's CustomResourceDefinition rejects a status without its counts. Quorate's definition does not, but
    /// may not be installed yet.
    kruise: bool,
    status: bool,
    ledger: bool,
    claims: bool,
    settled: bool,
}

impl MissingFields {
    /// Finds the missing fields of a budget.
    pub fn of(kind: BudgetKind, budget: &StoredBudget) -> Self {
        let status = &budget.status;
        let has = |name: &str| status.get(name).is_some_and(|value| !value.is_null());
        Self {
            version: budget.metadata.resource_version.clone().unwrap_or_default(),
            kruise: kind == BudgetKind::PodUnavailableBudget,
            status: status.is_object(),
            ledger: has("ledger"),
            claims: has("claims"),
            // An empty string is the default value: no server has written the field yet.
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

/// A write to the ledger as a JSON patch on `/status` of the budget. It first adds the `missing` fields.
pub fn json_patch(patch: &LedgerPatch, missing: &MissingFields) -> Value {
    let mut steps = missing.fill_in();
    steps.extend(patch.steps.iter().flat_map(operations));
    Value::Array(steps)
}

fn operations(step: &Step) -> Vec<Value> {
    let operation = match step {
        Step::TestUid(uid) => test("/metadata/uid", json!(&**uid)),
        Step::TestVersion(version) => test("/metadata/resourceVersion", json!(version.0.to_string())),
        Step::TestGeneration(generation) => test("/metadata/generation", json!(generation)),
        Step::TestAnnotations(annotations) => return annotation_tests(annotations),
        Step::TestNumber(number) => test("/status/ledger", json!(number)),
        Step::TestSettled(version) => test("/status/settledVersion", json!(version.0.to_string())),
        Step::SetNumber(number) => operation("replace", "/status/ledger", json!(number)),
        Step::SetSettled(version) => add("/status/settledVersion", json!(version.0.to_string())),
        Step::PutClaim(uid, claim) => add(&claim_at(uid), claim_to_json(claim)),
        Step::RemoveClaim(uid) => json!({ "op": "remove", "path": claim_at(uid) }),
        Step::SetProtocol(protocol) => add("/status/protocol", json!(protocol)),
        // The release before reads only `openedFor`. It may serve at the same time, or again after a rollback.
        Step::SetEnforced(coverage, generation) => {
            let coverage = coverage_to_json(*coverage);
            let opened = json!({ "coverage": coverage, "generation": generation });
            return vec![add("/status/opened", opened), add("/status/openedFor", coverage)];
        }
    };
    vec![operation]
}

/// The API server takes `null` in a test for a missing value, if the object around it exists.
fn annotation_tests(annotations: &RuleAnnotations) -> Vec<Value> {
    if !annotations.any {
        return vec![test("/metadata/annotations", Value::Null)];
    }
    let at = |name: &str| format!("/metadata/annotations/{}", name.replace('~', "~0").replace('/', "~1"));
    annotations.values.iter().map(|(name, value)| test(&at(name), json!(value.as_deref()))).collect()
}

fn test(path: &str, value: Value) -> Value {
    operation("test", path, value)
}

/// Sets a value. In a JSON patch, `add` also replaces an existing value.
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
