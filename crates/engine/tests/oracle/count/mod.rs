//! Units, numbers and status, computed from the facts each time.
//!
//! This module computes the numbers of a budget. `group` defines which pods are one unit, `source` which objects state
//! the expected number, `matching` whether a budget covers a source without pods, `expected` the expected number of
//! units, and `status` the status.

mod expected;
mod group;
mod matching;
mod source;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{Quantity, Time, Uid};
use quorate_engine::decision::Numbers;
use quorate_engine::facts::{
    Agent, Budget, Controller, HealthRule, MAX_SOURCES, Phase, Pod, Probe, Rules, Units,
};

use super::{Oracle, Seen};
pub(crate) use expected::OfWorkload;
use expected::asks_sources;
pub(crate) use group::{Group, Id, asked, place};
pub(crate) use matching::Match;
pub(crate) use source::{
    ExpectedFrom, Kept, is_lone, of_controller, of_template, pod_group_kind, workload_kind,
};
pub(crate) use status::StatusView;

/// All counts of a budget.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) rules: Rules,
    pub(crate) downgraded: bool,
    pub(crate) members: Vec<Uid>,
    pub(crate) healthy: BTreeSet<Uid>,
    pub(crate) groups: Vec<Group>,
    pub(crate) singles: Vec<Uid>,
    pub(crate) ungrouped: Vec<Uid>,
    /// The sources that are expected without pods.
    pub(crate) kept: Vec<Kept>,
    pub(crate) units: Numbers,
    /// Whole units, without the limit of the expected number.
    pub(crate) whole: u32,
    pub(crate) single_units: Numbers,
    pub(crate) unresolved: Option<&'static str>,
}

impl Count {
    /// Whether the status shows the numbers of the pods without a group: no group is expected.
    pub(crate) fn shows_singles(&self) -> bool {
        !self.singles.is_empty() && self.units.expected == 0
    }

    /// The numbers that the status shows.
    pub(crate) fn shown(&self) -> Numbers {
        if self.shows_singles() { self.single_units } else { self.units }
    }
}

impl Oracle {
    pub(crate) fn count(&self, budget: &Budget) -> Count {
        self.count_without(budget, &[])
    }

    /// Counts as if these pods had no claims, and were seen by the watch.
    pub(crate) fn count_without(&self, budget: &Budget, claims_of: &[Uid]) -> Count {
        let (rules, downgraded) = self.rules(budget);
        let namespace = &budget.key.object.namespace;
        let members = self.covered(budget);
        let mut groups: BTreeMap<Id, Vec<Uid>> = BTreeMap::new();
        let (mut singles, mut ungrouped) = (Vec::new(), Vec::new());
        for uid in &members {
            match (&rules.units, place(&rules, &self.pods[uid].pod)) {
                (Units::Pods, _) => {}
                (_, Some(id)) => groups.entry(id).or_default().push(uid.clone()),
                (Units::Workload, None) => ungrouped.push(uid.clone()),
                (_, None) => singles.push(uid.clone()),
            }
        }
        // A pod that was read alone may be healthy later than another one was.
        let listed = self.looks.get(&budget.key).filter(|look| look.0 == self.coverage(budget));
        let shown = listed.map_or(self.pods_version, |look| look.1.max(self.pods_version));
        let ahead = |uid: &Uid| self.pods[uid].pod.version > shown;
        let held = |uid: &Uid| (budget.ledger.holds(uid) || ahead(uid)) && !claims_of.contains(uid);
        let healthy: BTreeSet<Uid> = members
            .iter()
            .filter(|uid| {
                !ungrouped.contains(uid) && !held(uid) && self.is_available(&self.pods[*uid], rules.health)
            })
            .cloned()
            .collect();
        let all_lost = self.lost.get(&budget.key);
        let lost = |id: &Id| all_lost.and_then(|lost| lost.get(id)).copied().unwrap_or(0);
        let groups: Vec<Group> = groups
            .into_iter()
            .map(|(id, pods)| {
                let lost = lost(&id);
                self.group(&rules, namespace, id, pods, &healthy, lost)
            })
            .collect();
        let with_pods = self.sources_with_pods(budget, &groups);
        let kept = self.kept(budget, &with_pods);
        let (current, whole, expected) = match rules.units {
            Units::Pods => {
                let healthy = healthy.len() as u32;
                (healthy, healthy, self.pods_expected(budget, &rules, &with_pods, &kept))
            }
            _ => self.groups_expected(budget, &rules, &groups, &kept),
        };
        let singles_healthy = singles.iter().filter(|uid| healthy.contains(*uid)).count() as u32;
        let singles_expected = match needs_scale(&rules) {
            false => singles.len() as u32,
            true => self.singles_expected(&members, &singles),
        };
        let unresolved = self.unresolved(budget, &rules, &members, &singles, &groups, &kept);
        Count {
            units: numbers(&rules, current, expected),
            whole,
            single_units: numbers(&rules, singles_healthy, singles_expected),
            rules,
            downgraded,
            members,
            healthy,
            groups,
            singles,
            ungrouped,
            kept,
            unresolved,
        }
    }

