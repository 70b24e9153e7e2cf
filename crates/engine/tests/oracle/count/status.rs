//! The status of a budget: its numbers, its groups and its conditions.

use std::collections::BTreeSet;

use quorate_engine::basics::{ObjectKey, Quantity, Text, Uid};
use quorate_engine::claims::PROTOCOL;
use quorate_engine::condition_reason::ConditionReason as Reason;
use quorate_engine::decision::Numbers;
use quorate_engine::facts::{Budget, BudgetKey, Units};
use quorate_engine::status::Status;

use super::{Count, ExpectedFrom, Group, Id, asked, is_lone, numbers};
use crate::oracle::Oracle;
use crate::oracle::memory::MemoryView;

/// A status without its messages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusView {
    pub(crate) units: Numbers,
    pub(crate) pods: (u32, u32, u32),
    pub(crate) disrupted: BTreeSet<Text>,
    pub(crate) updating: BTreeSet<Text>,
    pub(crate) groups: Vec<(Text, u32, u32, u32, Option<i64>)>,
    pub(crate) memory: MemoryView,
    pub(crate) conditions: Vec<(Reason, bool)>,
}

impl StatusView {
    pub(crate) fn of(status: &Status) -> Self {
        let names = |pods: &[(Text, _)]| pods.iter().map(|(name, _)| name.clone()).collect();
        let mut groups: Vec<_> = status
            .groups
            .iter()
            .map(|g| (g.name.clone(), g.healthy, g.min_count, g.pods, g.gone_since.map(|at| at.0)))
            .collect();
        groups.sort();
        Self {
            units: status.units,
            pods: (status.pods_healthy, status.pods_desired, status.pods_expected),
            disrupted: names(&status.disrupted),
            updating: names(&status.updating),
            groups,
            memory: MemoryView::of(&status.memory),
            conditions: status.conditions.iter().map(|c| (c.reason, c.status)).collect(),
        }
    }
}

impl Oracle {
    pub(crate) fn status(&self, key: &BudgetKey) -> StatusView {
        let budget = &self.budgets[key];
        let count = self.count(budget);
        let by_pods = count.rules.units == Units::Pods;
        let valid = budget.spec.is_ok();
        let open = enforced(budget, &count).1;
        let shown = count.shown();
        let allowed = if count.unresolved.is_some() || !open { 0 } else { shown.allowed };
        let units = if valid { Numbers { allowed, ..shown } } else { Numbers::default() };
        let pods = match (valid, by_pods || count.shows_singles()) {
            (false, _) => (0, 0, 0),
            (true, true) => (count.healthy.len() as u32, units.desired, units.expected),
            (true, false) => {
                (count.healthy.len() as u32, needed(&count, units.desired), count.members.len() as u32)
            }
        };
        let claimed = |removes: bool| {
            let claims = budget.ledger.claims.values();
            let alike =
                claims.filter(|claim| claim.tokens.values().any(|t| t.operation.removes() == removes));
            alike.map(|claim| claim.pod.clone()).collect()
        };
        let mut groups: Vec<_> = count
            .groups
            .iter()
            .map(|g| (g.name.clone(), g.healthy, g.min.unwrap_or(0), g.pods.len() as u32, None))
            .collect();
        if valid && !by_pods {
            let gone = self.gone.get(key).into_iter().flatten();
            groups.extend(gone.map(|(name, since)| (name.clone(), 0, 0, 0, Some(since.0))));
        }
        groups.sort();
        StatusView {
            units,
            pods,
            disrupted: claimed(true),
            updating: claimed(false),
            groups,
            memory: MemoryView::of(&self.memory[key].as_written()),
            conditions: vec![
                self.allowed(budget, &count, units),
                self.configured(budget, &count),
                enforced(budget, &count),
            ],
        }
    }

    fn allowed(&self, budget: &Budget, count: &Count, units: Numbers) -> (Reason, bool) {
        let by_pods = count.rules.units == Units::Pods || count.shows_singles();
        match (&budget.spec, count.unresolved, by_pods, units.allowed > 0) {
            (Err(_), ..) => (Reason::SyncFailed, false),
            (_, Some("Group"), ..) => (Reason::WorkloadResolutionFailed, false),
            (_, Some(_), ..) => (Reason::SyncFailed, false),
            _ if !enforced(budget, count).1 => (Reason::SyncFailed, false),
            (_, _, true, true) => (Reason::SufficientPods, true),
            (_, _, true, false) => (Reason::InsufficientPods, false),
            (_, _, false, true) => (Reason::SufficientReplicas, true),
            (_, _, false, false) => (Reason::InsufficientReplicas, false),
        }
    }

