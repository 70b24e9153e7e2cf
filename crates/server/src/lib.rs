//! The server: budgets enforced on a cluster.
//!
//! Data walks one way. A watch shows a change → `feed` makes a fact of it → the `keeper`, which alone owns the replica,
//! takes it in → what the replica wants done goes out through `calls`, what changed for readers through `status`.
//! The API server asks → `admission` makes a request of it → the keeper answers, after what it wrote is durable.
//!
//! What only one process does (webhooks, labels, status, and in the replica settling, expiry and opening) the holder of
//! a lease does; each asks right before it writes whether that is still so.
//!
//! - [`start`]: one process, from its Lease to its end.
//! - [`admission`]: the router that the API server asks.
//! - [`webhooks`]: what tells the API server to ask.
//! - [`certificates`]: what the API server trusts.
//! - [`view`]: what a server would know, for whoever asks without one.

mod actor;
pub mod admission;
mod calls;
pub mod certificates;
mod clock;
mod controllers;
mod events;
mod kruise;
pub mod metrics;
mod namespaces;
mod owners;
mod raw_budgets;
mod replicas;
mod run;
mod status;
mod twins;
pub mod view;
mod watches;
pub mod webhooks;

pub use actor::ReplicaHandle;
pub use kruise::ServePub;
pub use quorate_engine::Gates;
pub use run::{Options, Running, start};
