//! Budgets as they are stored: what a write has to know besides the facts.

use std::collections::HashMap;

use parking_lot::Mutex;
use quorate_api::budget::StoredBudget;
use quorate_engine::basics::ObjectKey;
use quorate_engine::facts::{BudgetKey, Front};
use quorate_intake::budget::Base;
use serde_json::Value;

/// The last that was seen of each budget, from watches and from answers to our own writes.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    budgets: Mutex<HashMap<BudgetKey, Last>>,
}

#[derive(Debug)]
struct Last {
    uid: Option<String>,
    version: u64,
    base: Base,
    status: Value,
}

impl Stored {
    /// Takes in how a budget looks, unless something newer was seen of it.
    pub(crate) fn take(&self, front: Front, budget: &StoredBudget) {
        let Some(key) = key(budget).map(|object| BudgetKey { object, front }) else { return };
        let version = budget.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        let last = Last {
            uid: budget.metadata.uid.clone(),
            version: version.unwrap_or_default(),
            base: Base::of(front, budget),
            status: budget.status.clone(),
        };
        let mut budgets = self.budgets.lock();
        let stale =
            budgets.get(&key).is_some_and(|known| known.uid == last.uid && known.version > last.version);
        if !stale {
            budgets.insert(key, last);
        }
    }

    /// A budget is gone.
    pub(crate) fn remove(&self, key: &BudgetKey) {
        self.budgets.lock().remove(key);
    }

    /// Only these budgets of a front are left.
    pub(crate) fn retain(&self, front: Front, budgets: &[StoredBudget]) {
        let keys: std::collections::HashSet<ObjectKey> = budgets.iter().filter_map(key).collect();
        self.budgets.lock().retain(|key, _| key.front != front || keys.contains(&key.object));
    }

    /// Which places of the ledger are there.
    pub(crate) fn base(&self, key: &BudgetKey) -> Base {
        self.budgets.lock().get(key).map(|last| last.base.clone()).unwrap_or_default()
    }

    /// Its UID.
    pub(crate) fn uid(&self, key: &BudgetKey) -> Option<String> {
        self.budgets.lock().get(key).and_then(|last| last.uid.clone())
    }

    /// Its status.
    pub(crate) fn status(&self, key: &BudgetKey) -> Option<Value> {
        self.budgets.lock().get(key).map(|last| last.status.clone())
    }
}

pub(crate) fn key(budget: &StoredBudget) -> Option<ObjectKey> {
    Some(ObjectKey::new(budget.metadata.namespace.as_deref()?, budget.metadata.name.as_deref()?))
}
