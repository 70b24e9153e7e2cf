//! The server: enforces disruption budgets on a cluster.
//!
//! Data flows in one direction. A watch shows a change → `watches` translates it into a fact → the `actor`, the only
//! owner of the replica, applies it → API calls of the replica go out through `calls`, and status changes through
//! `status`. The API server sends an `AdmissionReview` → `admission` reads the request → the actor answers after the
//! write to the ledger is durable.
//!
//! The leader does the work that only one process may do: webhooks, namespace labels, twins, status, and in the replica
//! settling, expiry and opening of budgets. Each of these tasks checks before it writes that this process is still the
//! leader.
//!
//! - [`start`]: runs one process, from its first Lease to its end; [`start_in_process`] without a socket.
//! - [`admission`]: the router that the API server calls.
//! - [`webhooks`]: the webhook configurations, which make the API server call the router.
//! - [`certificates`]: the serving certificate, and the CA bundle that the API server trusts.
//! - [`view`]: the facts that a server would have, for a client that reads the cluster without a server.

mod actor;
pub mod admission;
mod calls;
pub mod certificates;
mod clients;
mod clock;
mod controllers;
mod events;
mod kruise;
mod life;
pub mod metrics;
mod namespaces;
mod own_lease;
mod owners;
mod raw_budgets;
mod released;
mod replicas;
mod run;
mod settings;
mod status;
mod twins;
pub mod view;
mod watches;
pub mod webhooks;

pub use actor::ReplicaHandle;
pub use clients::ClientCertificates;
pub use kruise::ServePub;
pub use quorate_engine::Gates;
pub use run::{InProcess, Options, Running, start, start_in_process};
pub use settings::ServerSettings;
