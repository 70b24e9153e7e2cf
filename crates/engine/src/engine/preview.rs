//! What would be, and what is in few numbers.

use crate::basics::Time;
use crate::decision::Numbers;
use crate::engine::Engine;
use crate::facts::{Budget, BudgetKey, Input};
use crate::status::Status;

impl Engine {
    /// The status that a budget would have if it were there now; nothing that is there is changed by it.
    pub fn preview(&mut self, mut budget: Budget, now: Time) -> Option<Status> {
        self.pass_time(now);
        // Beside the one of its name, if there is one: no object is named like this.
        budget.key.object.name = format!("{}/preview", budget.key.object.name).into();
        let key = budget.key.clone();
        self.take(Input::Budget(budget));
        let status = self.status(&key, now);
        self.take(Input::BudgetGone(key));
        status
    }

    /// How many pods are known.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// The numbers of a budget in its units; nothing for one that cannot be read.
    pub fn numbers(&self, key: &BudgetKey) -> Option<Numbers> {
        let record = &self.budgets[self.budget_id(key)? as usize];
        record.fact.spec.is_ok().then(|| record.tally.numbers(&record.rules))
    }
}
