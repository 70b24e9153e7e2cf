//! Previews of budgets, and a few numbers.

use crate::basics::Time;
use crate::decision::Numbers;
use crate::engine::Engine;
use crate::facts::{Budget, BudgetKey, Input};
use crate::status::Status;

impl Engine {
    /// The status that a budget would have if it existed now. Nothing else changes.
    pub fn preview(&mut self, mut budget: Budget, now: Time) -> Option<Status> {
        self.pass_time(now);
        // A budget with the same name may exist, so use a name that no object can have.
        budget.key.object.name = format!("{}/preview", budget.key.object.name).into();
        let key = budget.key.clone();
        self.take(Input::Budget(budget));
        let status = self.status(&key, now);
        self.take(Input::BudgetGone(key));
        status
    }

    /// The number of known pods.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// The numbers of a budget, as its status shows them; `None` for an invalid one.
    pub fn numbers(&self, key: &BudgetKey) -> Option<Numbers> {
        let record = &self.budgets[self.budget_id(key)? as usize];
        record.fact.spec.is_ok().then(|| self.shown_numbers(record).1)
    }
}
