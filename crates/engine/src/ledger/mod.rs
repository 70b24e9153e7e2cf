//! The ledger protocol: how many replicas decide as one.
//!
//! [`Replica`] is a state machine. Facts, requests and replies go in; calls to the API server and answers come out. It does
//! no IO and has no clock: the server runs it against a real API server, and the tests run the same code through every
//! interleaving of small cases and through long random histories of large ones.
//!
//! `docs/ledger.md` describes the protocol and what each rule prevents.
//!
//! What goes in and out:
//! - `messages`: events, answers, calls and their replies. `patch`: what is written. `settings`: bounds and rules.
//!
//! The machines, each with private state and tests of its own:
//! - `requests`: requests in flight, from a review to its answer.
//! - `reads`: consistent reads of pods and owners that requests wait for.
//! - `queue`: the commit queue of one budget. `batch_window`: how long its requests wait for others in a burst.
//! - `lists`: consistent lists that free passes rest on.
//! - `claim_index`: which claims were seen in the budgets, and since when.
//! - `settle`: when a token has had its effect, and when it never will.
//! - `settled_ahead`: a `settledVersion` that the store has not reached.
//! - `opening`: from a new budget to one that is enforced.
//! - `recent`: what this replica admitted recently.
//! - `freshness`: whether this process may decide.
//! - `work_queue`: the budgets to look at.
//! - `outbox`: calls in flight and outputs.
//!
//! The coordinator: `replica`.

mod batch_window;
mod claim_index;
mod freshness;
mod lists;
mod messages;
mod opening;
mod outbox;
mod patch;
mod queue;
mod reads;
mod recent;
mod replica;
mod requests;
mod settings;
mod settle;
mod settled_ahead;
mod work_queue;

pub use messages::{
    Acknowledged, Admission, Call, CallId, Event, Note, Output, PodRead, ReplicaLease, Reply, RequestId,
    WriteOutcome,
};
pub use patch::{LedgerPatch, Step};
pub use replica::Replica;
pub(crate) use settings::LeftOut;
#[cfg(not(feature = "mutations"))]
pub(crate) use settings::ProtocolRule;
#[cfg(feature = "mutations")]
pub use settings::ProtocolRule;
pub use settings::Settings;