    /// Whether a pod is healthy, apart from claims.
    pub(crate) fn is_available(&self, seen: &Seen, rule: HealthRule) -> bool {
        let pod = &seen.pod;
        let strict = rule == HealthRule::Ready || (pod.phase == Phase::Running && pod.consistent);
        let says_yes = match &pod.probe {
            Some(_) if self.gates.disruption_probe => self.doubt(pod).is_none(),
            _ => pod.ready,
        };
        seen.absent.is_none() && !pod.terminating && !pod.phase.is_terminal() && strict && says_yes
    }

    /// Why the probe of a pod does not allow a disruption.
    pub(crate) fn doubt(&self, pod: &Pod) -> Option<&'static str> {
        let probe = pod.probe.as_ref()?;
        let node = pod.node.as_ref();
        let agent = node.and_then(|node| self.agents.get(node));
        if self.trusted.contains(&pod.uid) && self.may_be_trusted(probe, agent) {
            return None;
        }
        let Some(agent) = agent.filter(|_| probe.malformed.is_none()) else {
            return Some(if probe.malformed.is_some() { "Malformed" } else { "NoAgent" });
        };
        let fresh = self.now.0 < agent.renewed.0 + agent.holds.as_millis() as i64;
        let node_ready = node.and_then(|node| self.nodes.get(node)).is_some_and(|node| node.ready);
        let probed = probe.probed.map(|at| at.0);
        let young = probed.is_some_and(|at| at >= agent.started.0)
            && probe.started.is_none_or(|start| probed.is_some_and(|at| at >= start.0));
        match probe.disruptable {
            _ if !fresh => Some("AgentStale"),
            _ if !node_ready => Some("NodeNotReady"),
            None => Some("Silent"),
            Some(false) => Some("SaysNo"),
            Some(true) if !young => Some("Outdated"),
            Some(true) => None,
        }
    }

    /// Whether a probe may say yes by now: the agent may be back, unless it was silent for longer than a watch may lag.
    fn may_be_trusted(&self, probe: &Probe, agent: Option<&Agent>) -> bool {
        let Some(at) = probe.probed.filter(|_| probe.disruptable == Some(true)) else { return false };
        let after = |start: Option<Time>| start.is_none_or(|start| at >= start);
        let lapsed = |agent: &Agent| self.now.0 - agent.renewed.0 - agent.holds.as_millis() as i64;
        probe.malformed.is_none()
            && after(probe.started)
            && after(agent.map(|agent| agent.started))
            && agent.is_none_or(|agent| lapsed(agent) < 90_000)
    }

    fn unresolved(
        &self,
        budget: &Budget,
        rules: &Rules,
        members: &[Uid],
        singles: &[Uid],
        groups: &[Group],
        kept: &[Kept],
    ) -> Option<&'static str> {
        if groups.iter().any(|group| group.min.is_none() && !group.complete) {
            return Some("Group");
        }
        if asks_sources(rules) && kept.iter().filter(|kept| kept.by_memory).count() >= MAX_SOURCES {
            return Some("Sources");
        }
        let memory = self.memory.get(&budget.key).into_iter().flat_map(|memory| &memory.sources);
        let mut unread = memory.filter(|(_, known)| !**known).map(|(source, _)| &source.kind);
        if asks_sources(rules) && unread.any(|kind| !self.ages.heard.contains_key(kind)) {
            return Some("Unread");
        }
        let asked = match rules.units {
            Units::Pods if rules.expected.is_none() => members,
            Units::Pods | Units::Workload => &[],
            _ => singles,
        };
        let scales: Vec<Option<&Controller>> = asked
            .iter()
            .filter(|_| needs_scale(rules))
            .filter_map(|uid| Some(self.scaled(&self.pods[uid].pod.controller()?.uid)))
            .collect();
        if scales.iter().any(Option::is_none) {
            return Some("Controller");
        }
        scales.iter().flatten().any(|scaled| self.wants(scaled).is_none()).then_some("Scale")
    }
}

pub(crate) fn needs_scale(rules: &Rules) -> bool {
    !(rules.max_unavailable.is_none() && matches!(rules.min_available, Some(Quantity::Count(_))))
}

pub(crate) fn numbers(rules: &Rules, current: u32, expected: u32) -> Numbers {
    let share = |quantity: Quantity| match quantity {
        Quantity::Count(n) => n,
        Quantity::Percent(p) => (f64::from(expected) * f64::from(p) / 100.0 - 1e-9).ceil().max(0.0) as u32,
    };
    let by_min = rules.min_available.map_or(0, share);
    let by_max = rules.max_unavailable.map_or(0, |max| expected.saturating_sub(share(max)));
    let desired = by_min.max(by_max);
    let allowed = if expected == 0 { 0 } else { current.saturating_sub(desired) };
    Numbers { allowed, current, desired, expected }
}
