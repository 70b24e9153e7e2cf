//! Decisions as data. [`crate::sentence`] turns them into text.

use crate::basics::{GroupKind, Text, Time, Uid};
use crate::facts::BudgetKey;

/// The decision on a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The request may go ahead.
    Allow(Allow),
    /// The request is denied for now. Never empty: one for each budget that denies it, or one for all of them.
    Deny(Vec<Denial>),
}

/// Why a request may go ahead.
#[derive(Clone, Debug, PartialEq)]
pub enum Allow {
    /// The caller is exempt from all budgets.
    Exempt(&'static str),
    /// The pod or its namespace is already terminating or gone, or the request cannot succeed.
    NoEffect {
        /// Which of these applies.
        why: NoEffect,
        /// The pod that the decision is about: an eviction must not hit a new pod with the same name.
        uid: Option<Uid>,
    },
    /// No budget covers the pod.
    NotCovered {
        /// The pod that the decision is about.
        uid: Uid,
    },
    /// Every budget that covers the pod allows the request.
    Agreed {
        /// The pod that the decision is about.
        uid: Uid,
        /// Why each budget allows it, in the order in which the budgets are claimed.
        reasons: Vec<(BudgetKey, AllowReason)>,
        /// What the pod leaves without a decision.
        departures: Vec<Departure>,
    },
}

/// A UID that no pod has: the target of an eviction of a pod that is gone. It must not reach a new pod of the same name.
pub const NO_POD: &str = "00000000-0000-0000-0000-000000000000";

impl Allow {
    /// The UID of the only pod that the request may affect.
    pub fn pin(&self) -> Option<&Uid> {
        match self {
            Self::Exempt(_) => None,
            Self::NoEffect { uid, .. } => uid.as_ref(),
            Self::NotCovered { uid } | Self::Agreed { uid, .. } => Some(uid),
        }
    }
}

/// A pod leaves a budget, or a group of it, by a change of its labels or owners that the budget does not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The pod.
    pub pod: Text,
    /// The budget.
    pub budget: BudgetKey,
    /// The budget is the twin of a PodDisruptionBudget.
    pub is_twin: bool,
    /// The group that the pod leaves, if the budget counts groups and the pod has one.
    pub group: Option<Text>,
    /// What the numbers count.
    pub noun: Noun,
    /// The numbers of the budget without the pod.
    pub numbers: Numbers,
}

/// Why a request changes nothing for any budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoEffect {
    /// The pod does not exist.
    Gone,
    /// The pod has finished: its phase is Succeeded or Failed.
    Terminal,
    /// The pod is terminating.
    Terminating,
    /// The namespace is terminating.
    NamespaceTerminating,
    /// The request has a precondition on another UID, so the API server rejects it.
    OtherUid,
}

/// Why a budget allows a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowReason {
    /// The unit goes down, and the budget allows one more disruption.
    Charged,
    /// The unit stays healthy without the pod.
    Surplus,
    /// The unit is above the expected number.
    Surge,
    /// The pod is already unhealthy.
    Unhealthy,
    /// The unit is already down.
    Broken,
    /// The pod has not started yet.
    Pending,
    /// The pod's Deployment has the strategy Recreate, or the controller of Jobs deletes it.
    Recreate,
    /// The budget does not protect against this operation, or the pod waives its protection.
    PassesBy,
    /// The budget would deny the request, but it only observes.
    Observed,
    /// The pod leaves the budget or a group of it, and the budget does not protect against that.
    Leaves,
}

impl AllowReason {
    /// Whether a stale cache could make this reason unsafe. These reasons admit a request without a charge because
    /// something is already down or has not started, and it may have recovered since.
    pub fn needs_fresh_list(self) -> bool {
        matches!(self, Self::Unhealthy | Self::Broken | Self::Pending)
    }

    /// Whether the budget gets a token only for its own information: it does not protect against the operation, or it
    /// observes.
    pub fn only_observes(self) -> bool {
        matches!(self, Self::PassesBy | Self::Observed | Self::Leaves)
    }
}

