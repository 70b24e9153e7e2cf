//! Converts objects and admission reviews into facts and requests, and decisions and status back into JSON.
//!
//! This is the only crate that depends on both the objects of [`quorate_api`] and the facts of [`quorate_engine`].
//! Like the engine it is pure: no client, no runtime, no clock. No input from outside makes it panic.
//!
//! - [`objects`]: watched objects to facts.
//! - [`budget`]: budgets to facts, their validation, and status and claims back to JSON.
//! - [`kruise`]: OpenKruise's budgets to the same facts.
//! - [`workload`]: validation of `scheduling.quorate.dev` Workloads.
//! - [`probe`]: disruption probes as pods declare them.
//! - [`admission`]: admission reviews to requests, decisions to responses.
//! - [`match_conditions`]: CEL conditions that limit the calls of the API server.
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
mod resources;
pub mod selector;
mod syntax;
pub mod template;
pub mod time;
pub mod workload;

pub use error::{Problem, Unreadable};
