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
///
/// An update that is announced in the pod's status, before anything is known of what it changes, has a base and nothing
/// else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Target {
    /// The version of the pod that the change was admitted for. The API server stores the change on this version or not
    /// at all: it asks again before it stores it on a later one. `None` in tokens of releases that did not record it.
    pub base: Option<Version>,
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
    /// Whether the pod asks for it: the API server has stored the change.
    pub fn is_asked(&self, pod: &Pod) -> bool {
        if self.base.is_some() && self.containers.is_empty() && self.label.is_none() {
            return pod.announced;
        }
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

    /// Whether the pod has moved on without it: the API server did not store the change and cannot any more, or a later
    /// change has taken its place. Whatever is left to wait for stands in the token of that one.
    pub fn is_replaced(&self, pod: &Pod) -> bool {
        self.base.is_some_and(|base| pod.version > base) && !self.is_asked(pod)
    }

    /// Whether the pod runs what was asked for. That the kubelet has read the new spec proves nothing, and that a pod
    /// looks as asked before the change was stored proves nothing either.
    pub fn is_reached(&self, pod: &Pod) -> bool {
        self.label.is_none()
            && !pod.announced
            && self.base.is_none_or(|base| pod.version > base)
            && self.containers.iter().all(|change| {
                pod.containers.iter().any(|container| {
                    container.name == change.name
                        && change.replaces.is_none_or(|old| container.id != old && container.id != 0)
                        && change.image.is_none_or(|image| container.image == image)
                        && change.resources.is_none_or(|resources| container.resources == resources)
                })
            })
    }

    /// Whether each container runs what it is asked to run, and one of them is still the one that was to be replaced: the
    /// change took another back before the kubelet acted on that. Where nothing is known of what the containers become,
    /// nobody can tell.
    pub(crate) fn runs_unreplaced(&self, pod: &Pod) -> bool {
        let found = |change: &ContainerChange| pod.containers.iter().find(|other| other.name == change.name);
        self.containers.iter().all(|change| {
            let known = change.image.is_some() || change.resources.is_some();
            known
                && found(change).is_some_and(|container| {
                    change.image.is_none_or(|image| container.image == image)
                        && change.resources.is_none_or(|resources| container.resources == resources)
                })
        }) && self.containers.iter().any(|change| {
            change.replaces.is_some_and(|old| found(change).is_some_and(|container| container.id == old))
        })
    }
}
