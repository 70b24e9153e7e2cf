//! The actors, on an API server where they do everything and on one where the real controllers work beside them.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]
#![allow(clippy::needless_pass_by_value, reason = "the helpers are called with literals")]
#![allow(clippy::wildcard_imports, reason = "the modules of one story each take all of its file")]

mod budgets;
mod cast;
mod gate;
mod leader_worker_sets;
mod nodes;
mod ownership;
mod runs_to_end;
mod trouble;
mod workloads;
