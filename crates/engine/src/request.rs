//! What is asked.

use crate::basics::{ObjectKey, Uid, Version};
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
    /// The very object that is meant, where the request names it (deletes, updates).
    pub object: Option<ReviewedPod>,
    /// The UID that the caller insists on.
    pub precondition: Option<Uid>,
    /// Who asks.
    pub caller: Caller,
    /// Nothing is to be done, only answered.
    pub dry_run: bool,
    /// What an update asks the containers to become.
    pub target: Target,
}

/// The pod that a review is about. A review can be forged, so it says which pod is meant and no more: what the pod is like
/// comes from the API server's own lists, watches and reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReviewedPod {
    /// Its UID.
    pub uid: Uid,
    /// The version that the review shows. A newer one than what is known here makes this replica read the pod.
    pub version: Version,
    /// It has a deletion timestamp: nothing is left to decide.
    pub terminating: bool,
}

impl From<&Pod> for ReviewedPod {
    fn from(pod: &Pod) -> Self {
        Self { uid: pod.uid.clone(), version: pod.version, terminating: pod.terminating }
    }
}
