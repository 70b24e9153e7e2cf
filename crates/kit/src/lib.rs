//! Infrastructure for a server in a cluster. It does not depend on pods or budgets.
//!
//! - [`watch`]: list and watch that one malformed object cannot stop.
//! - [`tls`]: certificate authority and serving certificates.
//! - [`https`]: serves a router over TLS until it is cancelled.
//! - [`election`]: leader election with a Lease.
//! - [`fair_pool`]: a pool that clients share.
//! - [`lease`]: whether the holder of a Lease is alive.
//! - [`admin`]: liveness, readiness and metrics endpoints.
//! - [`backoff`]: waits between retries.
//! - [`client`]: timeouts for every call to the API server.
//! - [`Plain`]: short messages for client errors.

pub mod admin;
pub mod backoff;
pub mod client;
pub mod election;
pub mod fair_pool;
pub mod https;
pub mod lease;
mod plain;
pub mod tls;
pub mod watch;

pub use plain::Plain;
