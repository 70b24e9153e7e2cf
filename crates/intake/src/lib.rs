//! Objects and requests to facts, verdicts and status back to objects and answers.
//!
//! This is the only crate that knows both worlds: the objects of [`quorate_api`] and the facts of [`quorate_engine`].
//! Like the engine it is pure: no client, no runtime, no clock. Nothing that comes from outside makes it panic.
//!
//! - [`objects`]: watched objects to facts.
//! - [`budget`]: budgets to facts, their validation, status and claims back to JSON.
//! - [`kruise`]: OpenKruise's budgets to the same facts.
//! - [`workload`]: validation of our own `Workload`.
//! - [`probe`]: disruption probes as pods declare them.
//! - [`admission`]: reviews to requests, verdicts to answers.
//! - [`match_conditions`]: what the API server need not ask about.
//! - [`template`]: pods from templates, with the owners that a template names.

pub mod admission;
mod announcements;
pub mod budget;
mod error;
mod field;
pub mod fingerprint;
mod image;
pub mod kruise;
pub mod match_conditions;
pub mod objects;
pub mod probe;
mod quantity;
pub mod selector;
mod syntax;
pub mod template;
pub mod time;
pub mod workload;

pub use error::{Problem, Unreadable};
