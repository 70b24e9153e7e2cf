//! Requests to disrupt a pod.

use std::sync::Arc;

use crate::basics::{Labels, ObjectKey, Uid, Version};
use crate::callers::{Caller, Exempt};
use crate::claims::Target;
use crate::decision::{Allow, Decision, NoEffect};
use crate::facts::{Link, Operation, Owner, Pod};

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
    /// The labels and owners that a relabel requests. Without them, the pod leaves every budget.
    pub placement: Option<Box<Placement>>,
}

impl Request {
    /// The decision on a request that passes whatever the budgets say: the caller is exempt, or the pod is already
    /// terminating. Even a replica that does not know the cluster yet gives this answer.
    pub(crate) fn always_passes(&self) -> Option<Decision> {
        if let Some(entry) = Exempt::find(&self.caller, self.operation) {
            return Some(Decision::Allow(Allow::Exempt(entry.name)));
        }
        let terminating = self.object.as_ref().is_some_and(|object| object.terminating);
        terminating.then_some(Decision::Allow(Allow::NoEffect { why: NoEffect::Terminating, uid: None }))
    }
}

/// What decides which budgets and groups a pod belongs to, as a request changes it. It is the request itself, like the
/// image of an update: it says nothing about the state of the pod before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The labels.
    pub labels: Labels,
    /// The owners.
    pub owners: Arc<[Owner]>,
    /// The link to a group of the Workload API.
    pub link: Option<Box<Link>>,
}

impl Placement {
    /// The pod as it is after the change.
    pub(crate) fn applied_to(&self, pod: &Pod) -> Pod {
        Pod {
            labels: self.labels.clone(),
            owners: Arc::clone(&self.owners),
            link: self.link.clone(),
            ..pod.clone()
        }
    }
}

impl From<&Pod> for Placement {
    fn from(pod: &Pod) -> Self {
        Self { labels: pod.labels.clone(), owners: Arc::clone(&pod.owners), link: pod.link.clone() }
    }
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
