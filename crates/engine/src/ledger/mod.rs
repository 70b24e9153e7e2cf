//! The ledger protocol: what makes many replicas decide as one.
//!
//! [`Replica`] is a state machine. Facts, requests and replies go in; calls to the API server and answers come out. It
//! does nothing by itself: the server runs it against the real thing, and the tests run the same code through every
//! interleaving of small cases and through long random histories of large ones.
//!
//! - `messages`: what goes in and what comes out.
//! - `asks`: a request on its way through the budgets that cover its pod.
//! - `reads`: what is read of the API server before a request is decided.
//! - `desk`: the one write at a time to each budget, and who waits for it.
//! - `crowd`: who waits there for others.
//! - `replies`: what came of a write, or of a read.
//! - `tend`: what the holder of the lease does: settle, expire, open.
//! - `patch`: what is written.
//! - `settings`: the bounds, and the rules by name.

mod asks;
mod crowd;
mod desk;
mod messages;
mod patch;
mod readings;
mod reads;
mod replica;
mod replies;
mod settings;
mod tend;

pub use messages::{Acknowledged, AskId, Call, CallId, Event, Member, Note, Output, PodRead, Reply, Wrote};
pub use patch::{LedgerPatch, Step, Stored};
pub use replica::Replica;
pub use settings::{Rule, Settings};
