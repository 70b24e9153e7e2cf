//! What is answered, as structure; [`crate::sentence`] makes words of it.

use crate::basics::{Quantity, Text, Time, Uid};
use crate::callers::Exempt;
use crate::facts::BudgetKey;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It may go ahead.
    Allow(Allow),
    /// Not now. Never empty: one for each budget that says no, or one for all of them.
    Deny(Vec<Denial>),
}

/// Why a request may go ahead.
#[derive(Clone, Debug, PartialEq)]
pub enum Allow {
    /// The caller is never held up.
    Exempt(&'static str),
    /// The pod or its namespace is on its way out already, or the request cannot succeed.
    NoEffect {
        /// Which of these.
        why: NoEffect,
        /// The pod that was meant: an eviction must not strike its successor.
        uid: Option<Uid>,
    },
    /// No budget covers the pod.
    NotCovered {
        /// The pod that was meant.
        uid: Uid,
    },
    /// Every budget that covers the pod agrees.
    Agreed {
        /// The pod that was meant.
        uid: Uid,
        /// On what ground each agrees, in the order in which they are claimed.
        reasons: Vec<(BudgetKey, AllowReason)>,
    },
}

/// A UID that no pod has. An eviction of a pod that is gone is pinned to it, in case another pod takes the name.
pub const NO_POD: &str = "00000000-0000-0000-0000-000000000000";

impl Allow {
    /// The only pod that the request may strike.
    pub fn pin(&self) -> Option<&Uid> {
        match self {
            Self::Exempt(_) => None,
            Self::NoEffect { uid, .. } => uid.as_ref(),
            Self::NotCovered { uid } | Self::Agreed { uid, .. } => Some(uid),
        }
    }
}

/// Why a request changes nothing for any budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoEffect {
    /// There is no such pod.
    Gone,
    /// The pod has ended.
    Terminal,
    /// The pod is terminating.
    Terminating,
    /// The namespace is terminating.
    NamespaceTerminating,
    /// The caller insists on another UID: the API server will refuse.
    OtherUid,
}

/// On what ground a budget agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowReason {
    /// The unit goes down and the budget has room for it.
    Charged,
    /// The unit stays whole without the pod.
    Surplus,
    /// The unit is one more than there should be.
    Surge,
    /// The pod is unhealthy as it is.
    Unhealthy,
    /// The unit is down as it is.
    Broken,
    /// The pod never ran.
    Pending,
    /// The pod's owner asked for the gap.
    Recreate,
    /// The budget does not protect against this operation.
    PassesBy,
    /// The budget would say no, but it only observes.
    Observed,
}

impl AllowReason {
    /// Whether stale eyes could be wrong about it in the dangerous direction: an uncharged pass because something is
    /// down already, or never ran, which may have healed since.
    pub fn needs_fresh_list(self) -> bool {
        matches!(self, Self::Unhealthy | Self::Broken | Self::Pending)
    }
}

/// One "no".
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// The budget that says it, unless it is said for all of them.
    pub budget: Option<BudgetKey>,
    /// Why.
    pub reason: DenialReason,
}

/// Why not.
#[derive(Clone, Debug, PartialEq)]
pub enum DenialReason {
    /// This replica has not seen everything yet.
    NotSynced,
    /// This replica has not heard from the API server for a while.
    NotFresh {
        /// For how long.
        seconds: u64,
    },
    /// No answer could be had in time.
    Deadline,
    /// The budget cannot be read.
    Invalid(Text),
    /// The budget's groups, or the scale of its workloads, cannot be found.
    Unresolved(Unresolved),
    /// Not every replica knows the budget yet.
    NotOpen,
    /// Another version of the protocol writes this budget.
    Protocol(u32),
    /// Claims do not stick: the CustomResourceDefinition is older than this server.
    OutdatedDefinition,
    /// Too much was admitted that has not happened yet.
    TooManyClaims,
    /// The pod itself says no.
    Probe {
        /// The pod.
        pod: Text,
        /// Why it counts as a no.
        why: ProbeDoubt,
        /// Since when.
        since: Option<Time>,
    },
    /// A pod that belongs to no group, under a budget that counts groups of the Workload API.
    NoGroup {
        /// The pod.
        pod: Text,
    },
    /// The unit would go down and there is no room for it; or, for one that is down already, the budget is not met.
    Exhausted(Box<Exhausted>),
    /// A native PodDisruptionBudget would refuse.
    Native {
        /// Its name.
        name: Text,
        /// Healthy pods it has and wants.
        healthy: (i64, i64),
    },
    /// Several native PodDisruptionBudgets cover the pod: the API server evicts no such pod.
    SeveralNative {
        /// The pod.
        pod: Text,
        /// Their names.
        names: Vec<Text>,
    },
}

