//! Requests to disrupt a pod.

use crate::basics::{ObjectKey, Uid, Version};
use crate::callers::Caller;
use crate::claims::Target;
use crate::facts::{Operation, Pod};

/// A request to disrupt a pod, as the webhook receives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The requested operation.
    pub operation: Operation,
    /// Namespace and name of the pod. An eviction has no more than this.
    pub pod: ObjectKey,
    /// The object itself, where the request contains it (deletes, updates).
    pub object: Option<ReviewedPod>,
    /// The UID precondition of the caller.
    pub precondition: Option<Uid>,
    /// The caller.
    pub caller: Caller,
    /// The request is a dry run: decide it and record nothing.
    pub dry_run: bool,
    /// The state that an update requests for the containers.
    pub target: Target,
}

/// The pod that an AdmissionReview is about. A review can be forged, so it only identifies the pod; the state of the
/// pod comes from lists, watches and reads of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReviewedPod {
    /// Its UID.
    pub uid: Uid,
    /// The version in the review. If it is newer than the cached one, this replica reads the pod.
    pub version: Version,
    /// It has a deletion timestamp, so there is nothing to decide.
    pub terminating: bool,
}

impl From<&Pod> for ReviewedPod {
    fn from(pod: &Pod) -> Self {
        Self { uid: pod.uid.clone(), version: pod.version, terminating: pod.terminating }
    }
}
