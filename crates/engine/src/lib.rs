//! Decides which pods may be disrupted now.
//!
//! A pure library: facts in, decisions and status out. It has no clock, no IO, no async code and no Kubernetes client;
//! the current time is an argument.

mod ages;
pub mod basics;
mod budget_review;
pub mod callers;
pub mod claims;
mod cluster_state;
pub mod condition_reason;
mod coverage;
mod decide;
pub mod decision;
mod engine;
pub mod facts;
pub mod group_source;
mod labels;
pub mod ledger;
#[cfg(feature = "mutations")]
mod left_out;
pub mod names;
mod pool;
mod probe_trust;
mod relabel;
mod report;
pub mod request;
mod safety_rule;
mod scales;
pub mod selector;
pub mod sentence;
mod sources;
pub mod status;
mod tally;
mod units;
pub mod workload_kind;

pub use ages::FRESH_FOR;
pub use coverage::{Coverage, memory_key};
pub use engine::{Changes, Engine, Gates, Snapshot};
#[cfg(feature = "mutations")]
pub use left_out::{UnknownRule, leave_out};
pub use safety_rule::SafetyRule;
pub use sources::is_always_watched;
pub use tally::GONE_FOR;
