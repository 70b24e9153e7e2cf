//! The status of a budget, as data.

use crate::basics::{Text, Time};
use crate::condition_reason::ConditionReason;
use crate::decision::{Noun, Numbers};
use crate::facts::{Memory, Units};
pub use crate::units::GroupSize;

/// The status of a budget, in the form that the server writes to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The generation that this status describes.
    pub generation: i64,
    /// What a unit is.
    pub scope: Scope,
    /// What the numbers count: groups, or pods. A budget that counts groups and covers only pods without a group shows
    /// the numbers of these.
    pub noun: Noun,
    /// The numbers in units.
    pub units: Numbers,
    /// The size of the smallest group whose size is stated.
    pub group_size: Option<GroupSize>,
    /// Healthy pods.
    pub pods_healthy: u32,
    /// The smallest number of pods that the desired units need.
    pub pods_desired: u32,
    /// Expected pods.
    pub pods_expected: u32,
    /// Pods admitted for eviction or deletion, and when.
    pub disrupted: Vec<(Text, Time)>,
    /// Pods admitted for an update or resize, and when.
    pub updating: Vec<(Text, Time)>,
    /// Groups, unhealthy ones first; at most [`MAX_GROUPS`].
    pub groups: Vec<Group>,
    /// The number of groups that are not in `groups`.
    pub groups_omitted: u32,
    /// What the budget remembers across restarts.
    pub memory: Memory,
    /// The conditions, in a fixed order.
    pub conditions: [Condition; 3],
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Pods.
    Pod,
    /// Groups of pods, by a label or an owner.
    Group,
    /// Groups of pods, by the Workload API.
    Workload,
}

impl Scope {
    /// Its name in the status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Group => "Group",
            Self::Workload => "Workload",
        }
    }

    pub(crate) fn of(units: &Units) -> Self {
        match units {
            Units::Pods => Self::Pod,
            Units::Label { .. } | Units::Owner { .. } => Self::Group,
            Units::Workload => Self::Workload,
        }
    }
}

/// The largest number of groups that a status lists.
pub const MAX_GROUPS: usize = 100;

/// A group, as the status lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: Text,
    /// Its healthy pods.
    pub healthy: u32,
    /// The healthy pods that it needs.
    pub min_count: u32,
    /// Its pods.
    pub pods: u32,
    /// Since when it has no pods; `None` while it has some.
    pub gone_since: Option<Time>,
}

/// A condition. The writer of the status keeps its `lastTransitionTime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: ConditionType,
    /// True or False.
    pub status: bool,
    /// The reason.
    pub reason: ConditionReason,
    /// The message: what is wrong, and what to do.
    pub message: String,
}

/// The conditions of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// Whether the budget allows a disruption now.
    DisruptionAllowed,
    /// Whether the configuration of the budget is valid.
    BudgetConfigured,
    /// Whether every replica enforces the budget.
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