/// What cannot be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// The `PodGroup` or `Workload` that a pod names.
    Group {
        /// The pod.
        pod: Text,
        /// What it names.
        name: Text,
    },
    /// The controller of a pod.
    Controller {
        /// The pod.
        pod: Text,
        /// The controller's kind.
        kind: Text,
        /// The controller's name.
        name: Text,
    },
    /// A controller between a pod and the workload that a budget names.
    Owner {
        /// The pod.
        pod: Text,
        /// The controller's kind.
        kind: Text,
        /// The controller's name.
        name: Text,
    },
    /// The scale of a controller.
    Scale {
        /// The controller's kind.
        kind: Text,
        /// The controller's name.
        name: Text,
    },
    /// More sources without pods than the budget can remember.
    Sources {
        /// How many there are.
        count: usize,
    },
}

/// Why a probe counts as a no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeDoubt {
    /// It says so.
    SaysNo(Option<Text>),
    /// It has not answered yet.
    Silent,
    /// It cannot be read.
    Malformed(Text),
    /// Nobody probes on that node.
    NoAgent,
    /// The agent of that node has gone quiet.
    AgentStale,
    /// The node is not ready.
    NodeNotReady,
    /// The answer is older than the agent or the container.
    Outdated,
}

/// The numbers behind a refusal.
#[derive(Clone, Debug, PartialEq)]
pub struct Exhausted {
    /// What is counted.
    pub noun: Noun,
    /// The unit that would go down, or is down.
    pub unit: Text,
    /// Whether it is down already.
    pub unit_is_down: bool,
    /// How the budget is written.
    pub min_available: Option<Quantity>,
    /// How the budget is written.
    pub max_unavailable: Option<Quantity>,
    /// The numbers.
    pub numbers: Numbers,
    /// The units that are down, the first few.
    pub down: Vec<Down>,
    /// How many are down in all.
    pub down_total: usize,
}

/// What a budget counts, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noun {
    /// Pods.
    Pod,
    /// Groups.
    Group,
}

/// How many units there are and should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Units that may be disrupted now.
    pub allowed: u32,
    /// Units that are healthy.
    pub current: u32,
    /// Units that must stay healthy.
    pub desired: u32,
    /// Units that there should be.
    pub expected: u32,
}

/// A unit that is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// Its name.
    pub unit: Text,
    /// Its pods that are missing, the first few.
    pub missing: Vec<Missing>,
    /// How many healthy pods it has and needs.
    pub healthy: (u32, u32),
}

/// A pod that does not count as healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The pod.
    pub pod: Text,
    /// Why it does not count.
    pub why: Unhealthy,
    /// Since when.
    pub since: Option<Time>,
}

/// Why a pod does not count as healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unhealthy {
    /// It was admitted for disruption a moment ago.
    Held,
    /// It is terminating.
    Terminating,
    /// It has ended.
    Ended,
    /// It is not ready.
    NotReady,
    /// It serves, but says not to count on it.
    NotDisruptable,
    /// An in-place update is under way, or a label calls it unavailable.
    Inconsistent,
    /// A pod of the group's Workload that belongs to no group.
    NoGroup,
}

impl Decision {
    /// Whether it may go ahead.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// The exempt caller's entry as a verdict.
    pub(crate) fn exempt(entry: &'static Exempt) -> Self {
        Self::Allow(Allow::Exempt(entry.name))
    }
}
