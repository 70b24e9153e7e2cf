//! Namespaces, nodes, agents and native budgets.

use crate::basics::Time;
use crate::selector::Selector;

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// The webhooks do not match it.
    pub excluded: bool,
    /// It has the label for which the API server calls the webhooks on every operation, and fails closed.
    pub guarded: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its Ready condition is True.
    pub ready: bool,
}

/// The heartbeat of a node's probe agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// When it started, by its own clock.
    pub started: Time,
    /// When this replica saw the last renewal, by its own clock.
    pub renewed: Time,
    /// How long a renewal is valid.
    pub holds: std::time::Duration,
}

/// A native PodDisruptionBudget, reduced to the parts that decide whether the API server denies an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeBudget {
    /// Which pods it covers.
    pub selector: Selector,
    /// How many disruptions it allows now.
    pub allowed: i64,
    /// Its status is up to date with its spec.
    pub current: bool,
    /// Its `unhealthyPodEvictionPolicy` is AlwaysAllow.
    pub always_allow_unready: bool,
    /// `currentHealthy` and `desiredHealthy`.
    pub healthy: (i64, i64),
    /// `expectedPods`.
    pub expected: i64,
}

impl NativeBudget {
    /// How many disruptions it allows while all pods are healthy.
    pub fn allowed_when_healthy(&self) -> i64 {
        self.expected - self.healthy.1
    }
}
