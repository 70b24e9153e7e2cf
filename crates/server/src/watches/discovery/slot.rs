//! What is looked for: the kinds that not every cluster has.

use std::time::Duration;

use quorate_api::slim;
use quorate_engine::Snapshot;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{BudgetKind, WorkloadSource};
use quorate_engine::ledger::Event;

use crate::watches::scope::Patience;

/// The rights to these are in the chart: where they are refused at first, they may come yet. What the API server fails to
/// answer is waited for without end: a budget or the size of a group may be in it.
pub(super) const OURS: Patience = Patience { refused: Duration::from_secs(30), failing: None };

/// Whether there are rights to kinds that are only referred to, nobody knows. What is not known of them denies what rests
/// on it, so there is no need to wait for long.
const REFERRED: Patience =
    Patience { refused: Duration::from_secs(2), failing: Some(Duration::from_secs(30)) };

/// Something to watch if it is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    PodGroups,
    UpstreamWorkloads,
    OwnWorkloads,
    LeaderWorkerSets,
    /// OpenKruise's budgets, unless somebody else serves them.
    UnavailableBudgets,
    /// A kind that a budget, a pod or a controller names.
    Referred(GroupKind),
}

impl Slot {
    /// What is looked for whether somebody refers to it or not.
    pub(super) const ALWAYS: [Self; 4] =
        [Self::PodGroups, Self::UpstreamWorkloads, Self::OwnWorkloads, Self::LeaderWorkerSets];

    pub(super) fn kind(&self) -> GroupKind {
        match self {
            Self::PodGroups => GroupKind::new("scheduling.k8s.io", "PodGroup"),
            Self::UpstreamWorkloads => GroupKind::new("scheduling.k8s.io", "Workload"),
            Self::OwnWorkloads => GroupKind::new("scheduling.quorate.dev", "Workload"),
            Self::LeaderWorkerSets => GroupKind::new("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
            Self::UnavailableBudgets => GroupKind::new("policy.kruise.io", "PodUnavailableBudget"),
            Self::Referred(kind) => kind.clone(),
        }
    }

    /// What it is called where the watches show how they do.
    pub(super) fn label(&self) -> String {
        let GroupKind { group, kind } = self.kind();
        if group.is_empty() { kind.to_string() } else { format!("{kind}.{group}") }
    }

    /// The versions that can be read here, the best one first; `None` where any can.
    pub(super) fn versions(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::PodGroups => Some(&slim::PodGroup::VERSIONS),
            Self::UpstreamWorkloads => Some(&slim::Workload::VERSIONS),
            Self::OwnWorkloads | Self::UnavailableBudgets => Some(&["v1alpha1"]),
            Self::LeaderWorkerSets => Some(&["v1"]),
            Self::Referred(_) => None,
        }
    }

    pub(super) fn patience(&self) -> Patience {
        if matches!(self, Self::Referred(_)) { REFERRED } else { OURS }
    }

    /// What to tell when it is not watched any more: there is nothing of it.
    pub(super) fn nothing(&self) -> Event {
        Event::List(match self {
            Self::PodGroups => Snapshot::PodGroups(Vec::new()),
            Self::UpstreamWorkloads => Snapshot::Workloads(WorkloadSource::Upstream, Vec::new()),
            Self::OwnWorkloads => Snapshot::Workloads(WorkloadSource::Own, Vec::new()),
            Self::LeaderWorkerSets | Self::Referred(_) => Snapshot::Controllers(self.kind(), Vec::new()),
            Self::UnavailableBudgets => return Event::Unwatched(BudgetKind::PodUnavailableBudget),
        })
    }
}
