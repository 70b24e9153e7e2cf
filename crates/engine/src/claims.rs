//! Claims: disruptions that were admitted and are not visible in the pods yet.
//!
//! A claim is an entry in the status of each budget that covers the pod. Each request has one token, the same in every
//! budget that it charges; a pod is *held* while it has a token. If one request is withdrawn, the tokens of others
//! stay.

use std::collections::BTreeMap;

use crate::basics::{Text, Time, Uid, Version};
use crate::coverage::Coverage;
use crate::facts::{Operation, Pod};

/// The version of the ledger protocol. A replica denies requests on a budget with another version.
pub const PROTOCOL: u32 = 1;

/// The largest number of claims in one budget, since the size of a status is limited. Beyond it, requests are denied. The
/// schema has no such limit: a server could not distinguish the rejection of one claim too many from a write conflict.
pub const MAX_CLAIMS: usize = 2000;

/// The largest size of the claims of one budget, in bytes, by the same rule. etcd stores no object above 1.5 MiB, and a
/// budget has more to store than its claims.
pub const MAX_CLAIM_BYTES: usize = 900_000;

/// Tokens that a budget must get for earlier admissions are written up to this size. The others wait until claims are
/// settled, and the budget opens only then.
pub(crate) const MAX_BACKFILL_BYTES: usize = 1_100_000;

/// The part of a budget's status that decides which pods may be disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The number of writes of claims. The compare-and-set uses this number.
    pub number: u64,
    /// The claims, by the UID of the pod.
    pub claims: BTreeMap<Uid, Claim>,
    /// A replica decides only with pods at least this new: an older cache might count a pod whose claim was removed.
    pub settled: Version,
    /// The protocol version of its writers; `None` if no replica has written yet.
    pub protocol: Option<u32>,
    /// The coverage ([`crate::coverage`]) for which the budget was opened: every replica that serves requests knows it.
    pub enforced: Option<Coverage>,
    /// The generation of the spec that had this coverage when the budget was opened. `None` if a release opened it that
    /// did not record the generation.
    pub enforced_generation: Option<i64>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            number: 0,
            claims: BTreeMap::new(),
            settled: Version(0),
            protocol: None,
            enforced: None,
            enforced_generation: None,
        }
    }
}

impl Ledger {
    /// Whether a pod is held.
    pub fn holds(&self, uid: &str) -> bool {
        self.claims.get(uid).is_some_and(|claim| !claim.tokens.is_empty())
    }

    /// The size of the claims in a stored budget, in bytes. An estimate that is rather too large.
    pub fn claim_bytes(&self) -> usize {
        self.claims.iter().map(|(uid, claim)| claim.bytes(uid)).sum()
    }

    /// Whether a pod is held by this token.
    pub fn has_token(&self, uid: &str, token: &str) -> bool {
        self.claims.get(uid).is_some_and(|claim| claim.tokens.contains_key(token))
    }
}

/// The claim on one pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The pod's name, for users who read the status.
    pub pod: Text,
    /// One token for each admitted request.
    pub tokens: BTreeMap<TokenId, Token>,
}

/// The size of what surrounds the texts of a claim, a token and the change of a container: field names, times, hashes.
const CLAIM_FRAME: usize = 60;
const TOKEN_FRAME: usize = 150;
const CHANGE_FRAME: usize = 200;

impl Claim {
    /// Its size in a stored budget. Keys are stored twice: `managedFields` repeats them.
    pub(crate) fn bytes(&self, uid: &str) -> usize {
        let tokens = self.tokens.iter().map(|(id, token)| 2 * id.len() + token.bytes());
        2 * uid.len() + self.pod.len() + CLAIM_FRAME + tokens.sum::<usize>()
    }
}

impl Token {
    fn bytes(&self) -> usize {
        let changes = self.target.containers.iter().map(|change| 2 * change.name.len() + CHANGE_FRAME);
        let label = self.target.label.as_ref().map_or(0, |label| label.len());
        self.by.len() + label + TOKEN_FRAME + changes.sum::<usize>()
    }
}

/// Identifies a request in all budgets.
pub type TokenId = Text;

/// One admitted request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The admitted operation.
    pub operation: Operation,
    /// The user whose request was admitted.
    pub by: Text,
    /// When, by the clock of the replica that admitted it. For users who read the status; no decision depends on it.
    pub at: Time,
    /// The state that an update requests for the containers.
    pub target: Target,
}

