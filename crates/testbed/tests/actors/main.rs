//! Tests of the actors, on an API server without other controllers, and on one with the real controllers.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]
#![allow(clippy::needless_pass_by_value, reason = "the helpers are called with literals")]
#![allow(clippy::wildcard_imports, reason = "the inner test modules use everything in their file")]

mod budgets;
mod delete_webhook;
mod faults;
mod fixture;
mod leader_worker_sets;
mod nodes;
mod ownership;
mod runs_to_end;
mod workloads;
