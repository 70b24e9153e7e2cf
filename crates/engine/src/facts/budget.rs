//! Budgets and their rules.

use super::{Operation, Operations};
use crate::basics::{GroupKind, ObjectKey, Quantity, Text, Time, Uid, Version};
use crate::claims::Ledger;
use crate::names::kruise::PROTECT_TOTAL_REPLICAS;
use crate::selector::Selector;

/// The kind of object that defines a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetKind {
    /// `policy.quorate.dev` DisruptionBudget.
    DisruptionBudget,
    /// `policy.kruise.io` PodUnavailableBudget.
    PodUnavailableBudget,
}

impl BudgetKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::DisruptionBudget, Self::PodUnavailableBudget];

    /// The field or annotation in which such a budget states the expected number of units.
    pub(crate) fn expected_field(self) -> String {
        match self {
            Self::DisruptionBudget => "expectedReplicas".to_owned(),
            Self::PodUnavailableBudget => format!("the annotation {PROTECT_TOTAL_REPLICAS}"),
        }
    }
}

/// Identifies a budget. Budgets are checked and claimed in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetKey {
    /// Namespace and name.
    pub object: ObjectKey,
    /// The kind of object.
    pub kind: BudgetKind,
}

impl std::fmt::Display for BudgetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            BudgetKind::DisruptionBudget => self.object.fmt(f),
            // With its kind: there may be a DisruptionBudget with the same name.
            BudgetKind::PodUnavailableBudget => write!(f, "PodUnavailableBudget {}", self.object),
        }
    }
}

/// A budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Its name.
    pub key: BudgetKey,
    /// Its UID.
    pub uid: Uid,
    /// The generation of its spec.
    pub generation: i64,
    /// The version of this state.
    pub version: Version,
    /// Its rules, or why they are invalid.
    pub spec: Result<Rules, Broken>,
    /// The annotations that its rules depend on.
    pub annotations: RuleAnnotations,
    /// It is the twin of a native budget, which states its rules.
    pub is_twin: bool,
    /// What was admitted and is not visible in the pods yet.
    pub ledger: Ledger,
    /// Groups that vanished, and when. The status keeps them across restarts.
    pub gone: Box<[(Text, Time)]>,
    /// What else its status keeps.
    pub memory: Memory,
}

/// Annotations that are rules. The generation of an object does not change with them, so writes test them too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleAnnotations {
    /// The object has annotations of any name.
    pub any: bool,
    /// Each annotation that is a rule, and its value if the object has it. Empty for a kind without such annotations.
    pub values: Box<[(Text, Option<Text>)]>,
}

/// What a budget remembers about its sources. A source, which states the expected number of pods or groups, stays
/// expected when its last pod is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// [`crate::memory_key`] of the rules that this memory was written for. It does not apply to other rules.
    pub key: u64,
    /// Sources that had a pod under the budget and whose templates do not show whether they will have one again.
    pub sources: Box<[Source]>,
    /// Groups that were complete when their last pod was removed: `PodGroup/name`,
    /// `Workload.scheduling.quorate.dev/name/group/replica`, `Workload.scheduling.k8s.io/name/group/replica`,
    /// `LeaderWorkerSet/name/value`, `Label/value`, `Owner/uid`. A range of numbers may be one entry: `Label/0~7`.
    pub complete: Box<[Text]>,
}

/// An object that states the expected number of pods or groups.
///
/// | what | kind | name | part | UID |
/// |---|---|---|---|---|
/// | a controller | its own | its own | | its own |
/// | a pod group of a `Workload` | `Workload` of either API group | that of the Workload | the pod group | that of the Workload |
/// | a `PodGroup` without a template | `PodGroup.scheduling.k8s.io` | its own | | its own |
/// | the `PodGroup`s of one template | `PodGroup.scheduling.k8s.io` | that of the Workload | the template | empty |
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// The kind of the object.
    pub kind: GroupKind,
    /// Its name.
    pub name: Text,
    /// The part of the object; empty where the whole object is the source.
    pub part: Text,
    /// Its UID.
    pub uid: Uid,
}

/// The largest number of sources without pods that the status of a budget remembers. With so many there may be more, and
/// it denies every request.
pub const MAX_SOURCES: usize = 256;
/// The largest number of complete groups without pods that the status remembers; a range of numbers counts as one.
/// Groups beyond that count as expected again after a restart.
pub const MAX_COMPLETE: usize = 256;

/// An invalid budget: it denies the operations that it protects against, on the pods that it covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// What is wrong.
    pub why: Text,
    /// The pods that it covers; all pods of the namespace where this part is invalid.
    pub covers: Covers,
    /// The operations that it protects against.
    pub operations: Operations,
}

/// The rules of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The pods that it covers.
    pub covers: Covers,
    /// The smallest number of units that stay healthy.
    pub min_available: Option<Quantity>,
    /// The largest number of units that are down.
    pub max_unavailable: Option<Quantity>,
    /// What a unit is.
    pub units: Units,
    /// The expected number of units, if the budget states it.
    pub expected: Option<u32>,
    /// Whether pods that are already unhealthy may be evicted.
    pub unhealthy: UnhealthyPolicy,
    /// The operations that it protects against.
    pub operations: Operations,
    /// Only observe: decide, count and report, but never deny.
    pub observe: bool,
    /// When a pod counts as available.
    pub health: HealthRule,
    /// A pod may waive its protection.
    pub waivable: bool,
}

impl Rules {
    /// The rules of a budget over these pods that sets nothing else. It protects pods against evictions.
    pub fn new(covers: Covers) -> Self {
        Self {
            covers,
            min_available: None,
            max_unavailable: None,
            units: Units::Pods,
            expected: None,
            unhealthy: UnhealthyPolicy::default(),
            operations: Operations::of(&[Operation::Evict]),
            observe: false,
            health: HealthRule::default(),
            waivable: false,
        }
    }
}

/// Which pods a budget covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Covers {
    /// Pods that match this selector.
    Selector(Selector),
    /// Pods of this workload.
    Target(GroupKind, Text),
}

/// What a budget counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Units {
    /// Pods.
    Pods,
    /// Groups of the Workload API.
    Workload,
    /// Pods that share the value of a label.
    Label {
        /// The label.
        key: Text,
        /// The healthy pods that a group needs; the default is the group's size where it is known.
        min_ready: Option<u32>,
    },
    /// Pods that share an owner of a kind.
    Owner {
        /// The owner's kind.
        kind: GroupKind,
        /// The healthy pods that a group needs.
        min_ready: Option<u32>,
    },
}

impl Units {
    /// Whether the same pods form the same groups. How many healthy pods a group needs does not matter.
    pub fn form_same_groups(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Label { key, .. }, Self::Label { key: other, .. }) => key == other,
            (Self::Owner { kind, .. }, Self::Owner { kind: other, .. }) => kind == other,
            (one, other) => one == other,
        }
    }
}

/// Whether pods that are already unhealthy may be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnhealthyPolicy {
    /// They may be evicted while the budget is met.
    #[default]
    IfHealthyBudget,
    /// They may always be evicted.
    AlwaysAllow,
}

/// When a pod counts as available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthRule {
    /// Its disruption probe allows a disruption, or, if it has none, it is Ready.
    #[default]
    Ready,
    /// As [`Self::Ready`], and it is Running and [`Pod::consistent`].
    Strict,
}