/// The change that an update or resize requests; empty for evictions and deletes.
///
/// An update that is announced in the pod's status, before its changes are known, has a base and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Target {
    /// The version of the pod that the change was admitted for. The API server stores the change on this version or not
    /// at all: it calls the webhook again before it stores the change on a later one. `None` in tokens of releases that
    /// did not record it.
    pub base: Option<Version>,
    /// The containers that the change touches.
    pub containers: Box<[ContainerChange]>,
    /// A label that marks the pod as unavailable and is not visible on it yet. Until then the pod looks unchanged.
    pub label: Option<Text>,
    /// The requested activeDeadlineSeconds, if the change makes the pod end sooner. It is over when the pod has ended.
    pub deadline: Option<u32>,
}

/// The change that is requested for one container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerChange {
    /// The container.
    pub name: Text,
    /// The ID of the container that must be replaced, if it must be.
    pub replaces: Option<u64>,
    /// The requested image.
    pub image: Option<u64>,
    /// The requested resources.
    pub resources: Option<u64>,
}

/// The longest key of a label that Kubernetes accepts: a prefix of 253 characters, a slash, and a name of 63.
const MAX_LABEL_KEY: usize = 317;

impl Target {
    /// What the change can be, given the pod that this replica knows. A review can be forged: what it says about the pod
    /// before the change does not count, and a change that the pod cannot have, or already has, would never be over.
    pub(crate) fn of_pod(&self, pod: &Pod) -> Self {
        let deadline = self.deadline.filter(|deadline| pod.deadline != Some(*deadline));
        let is_new = |label: &&Text| label.len() <= MAX_LABEL_KEY && pod.labels.get(label).is_none();
        let containers = self.containers.iter().filter_map(|change| {
            let container = pod.containers.iter().find(|container| container.name == change.name)?;
            // The API server removes no container from a pod.
            let changes = change.image.is_some() || change.resources.is_some() || deadline.is_some();
            let replaces = change.replaces.map(|_| container.id);
            changes.then(|| ContainerChange { replaces, ..change.clone() })
        });
        Self {
            base: self.base.map(|base| base.min(pod.version)),
            containers: containers.collect(),
            label: self.label.as_ref().filter(is_new).cloned(),
            deadline,
        }
    }

    /// Whether the API server has stored the change: the pod's spec, labels or announcement show it.
    pub fn is_stored(&self, pod: &Pod) -> bool {
        if self.base.is_some() && self.containers.is_empty() && self.label.is_none() {
            return pod.announced;
        }
        self.is_labelled(pod)
            && self.deadline.is_none_or(|deadline| pod.deadline == Some(deadline))
            && self.containers.iter().all(|change| {
                pod.containers.iter().any(|container| {
                    container.name == change.name
                        && change.image.is_none_or(|image| container.spec_image == image)
                        && change.resources.is_none_or(|resources| container.spec_resources == resources)
                })
            })
    }

    /// Whether the pod has the requested label, if there is one.
    pub(crate) fn is_labelled(&self, pod: &Pod) -> bool {
        self.label.as_ref().is_none_or(|label| pod.labels.get(label).is_some())
    }

    /// Whether the change is obsolete: the API server did not store it and can no longer do so, or a later change has
    /// replaced it. The token of the later change then covers what is still pending.
    pub fn is_replaced(&self, pod: &Pod) -> bool {
        self.base.is_some_and(|base| pod.version > base) && !self.is_stored(pod)
    }

    /// Whether the pod runs what was requested. It is not enough that the kubelet has read the new spec, or that the
    /// pod looked as requested before the change was stored.
    pub fn is_reached(&self, pod: &Pod) -> bool {
        self.label.is_none()
            && self.deadline.is_none()
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

    /// Whether every container that had to be replaced was replaced since, although the pod does not show the requested
    /// image. A runtime may show another name of the image; or the container restarted by itself before the kubelet saw
    /// the change.
    pub(crate) fn is_restarted(&self, pod: &Pod) -> bool {
        !self.containers.is_empty()
            && self.label.is_none()
            && self.deadline.is_none()
            && !pod.announced
            && self.is_stored(pod)
            && self.containers.iter().all(|change| {
                pod.containers.iter().any(|container| {
                    container.name == change.name
                        && change
                            .replaces
                            .map_or(change.image.is_none(), |old| container.id != old && container.id != 0)
                        && change.resources.is_none_or(|resources| container.resources == resources)
                })
            })
    }

    /// Whether the change is a resize that the node of the pod can never carry out.
    pub(crate) fn is_infeasible(&self, pod: &Pod) -> bool {
        pod.resize_infeasible && self.containers.iter().any(|change| change.resources.is_some())
    }

    /// Whether each container runs what was requested, but one of them still is the container that had to be replaced.
    /// Then the change reverted another one before the kubelet acted on that. False where the token does not record
    /// what the containers change to.
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
