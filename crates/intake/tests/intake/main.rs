//! What intake makes of objects and reviews as clusters send them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(clippy::needless_pass_by_value, reason = "json!(…) is written where it is used")]

mod answers;
mod budgets;
mod changes;
mod data;
mod hostile;
mod kruise;
mod ledgers;
mod match_conditions;
mod objects;
mod own_objects;
mod pod_creations;
mod pods;
mod probes;
mod reviews;
mod statuses;
mod templates;
mod twins;
mod validation;
