//! What is asked.

use crate::basics::{ObjectKey, Uid};
use crate::callers::Caller;
use crate::claims::Target;
use crate::facts::{Operation, Pod};

/// A request to disrupt a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is to be done.
    pub operation: Operation,
    /// Which pod, by name: an eviction knows no more.
    pub pod: ObjectKey,
    /// The very object that is meant, where the request carries it (deletes, updates).
    pub object: Option<Pod>,
    /// The UID that the caller insists on.
    pub precondition: Option<Uid>,
    /// Who asks.
    pub caller: Caller,
    /// Nothing is to be done, only answered.
    pub dry_run: bool,
    /// What an update asks the containers to become.
    pub target: Target,
}