    fn configured(&self, budget: &Budget, count: &Count) -> (Reason, bool) {
        let ns = &budget.key.object.namespace;
        let rules = &count.rules;
        let by_pods = rules.units == Units::Pods;
        let asks = rules.expected.is_none()
            && (rules.max_unavailable.is_some() || matches!(rules.min_available, Some(Quantity::Percent(_))));
        let unmanaged = count.members.iter().any(|uid| self.pods[uid].pod.controller().is_none());
        let by_eye = |expected_from: &ExpectedFrom| match expected_from {
            ExpectedFrom::Seen => true,
            // The PodGroup exists, but no object states how many of them are expected.
            ExpectedFrom::Of(source) => is_lone(source),
            ExpectedFrom::Budget => false,
        };
        let seen = count.groups.iter().any(|group| by_eye(&group.expected_from))
            || count.kept.iter().any(|kept| is_lone(&kept.source))
            || self.gone.get(&budget.key).is_some_and(|gone| !gone.is_empty());
        let troubles = [
            (budget.spec.is_err(), Reason::Invalid),
            (count.downgraded, Reason::FeatureDisabled),
            (self.namespaces.get(ns).is_some_and(|ns| ns.excluded), Reason::NamespaceExcluded),
            (!count.ungrouped.is_empty(), Reason::MissingWorkloadReference),
            (count.groups.iter().any(|group| self.is_too_small(count, group)), Reason::UnreachableMinimum),
            (self.never_allows(count), Reason::NeverAllows),
            (self.is_too_tight_natively(count), Reason::NativeRuleTooTight),
            (!count.singles.is_empty(), Reason::MissingGroupLabel),
            (by_pods && asks && unmanaged, Reason::UnmanagedPods),
            (self.workload_names(ns, count).len() > 1, Reason::MultipleWorkloadsDetected),
            (!by_pods && asks && seen, Reason::ExpectedFromObservation),
        ];
        let worst = troubles.into_iter().find(|(is, _)| *is);
        worst.map_or((Reason::ValidConfig, true), |(_, reason)| (reason, false))
    }

    /// Whether nothing would be allowed even if all pods existed and were healthy.
    fn never_allows(&self, count: &Count) -> bool {
        let rules = &count.rules;
        let with_pods = self.workloads(&count.members, &[]);
        let scale = with_pods.iter().map(|of| of.wants.unwrap_or(0)).sum::<u32>()
            + count.kept.iter().map(|kept| kept.size).sum::<u32>();
        let all = match rules.units {
            Units::Pods if rules.expected.is_none() => count.units.expected.max(scale),
            _ => count.shown().expected,
        };
        all > 0 && numbers(rules, all, all).allowed == 0
    }

    /// Whether a group can never have the pods that the budget requires: it is known to be smaller, or has fewer pods
    /// and no workload of these is known to want more, or is unknown.
    fn is_too_small(&self, count: &Count, group: &Group) -> bool {
        let fewer = asked(&count.rules).is_some_and(|asked| (group.pods.len() as u32) < asked);
        let pods: Vec<_> = group.pods.iter().map(|uid| &self.pods[uid].pod).collect();
        if group.size.is_some() || !fewer || group.surge || pods.iter().any(|pod| pod.phase.is_terminal()) {
            return group.unreachable;
        }
        let workload = |uid: &Uid| Some(self.scaled(&self.pods[uid].pod.controller()?.uid)?.uid.clone());
        let mut owners = pods.iter().filter_map(|pod| pod.controller());
        !owners.any(|owner| {
            let Some(scaled) = self.scaled(&owner.uid) else { return true };
            let here = count.members.iter().filter(|uid| workload(uid).as_ref() == Some(&scaled.uid)).count();
            self.wants(scaled).is_some_and(|wants| wants as usize > here)
        })
    }

    /// Whether a native budget that covers a pod of a group allows fewer disruptions than the group has pods.
    fn is_too_tight_natively(&self, count: &Count) -> bool {
        count.groups.iter().any(|group| {
            let size = group.pods.len() as i64;
            let mut over = group.pods.iter().flat_map(|uid| self.native_budgets_of(&self.pods[uid].pod));
            over.any(|native| {
                native.current && native.expected - native.healthy.1 < size && size <= native.expected
            })
        })
    }

    fn workload_names(&self, ns: &Text, count: &Count) -> BTreeSet<Text> {
        let name = |group: &Group| match &group.id {
            Id::Replica(_, workload, ..) => Some(workload.clone()),
            Id::PodGroup(name) => {
                let object = self.pod_groups.get(&ObjectKey::new(ns.clone(), name.clone()))?;
                object.template.as_ref().map(|(workload, _)| workload.clone())
            }
            _ => None,
        };
        count.groups.iter().filter_map(name).collect()
    }
}

fn enforced(budget: &Budget, count: &Count) -> (Reason, bool) {
    let spec = budget.spec.as_ref().unwrap_or(&count.rules);
    let open = budget.ledger.enforced == Some(quorate_engine::Coverage::of(&budget.uid, spec));
    match budget.ledger.protocol {
        Some(other) if other != PROTOCOL => (Reason::WaitingForReplica, false),
        _ if open => (Reason::AllReplicas, true),
        _ => (Reason::JustCreated, false),
    }
}

/// The pods that the desired units need: the smallest units count, and missing units are as small as the smallest.
fn needed(count: &Count, desired: u32) -> u32 {
    let mut minimums: Vec<u32> = count
        .groups
        .iter()
        .filter(|group| !group.complete && !group.surge)
        .filter_map(|group| group.min)
        .collect();
    minimums.sort_unstable();
    let smallest = minimums.first().copied().unwrap_or(1);
    (0..desired as usize).map(|at| minimums.get(at).copied().unwrap_or(smallest)).sum()
}
