//! The ledger protocol: what makes many replicas decide as one.
//!
//! [`Replica`] is a state machine. Facts, requests and replies go in; calls to the API server and answers come out. It
//! does nothing by itself: the server runs it against the real thing, and the tests run the same code through every
//! interleaving of small cases and through long random histories of large ones.
//!
//! - `asks`: a request on its way through the budgets that cover its pod.
//! - `desk`: the one write at a time to each budget, and who waits for it.
//! - `tend`: what the holder of the lease does: settle, expire, open.
//! - `patch`: what is written.

mod asks;
mod desk;
mod patch;
mod readings;
mod replica;
mod tend;

pub use patch::{LedgerPatch, Step, Stored};
pub use replica::{
    AskId, Call, CallId, Event, Member, Note, Output, PodRead, Replica, Reply, Rule, Settings, Wrote,
};
