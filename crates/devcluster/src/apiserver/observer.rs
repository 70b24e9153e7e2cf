//! Observes a server from outside its own, bounded log: for tests that judge a whole run.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::faults::RequestInfo;

/// Receives every change and every write, in order. It is called while the store is locked, so it must not wait, and
/// must not call the server.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// An object was written or removed.
    fn changed(&self, change: &ObservedChange<'_>);

    /// A write request was executed, whether or not its client still waits for the response.
    fn executed(&self, request: &ObservedRequest<'_>);
}

/// One change of one object.
#[derive(Clone, Copy, Debug)]
pub struct ObservedChange<'a> {
    /// The resource: `plural.group`, or the plural alone for the core group.
    pub resource: &'a str,
    /// The revision that the change made.
    pub revision: u64,
    /// Whether the object was removed.
    pub deleted: bool,
    /// The object after the change; for a removal, its last state.
    pub object: &'a Value,
}

/// A write request that was executed.
#[derive(Clone, Debug)]
pub struct ObservedRequest<'a> {
    /// Its properties.
    pub info: RequestInfo<'a>,
    /// The groups of the user.
    pub groups: &'a [String],
    /// Whether its parameters request a dry run. The body may, too.
    pub dry_run: bool,
    /// Its body.
    pub body: &'a Bytes,
    /// A mark that the observer can compare: the revision when the execution began.
    pub began_at: u64,
    /// How long the execution took.
    pub took: std::time::Duration,
    /// The revision when it ended.
    pub ended_at: u64,
    /// The HTTP status of the response.
    pub code: u16,
    /// The message of the response, empty unless it failed.
    pub message: &'a str,
    /// Whether a webhook did not answer, and its failure policy let the request pass.
    pub failed_open: bool,
}

/// The observer of a server, if it has one.
pub(crate) type Observing = Option<Arc<dyn Observer>>;
