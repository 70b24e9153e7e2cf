//! The reasons of a budget's conditions: name, severity and remedy of each, in one table.

use crate::status::ConditionType;

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// No action is needed.
    Normal,
    /// The budget works, but perhaps not as its author intended.
    Warning,
    /// The budget does not do its work.
    Error,
}

/// The reason of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionReason {
    /// The budget counts pods and allows a disruption.
    SufficientPods,
    /// The budget counts groups and allows a disruption.
    SufficientReplicas,
    /// The budget counts pods and allows no disruption now.
    InsufficientPods,
    /// The budget counts groups and allows no disruption now.
    InsufficientReplicas,
    /// A pod names a group that does not exist.
    WorkloadResolutionFailed,
    /// Something that the budget needs is not known.
    SyncFailed,
    /// The configuration is valid.
    ValidConfig,
    /// The spec is invalid.
    Invalid,
    /// A pod does not name a workload, and the scope is Workload.
    MissingWorkloadReference,
    /// A pod has no group.
    MissingGroupLabel,
    /// The pods belong to several workloads.
    MultipleWorkloadsDetected,
    /// A PodDisruptionBudget allows less than a whole group.
    NativeRuleTooTight,
    /// A pod has no controller, so the expected number is not known.
    UnmanagedPods,
    /// No object states the expected number of groups.
    ExpectedFromObservation,
    /// A group can never have the required pods.
    UnreachableMinimum,
    /// The numbers never allow a disruption.
    NeverAllows,
    /// A feature gate is off.
    FeatureDisabled,
    /// The webhooks do not match the namespace.
    NamespaceExcluded,
    /// Another budget has the name of the twin of a PodDisruptionBudget.
    NameTaken,
    /// Every replica enforces the budget.
    AllReplicas,
    /// Not every replica enforces the budget yet.
    JustCreated,
    /// A replica with another protocol writes the budget.
    WaitingForReplica,
    /// Quorate served the budget, and does not any more.
    NotServed,
}

/// A row of the table.
struct Row {
    reason: ConditionReason,
    condition: ConditionType,
    name: &'static str,
    severity: Severity,
    remedy: Option<&'static str>,
}

const fn row(
    reason: ConditionReason,
    condition: ConditionType,
    name: &'static str,
    severity: Severity,
    remedy: Option<&'static str>,
) -> Row {
    Row { reason, condition, name, severity, remedy }
}

use ConditionReason as Reason;
use ConditionType::{BudgetConfigured, DisruptionAllowed, Enforced};
use Severity::{Error, Normal, Warning};

/// In the order of the variants.
const TABLE: [Row; 23] = [
    row(Reason::SufficientPods, DisruptionAllowed, "SufficientPods", Normal, None),
    row(Reason::SufficientReplicas, DisruptionAllowed, "SufficientReplicas", Normal, None),
    row(
        Reason::InsufficientPods,
        DisruptionAllowed,
        "InsufficientPods",
        Normal,
        Some("Wait: no pod may be disrupted now; the message has the numbers"),
    ),
    row(
        Reason::InsufficientReplicas,
        DisruptionAllowed,
        "InsufficientReplicas",
        Normal,
        Some("Wait: no group may be disrupted now; the message has the numbers"),
    ),
    row(
        Reason::WorkloadResolutionFailed,
        DisruptionAllowed,
        "WorkloadResolutionFailed",
        Error,
        Some("A pod names a group that does not exist: create the group"),
    ),
    row(
        Reason::SyncFailed,
        DisruptionAllowed,
        "SyncFailed",
        Error,
        Some("The message names what is unknown; until then the budget allows nothing"),
    ),
    row(Reason::ValidConfig, BudgetConfigured, "ValidConfig", Normal, None),
    row(
        Reason::Invalid,
        BudgetConfigured,
        "Invalid",
        Error,
        Some("Correct the field that the message names"),
    ),
    row(
        Reason::MissingWorkloadReference,
        BudgetConfigured,
        "MissingWorkloadReference",
        Warning,
        Some("Pods without a workload under `budgetScope: Workload`: set the reference in their template"),
    ),
    row(
        Reason::MissingGroupLabel,
        BudgetConfigured,
        "MissingGroupLabel",
        Warning,
        Some(
            "Pods without the label or owner that forms the groups are counted one by one: set it in their template",
        ),
    ),
    row(
        Reason::MultipleWorkloadsDetected,
        BudgetConfigured,
        "MultipleWorkloadsDetected",
        Warning,
        Some("One budget covers several workloads: write one for each, unless this is intended"),
    ),
    row(
        Reason::NativeRuleTooTight,
        BudgetConfigured,
        "NativeRuleTooTight",
        Warning,
        Some(
            "A PodDisruptionBudget allows fewer disruptions than a group has pods: raise it to the number in the message",
        ),
    ),
    row(
        Reason::UnmanagedPods,
        BudgetConfigured,
        "UnmanagedPods",
        Warning,
        Some("Pods without a controller, so a percentage has no base: use an integer `minAvailable`"),
    ),
    row(
        Reason::ExpectedFromObservation,
        BudgetConfigured,
        "ExpectedFromObservation",
        Warning,
        Some(
            "No object states the expected number of groups: set `expectedReplicas` if the observed number can be wrong",
        ),
    ),
    row(
        Reason::UnreachableMinimum,
        BudgetConfigured,
        "UnreachableMinimum",
        Warning,
        Some("`minReadyReplicas` is larger than the group: lower it"),
    ),
    row(
        Reason::NeverAllows,
        BudgetConfigured,
        "NeverAllows",
        Error,
        Some("The budget blocks every drain forever: leave room for one unit"),
    ),
    row(
        Reason::FeatureDisabled,
        BudgetConfigured,
        "FeatureDisabled",
        Warning,
        Some("The feature gate `MultiPodPDBs` is off: the budget counts pods instead of groups"),
    ),
    row(
        Reason::NamespaceExcluded,
        BudgetConfigured,
        "NamespaceExcluded",
        Warning,
        Some("The webhooks exclude this namespace, so the budget protects nothing"),
    ),
    row(
        Reason::NameTaken,
        BudgetConfigured,
        "NameTaken",
        Error,
        Some("A `DisruptionBudget` of the same name exists: rename it or the PodDisruptionBudget"),
    ),
    row(Reason::AllReplicas, Enforced, "AllReplicas", Normal, None),
    row(
        Reason::JustCreated,
        Enforced,
        "JustCreated",
        Error,
        Some("Wait a second or, after a server was lost, two minutes"),
    ),
    row(
        Reason::WaitingForReplica,
        Enforced,
        "WaitingForReplica",
        Warning,
        Some("Servers of two protocols run: finish the upgrade"),
    ),
    row(
        Reason::NotServed,
        Enforced,
        "NotServed",
        Warning,
        Some(
            "Quorate ignores PodUnavailableBudgets (`--serve-pub`): OpenKruise enforces the budget, or nothing does",
        ),
    ),
];

impl ConditionReason {
    /// All reasons.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.reason)
    }

    /// Its name, as the status shows it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The condition that has this reason.
    pub fn condition(self) -> ConditionType {
        self.row().condition
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        self.row().severity
    }

    /// What to do about it; `None` if there is nothing to do.
    pub fn remedy(self) -> Option<&'static str> {
        self.row().remedy
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

impl std::fmt::Display for ConditionReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_row() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.reason as usize, at, "{}", row.name);
            assert_eq!(format!("{:?}", row.reason), row.name);
            assert!(row.severity == Severity::Normal || row.remedy.is_some(), "{} needs a remedy", row.name);
        }
    }
}
