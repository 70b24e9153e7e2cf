//! What a budget's status says.

use crate::basics::{Text, Time};
use crate::decision::Numbers;
use crate::facts::Memory;

/// The status of a budget, for whoever writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The generation it tells of.
    pub generation: i64,
    /// In units.
    pub units: Numbers,
    /// Pods that are healthy.
    pub pods_healthy: u32,
    /// The pods that the desired units need at least.
    pub pods_desired: u32,
    /// Pods that there should be.
    pub pods_expected: u32,
    /// Pods admitted for removal, and when.
    pub disrupted: Vec<(Text, Time)>,
    /// Pods admitted for an update, and when.
    pub updating: Vec<(Text, Time)>,
    /// Groups, the broken ones first; at most [`MAX_GROUPS`].
    pub groups: Vec<Group>,
    /// How many were left out.
    pub groups_omitted: u32,
    /// What the budget remembers, for the next process.
    pub memory: Memory,
    /// The conditions, in a fixed order.
    pub conditions: [Condition; 3],
}

/// More groups than this are not listed.
pub const MAX_GROUPS: usize = 100;

/// A group, as the status lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: Text,
    /// How many of its pods are healthy.
    pub healthy: u32,
    /// How many must be.
    pub min_count: u32,
    /// How many pods it has.
    pub pods: u32,
    /// Since when it has none.
    pub gone_since: Option<Time>,
}

/// A condition. When it last changed is for the writer to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: ConditionType,
    /// True or False.
    pub status: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, in a sentence, and what to do.
    pub message: String,
}

/// The conditions of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// Whether anything may be disrupted now.
    DisruptionAllowed,
    /// Whether the budget can do what it was written for.
    BudgetConfigured,
    /// Whether every replica knows it.
    Enforced,
}

impl ConditionType {
    /// The type's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::DisruptionAllowed => "DisruptionAllowed",
            Self::BudgetConfigured => "BudgetConfigured",
            Self::Enforced => "Enforced",
        }
    }
}

/// The reasons of conditions.
pub mod reason {
    #![allow(missing_docs, reason = "each is its own name; the table of conditions explains them")]

    pub const SUFFICIENT_PODS: &str = "SufficientPods";
    pub const SUFFICIENT_REPLICAS: &str = "SufficientReplicas";
    pub const INSUFFICIENT_PODS: &str = "InsufficientPods";
    pub const INSUFFICIENT_REPLICAS: &str = "InsufficientReplicas";
    pub const WORKLOAD_RESOLUTION_FAILED: &str = "WorkloadResolutionFailed";
    pub const SYNC_FAILED: &str = "SyncFailed";

    pub const VALID_CONFIG: &str = "ValidConfig";
    pub const MISSING_WORKLOAD_REFERENCE: &str = "MissingWorkloadReference";
    pub const MULTIPLE_WORKLOADS_DETECTED: &str = "MultipleWorkloadsDetected";
    pub const MISSING_GROUP_LABEL: &str = "MissingGroupLabel";
    pub const NATIVE_RULE_TOO_TIGHT: &str = "NativeRuleTooTight";
    pub const UNMANAGED_PODS: &str = "UnmanagedPods";
    pub const EXPECTED_FROM_OBSERVATION: &str = "ExpectedFromObservation";
    pub const UNREACHABLE_MINIMUM: &str = "UnreachableMinimum";
    pub const NEVER_ALLOWS: &str = "NeverAllows";
    pub const FEATURE_DISABLED: &str = "FeatureDisabled";
    pub const NAMESPACE_EXCLUDED: &str = "NamespaceExcluded";
    pub const INVALID: &str = "Invalid";

    pub const ALL_REPLICAS: &str = "AllReplicas";
    pub const JUST_CREATED: &str = "JustCreated";
    pub const WAITING_FOR_REPLICA: &str = "WaitingForReplica";
}