/// One reason why a request is denied.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// The budget that denies the request; `None` where no single budget does.
    pub budget: Option<BudgetKey>,
    /// Why the request is denied.
    pub reason: DenialReason,
}

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq)]
pub enum DenialReason {
    /// This replica has not finished its initial sync.
    NotSynced,
    /// The Lease of this replica is not renewed, so the other replicas do not wait for it.
    NotServing,
    /// The cache of this replica may be stale: its pod watch has been silent for too long.
    NotFresh {
        /// How long the watch has been silent.
        seconds: u64,
    },
    /// What is known of a kind that the budget depends on may be stale: its watch has been silent for too long.
    Stale {
        /// The kind.
        kind: GroupKind,
        /// How long the watch has been silent.
        seconds: u64,
    },
    /// The request could not be decided and recorded before its deadline.
    Deadline,
    /// The budget is invalid.
    Invalid(Text),
    /// The groups of the budget, or the scale of its workloads, cannot be resolved.
    Unresolved(Unresolved),
    /// Not every replica enforces the budget yet.
    NotOpen,
    /// Replicas with another version of the protocol write this budget.
    Protocol(u32),
    /// The API server does not store claims, because the CustomResourceDefinition is older than this server.
    OutdatedDefinition,
    /// Too many admitted disruptions are still pending.
    TooManyClaims,
    /// The disruption probe of the pod does not allow it.
    Probe {
        /// The pod.
        pod: Text,
        /// Why the probe does not allow it.
        why: ProbeDoubt,
        /// Since when.
        since: Option<Time>,
    },
    /// A pod that belongs to no group, under a budget that counts groups of the Workload API.
    NoGroup {
        /// The pod.
        pod: Text,
    },
    /// The unit would go down and the budget allows no more; or the unit is already down and the budget is not met.
    Exhausted(Box<Exhausted>),
    /// A native PodDisruptionBudget would deny the eviction.
    Native {
        /// Its name.
        name: Text,
        /// Its `currentHealthy` and `desiredHealthy`.
        healthy: (i64, i64),
    },
    /// Several native PodDisruptionBudgets cover the pod: the API server does not evict such a pod.
    SeveralNative {
        /// The pod.
        pod: Text,
        /// Their names.
        names: Vec<Text>,
    },
}

/// What cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// The `PodGroup` or `Workload` that a pod refers to.
    Group {
        /// The pod.
        pod: Text,
        /// The name that the pod refers to.
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
    /// A source that the budget remembers, of a kind that could not be read since this process started.
    Unread {
        /// The kind.
        kind: GroupKind,
        /// The name.
        name: Text,
    },
    /// More sources without pods than the budget can remember.
    Sources {
        /// The number of such sources.
        count: usize,
    },
}

/// Why a probe does not allow a disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeDoubt {
    /// The probe reports that the pod is not disruptable, with an optional message.
    SaysNo(Option<Text>),
    /// The probe has no result yet.
    Silent,
    /// The declaration of the probe is invalid.
    Malformed(Text),
    /// No agent runs on the pod's node.
    NoAgent,
    /// The agent of the pod's node has stopped renewing its heartbeat.
    AgentStale,
    /// The pod's node is not ready.
    NodeNotReady,
    /// The result is older than the agent or the container.
    Outdated,
}

/// The numbers behind a denial.
#[derive(Clone, Debug, PartialEq)]
pub struct Exhausted {
    /// What the budget counts.
    pub noun: Noun,
    /// The unit that would go down, or is already down.
    pub unit: Text,
    /// Whether the unit is already down.
    pub unit_is_down: bool,
    /// The numbers.
    pub numbers: Numbers,
    /// The first few units that are down.
    pub down: Vec<Down>,
    /// The total number of units that are down.
    pub down_total: usize,
}

/// What a budget counts, as a noun for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noun {
    /// Pods.
    Pod,
    /// Groups.
    Group,
}

/// The numbers of a budget, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Units that may be disrupted now.
    pub allowed: u32,
    /// Units that are healthy.
    pub current: u32,
    /// Units that must stay healthy.
    pub desired: u32,
    /// Expected units.
    pub expected: u32,
}

/// A unit that is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// Its name.
    pub unit: Text,
    /// The first few of its pods that do not count as healthy.
    pub missing: Vec<Missing>,
    /// The healthy pods that it has and needs.
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
    /// A disruption was admitted and is not visible in the pod yet.
    Held,
    /// It is terminating.
    Terminating,
    /// It has finished: its phase is Succeeded or Failed.
    Ended,
    /// It is not ready.
    NotReady,
    /// It is ready, but its disruption probe does not allow a disruption.
    NotDisruptable,
    /// An in-place update is in progress, or a label marks the pod as unavailable.
    Inconsistent,
    /// It is healthy, but this is known only of the pod itself: the watch has not come so far.
    Ahead,
}

impl Decision {
    /// Whether the request may go ahead.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
}
