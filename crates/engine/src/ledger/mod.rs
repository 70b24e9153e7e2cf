//! The ledger protocol: what makes many replicas decide as one.
//!
//! [`Replica`] is a state machine. Facts, requests and replies go in; calls to the API server and answers come out. It
//! does nothing by itself: the server runs it against the real thing, and the tests run the same code through every
//! interleaving of small cases and through long random histories of large ones.
//!
//! - `messages`: what goes in and what comes out.
//! - `requests`: a request on its way through the budgets that cover its pod.
//! - `reads`: what is read of the API server before a request is decided.
//! - `commit`: the one write at a time to each budget, and who waits for it.
//! - `batch_window`: how long requests wait for others in a burst.
//! - `replies`: what came of a write, or of a read.
//! - `sources`: reads of what says how many groups there should be.
//! - `leader`: what the leader does for every budget: settle, expire, open.
//! - `patch`: what is written.
//! - `settings`: the bounds, and the rules by name.

mod batch_window;
mod commit;
mod leader;
mod messages;
mod patch;
mod readings;
mod reads;
mod replica;
mod replies;
mod requests;
mod settings;
mod sources;

pub use messages::{
    Acknowledged, Call, CallId, Event, Note, Output, PodRead, ReplicaLease, Reply, RequestId, WriteOutcome,
};
pub use patch::{LedgerPatch, PatchTarget, Step};
pub use replica::Replica;
pub use settings::{ProtocolRule, Settings};
