//! The kinds that discovery looks for: those that not every cluster has.

use std::time::Duration;

use quorate_api::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP};
use quorate_api::slim;
use quorate_engine::Snapshot;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{BudgetKind, WorkloadSource};
use quorate_engine::group_source::GroupSource;
use quorate_engine::ledger::Event;

use crate::watches::scope::SyncTimeout;

/// The chart grants permissions for these kinds: if a read is refused at first, it may still succeed later. While the
/// API server fails to answer there is no limit, because the list may contain a budget or the size of a group.
pub(super) const OURS: SyncTimeout = SyncTimeout { refused: Some(REFUSED), failing: None };

/// How long to wait while the API server refuses a read.
pub(super) const REFUSED: Duration = Duration::from_secs(30);

/// A server that does not know the budgets of a kind would admit what they deny, and other servers report them as enforced.
const BUDGETS: SyncTimeout = SyncTimeout { refused: None, failing: None };

/// Quorate may have no permissions for kinds that are only referred to. Requests that depend on an unknown object are
/// denied, so there is no need to wait long.
const REFERRED: SyncTimeout =
    SyncTimeout { refused: Some(Duration::from_secs(2)), failing: Some(Duration::from_secs(30)) };

/// A kind to watch if it is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    PodGroups,
    UpstreamWorkloads,
    OwnWorkloads,
    /// The objects of a group source.
    Groups(&'static GroupSource),
    /// OpenKruise's budgets, if Quorate serves them.
    UnavailableBudgets,
    /// A kind that a budget, a pod or a controller names.
    Referred(GroupKind),
}

impl Slot {
    /// Kinds that are watched even if no object refers to them.
    pub(super) fn always() -> impl Iterator<Item = Self> {
        let workload_api = [Self::PodGroups, Self::UpstreamWorkloads, Self::OwnWorkloads];
        workload_api.into_iter().chain(GroupSource::ALL.iter().map(Self::Groups))
    }

    pub(super) fn kind(&self) -> GroupKind {
        match self {
            Self::PodGroups => GroupKind::new(UPSTREAM_SCHEDULING_GROUP, "PodGroup"),
            Self::UpstreamWorkloads => GroupKind::new(UPSTREAM_SCHEDULING_GROUP, "Workload"),
            Self::OwnWorkloads => GroupKind::new(SCHEDULING_GROUP, "Workload"),
            Self::Groups(source) => source.group_kind(),
            Self::UnavailableBudgets => GroupKind::new("policy.kruise.io", "PodUnavailableBudget"),
            Self::Referred(kind) => kind.clone(),
        }
    }

    /// The versions that can be read here, the best one first; `None` if all can.
    pub(super) fn versions(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::PodGroups => Some(&slim::PodGroup::VERSIONS),
            Self::UpstreamWorkloads => Some(&slim::Workload::VERSIONS),
            Self::OwnWorkloads | Self::UnavailableBudgets => Some(&["v1alpha1"]),
            Self::Groups(source) => Some(source.versions),
            Self::Referred(_) => None,
        }
    }

    pub(super) fn sync_timeout(&self) -> SyncTimeout {
        match self {
            Self::UnavailableBudgets => BUDGETS,
            Self::Referred(_) => REFERRED,
            _ => OURS,
        }
    }

    /// The event for a kind that is not watched any more: it has no objects.
    pub(super) fn nothing(&self) -> Event {
        Event::List(match self {
            Self::PodGroups => Snapshot::PodGroups(Vec::new()),
            Self::UpstreamWorkloads => Snapshot::Workloads(WorkloadSource::Upstream, Vec::new()),
            Self::OwnWorkloads => Snapshot::Workloads(WorkloadSource::Own, Vec::new()),
            Self::Groups(_) | Self::Referred(_) => Snapshot::Controllers(self.kind(), Vec::new()),
            Self::UnavailableBudgets => return Event::Unwatched(BudgetKind::PodUnavailableBudget),
        })
    }
}
