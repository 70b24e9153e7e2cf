//! Budgets as they are stored: what a write needs besides the facts.

use std::collections::HashMap;

use parking_lot::Mutex;
use quorate_api::budget::StoredBudget;
use quorate_engine::basics::ObjectKey;
use quorate_engine::facts::{BudgetKey, BudgetKind};
use quorate_intake::budget::MissingFields;
use serde_json::Value;

/// The last known version of each budget, from watches and from the responses to calls.
#[derive(Debug, Default)]
pub(crate) struct RawBudgets {
    budgets: Mutex<HashMap<BudgetKey, RawBudget>>,
}

#[derive(Debug)]
struct RawBudget {
    uid: Option<String>,
    version: u64,
    missing: MissingFields,
    status: Value,
}

impl RawBudgets {
    /// Stores a budget, unless a newer version is known.
    pub(crate) fn take(&self, kind: BudgetKind, budget: &StoredBudget) {
        let Some(key) = key(budget).map(|object| BudgetKey { object, kind }) else { return };
        let version = budget.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        let last = RawBudget {
            uid: budget.metadata.uid.clone(),
            version: version.unwrap_or_default(),
            missing: MissingFields::of(kind, budget),
            status: budget.status.clone(),
        };
        let mut budgets = self.budgets.lock();
        let stale =
            budgets.get(&key).is_some_and(|known| known.uid == last.uid && known.version > last.version);
        if !stale {
            budgets.insert(key, last);
        }
    }

    /// Removes a budget that is gone.
    pub(crate) fn remove(&self, key: &BudgetKey) {
        self.budgets.lock().remove(key);
    }

    /// Removes all budgets of a kind except these.
    pub(crate) fn retain(&self, kind: BudgetKind, budgets: &[StoredBudget]) {
        let keys: std::collections::HashSet<ObjectKey> = budgets.iter().filter_map(key).collect();
        self.budgets.lock().retain(|key, _| key.kind != kind || keys.contains(&key.object));
    }

    /// Which fields of the ledger exist in a budget, and which are missing.
    pub(crate) fn missing(&self, key: &BudgetKey) -> MissingFields {
        self.budgets.lock().get(key).map(|last| last.missing.clone()).unwrap_or_default()
    }

    /// The UID of a budget.
    pub(crate) fn uid(&self, key: &BudgetKey) -> Option<String> {
        self.budgets.lock().get(key).and_then(|last| last.uid.clone())
    }

    /// The status of a budget.
    pub(crate) fn status(&self, key: &BudgetKey) -> Option<Value> {
        self.budgets.lock().get(key).map(|last| last.status.clone())
    }
}

pub(crate) fn key(budget: &StoredBudget) -> Option<ObjectKey> {
    Some(ObjectKey::new(budget.metadata.namespace.as_deref()?, budget.metadata.name.as_deref()?))
}
