//! Decides who may be disrupted now.
//!
//! Pure: facts in, verdicts and status out. No clock, no IO, no async, no Kubernetes; time is an argument.

pub mod basics;
pub mod callers;
pub mod claims;
mod cluster_state;
mod coverage;
mod decide;
pub mod decision;
mod engine;
pub mod facts;
mod labels;
pub mod ledger;
mod pool;
mod report;
pub mod request;
mod scales;
pub mod selector;
pub mod sentence;
mod sources;
pub mod status;
mod tally;
mod units;

pub use coverage::{coverage, memory_key};
pub use engine::{Changes, Engine, Gates, Snapshot};
pub use tally::GONE_FOR;
