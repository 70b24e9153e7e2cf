//! Plumbing: everything a server of this kind needs and that knows nothing of pods or budgets.
//!
//! - [`watch`]: lists and watches that one bad object cannot stop.
//! - [`tls`]: certificates, made here and used here.
//! - [`https`]: a router served over TLS until it is told to stop.
//! - [`election`]: one of many processes does what only one should.
//! - [`admin`]: alive, ready, and how it does.
//! - [`backoff`]: how long to wait before trying again.
//! - [`client`]: no call is waited for without bound.
//! - [`Plain`]: errors of the client in few words.

pub mod admin;
pub mod backoff;
pub mod client;
pub mod election;
pub mod https;
mod plain;
pub mod tls;
pub mod watch;

pub use plain::Plain;
