//! Claims: what was admitted and cannot be seen in the pods yet.
//!
//! A claim stands in the status of each budget that covers the pod. One request is one token, the same in every
//! budget it touches; a pod is *held* while it has a token. Nobody's withdrawal takes away what another was admitted on.

use std::collections::BTreeMap;

use crate::basics::{Text, Time, Uid, Version};
use crate::facts::{Operation, Pod};

/// The version of the ledger protocol spoken here. A replica decides nothing on a budget that speaks another.
pub const PROTOCOL: u32 = 1;

/// More claims than this in one budget, and the answer is "not now": a status has a size.
pub const MAX_CLAIMS: usize = 2000;

/// The part of a budget's status that decides who may go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// Counts the writes of claims; the compare-and-set is on this number.
    pub number: u64,
    /// The claims, by the UID of the pod.
    pub claims: BTreeMap<Uid, Claim>,
    /// A replica decides only with pods at least this new: an older view might count a pod whose claim is gone.
    pub settled: Version,
    /// The protocol that its writers speak; `None` where nobody has written yet.
    pub protocol: Option<u32>,
    /// The coverage ([`crate::coverage`]) for which the budget was opened: every replica that answers knows it.
    pub enforced: Option<u64>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { number: 0, claims: BTreeMap::new(), settled: Version(0), protocol: None, enforced: None }
    }
}

impl Ledger {
    /// Whether a pod is held.
    pub fn holds(&self, uid: &str) -> bool {
        self.claims.get(uid).is_some_and(|claim| !claim.tokens.is_empty())
    }
}

/// What stands against one pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The pod's name, for readers.
    pub pod: Text,
    /// The pod's group, for readers.
    pub group: Option<Text>,
    /// One for each admitted request.
    pub tokens: BTreeMap<TokenId, Token>,
}

/// Names a request across all budgets.
pub type TokenId = Text;

/// One admitted request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// What was admitted.
    pub operation: Operation,
    /// For whom.
    pub by: Text,
    /// When, by the clock of the replica that admitted it. For readers: nothing is decided on it.
    pub at: Time,
    /// What an update asks the containers to become.
    pub target: Target,
}

/// What an update or resize asks for; empty for removals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Target {
    /// The containers that the change touches.
    pub containers: Box<[ContainerChange]>,
    /// A label that calls the pod unavailable, and has not been seen on it yet. Until then the pod looks as it did.
    pub label: Option<Text>,
}

/// What one container is asked to become.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerChange {
    /// The container.
    pub name: Text,
    /// The container ID it had, if it must be replaced by another one.
    pub replaces: Option<u64>,
    /// The image it is to run.
    pub image: Option<u64>,
    /// The resources it is to have.
    pub resources: Option<u64>,
}

impl Target {
    /// Whether the pod's spec asks for it: whoever was admitted has written.
    pub fn is_asked(&self, pod: &Pod) -> bool {
        self.is_labelled(pod)
            && self.containers.iter().all(|change| {
                pod.containers.iter().any(|container| {
                    container.name == change.name
                        && change.image.is_none_or(|image| container.asked_image == image)
                        && change.resources.is_none_or(|resources| container.asked_resources == resources)
                })
            })
    }

    /// Whether the pod has the label that was asked for, if one was.
    pub(crate) fn is_labelled(&self, pod: &Pod) -> bool {
        self.label.as_ref().is_none_or(|label| pod.labels.get(label).is_some())
    }

    /// Whether the pod runs what was asked for. That the kubelet has read the new spec proves nothing.
    pub fn is_reached(&self, pod: &Pod) -> bool {
        self.label.is_none()
            && self.containers.iter().all(|change| {
                pod.containers.iter().any(|container| {
                    container.name == change.name
                        && change.replaces.is_none_or(|old| container.id != old && container.id != 0)
                        && change.image.is_none_or(|image| container.image == image)
                        && change.resources.is_none_or(|resources| container.resources == resources)
                })
            })
    }
}
