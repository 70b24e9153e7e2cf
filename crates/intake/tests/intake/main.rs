//! What intake makes of objects and reviews as clusters send them.

mod answers;
mod budgets;
mod changes;
mod data;
mod hostile;
mod ledgers;
mod match_conditions;
mod objects;
mod pods;
mod probes;
mod reviews;
mod statuses;
mod validation;
