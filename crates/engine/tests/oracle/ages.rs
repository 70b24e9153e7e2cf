//! The age of each kind, written from the rule: a budget depends on a set of kinds, and denies while one of them is older
//! than 90 s.
//!
//! The rule says which kinds a budget surely depends on, and which it cannot depend on. Between the two there are kinds of
//! which the rule does not say it: objects above a workload, for example. There the oracle accepts both answers. Where the
//! budget surely depends on a stale kind it must deny, and where it cannot it must decide as if nothing were stale.

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{GroupKind, ObjectKey, Text, Time};
use quorate_engine::facts::{Budget, BudgetKey, Covers, Link, Pod, Rules, Units};
use quorate_engine::request::Request;

use super::count::{needs_scale, pod_group_kind, workload_kind};
use super::{LWS, Oracle};

/// How long a kind is fresh, in milliseconds.
const FRESH: i64 = 90_000;

/// What the watches received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ages {
    /// When each kind was heard of last, and whether it seems not to be served any more.
    pub(crate) heard: BTreeMap<GroupKind, (Time, bool)>,
}

impl Ages {
    pub(crate) fn heard(&mut self, kind: &GroupKind, at: Time) {
        let known = self.heard.get(kind).map_or(at, |(known, _)| at.max(*known));
        self.heard.insert(kind.clone(), (known, false));
    }

    /// A kind that was never read has no age.
    pub(crate) fn doubt(&mut self, kind: &GroupKind) {
        if let Some((_, doubted)) = self.heard.get_mut(kind) {
            *doubted = true;
        }
    }

    pub(crate) fn forget(&mut self, kind: &GroupKind) {
        self.heard.remove(kind);
    }

    fn is_stale(&self, kind: &GroupKind, now: Time) -> bool {
        self.heard.get(kind).is_some_and(|(at, doubted)| *doubted || now.0 - at.0 > FRESH)
    }
}

fn kind(group: &str, name: &str) -> GroupKind {
    GroupKind::new(group, name)
}

fn leader_worker_set() -> GroupKind {
    kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
}

/// Whether a budget that checks its kinds denies because of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByAge {
    Denies,
    Decides,
    /// The rule does not say.
    Either,
}

impl Oracle {
    /// Whether a namespace is terminating, as far as that is known well enough: it may have been created again since.
    pub(crate) fn is_terminating(&self, namespace: &Text) -> bool {
        self.namespaces.get(namespace).is_some_and(|ns| ns.terminating)
            && !self.ages.is_stale(&kind("", "Namespace"), self.now)
    }

    pub(crate) fn by_age(&self, request: &Request, pod: &Pod, budget: &Budget) -> ByAge {
        let stale = |kind: &GroupKind| self.ages.is_stale(kind, self.now);
        if self.surely(budget, pod, request).iter().any(stale) {
            ByAge::Denies
        } else if self.possibly(budget).iter().any(stale) {
            ByAge::Either
        } else {
            ByAge::Decides
        }
    }

    /// The pods under a budget that are there and have not finished.
    fn live(&self, budget: &Budget) -> Vec<&Pod> {
        let seen = self.covered(budget).into_iter().map(|uid| &self.pods[&uid]);
        seen.filter(|seen| seen.absent.is_none() && !seen.pod.phase.is_terminal())
            .map(|seen| &seen.pod)
            .collect()
    }

    /// The kinds that a budget depends on by the words of the rule: controllers where a scale matters or a `targetRef` walks
    /// owners, group objects, Leases and nodes where a probe decides, and the native budget that a twin follows.
    fn surely(&self, budget: &Budget, pod: &Pod, request: &Request) -> BTreeSet<GroupKind> {
        let rules = self.rules(budget).0;
        let live = self.live(budget);
        let mut kinds = BTreeSet::new();
        let scale = rules.units == Units::Pods && rules.expected.is_none() && needs_scale(&rules);
        for pod in &live {
            if scale {
                kinds.extend(self.scales_of(pod));
            }
            if let Covers::Target(target, name) = &rules.covers {
                kinds.extend(self.walk(pod, target, name));
            }
            kinds.extend(group_object(&rules, pod).filter(|_| self.knows_group(&rules, pod)));
            if self.is_probed(pod) {
                kinds.extend([kind("coordination.k8s.io", "Lease"), kind("", "Node")]);
            }
        }
        if budget.is_twin {
            kinds.insert(kind("policy", "PodDisruptionBudget"));
        }
        let seen = &self.pods[&pod.uid];
        if self.is_own_controller(request, seen) {
            kinds.extend(self.scales_of(pod));
        }
        kinds
    }

    /// The kinds of a pod's controller and of the Deployment above it. Where the controller is not known, the budget denies
    /// anyhow.
    fn scales_of(&self, pod: &Pod) -> Vec<GroupKind> {
        let controller = pod.controller().and_then(|owner| self.controllers.get(&owner.uid));
        let above = controller.and_then(|controller| self.scaled(&controller.uid));
        [controller, above].into_iter().flatten().map(|controller| controller.kind.clone()).collect()
    }

    /// Whether the object that forms the group of a pod is known.
    fn knows_group(&self, rules: &Rules, pod: &Pod) -> bool {
        let ns = &pod.key.namespace;
        let named = |name: &Text| ObjectKey::new(ns.clone(), name.clone());
        match pod.link.as_deref().filter(|_| rules.units == Units::Workload) {
            Some(Link::PodGroup(name)) => self.pod_groups.contains_key(&named(name)),
            Some(Link::Replica { source, workload, .. }) => {
                self.workloads.contains_key(&(*source, named(workload)))
            }
            None => {
                let set = pod.labels.get(&format!("{LWS}/name"));
                set.is_some_and(|set| self.leader_worker_set(ns, &Text::from(set)).is_some())
            }
        }
    }

    /// Whether the result of a probe decides on a pod, and its agent and node are known.
    fn is_probed(&self, pod: &Pod) -> bool {
        let has_probe = pod.probe.as_ref().is_some_and(|probe| probe.malformed.is_none());
        let node = pod.node.as_ref();
        let is_known =
            node.is_some_and(|node| self.agents.contains_key(node) && self.nodes.contains_key(node));
        has_probe && is_known && pod.ready && self.gates.disruption_probe
    }

    /// The kinds of the owners from a pod up to the workload that a `targetRef` names.
    fn walk(&self, pod: &Pod, target: &GroupKind, name: &Text) -> Vec<GroupKind> {
        let mut kinds = Vec::new();
        let mut next = pod.controller().cloned();
        for _ in 0..5 {
            let Some(owner) = next else { break };
            if self.controllers.contains_key(&owner.uid) {
                kinds.push(owner.kind.clone());
            }
            if owner.kind == *target && owner.name == *name {
                return kinds;
            }
            next = self.controllers.get(&owner.uid).and_then(|controller| controller.owner.clone());
        }
        // It is covered by a label.
        Vec::new()
    }

    /// All kinds that could matter to a budget.
    fn possibly(&self, budget: &Budget) -> BTreeSet<GroupKind> {
        let ns = &budget.key.object.namespace;
        let rules = self.rules(budget).0;
        let mut kinds = BTreeSet::new();
        let by_target = matches!(rules.covers, Covers::Target(..));
        if let Covers::Target(target, _) = &rules.covers {
            kinds.insert(target.clone());
        }
        for seen in self.pods.values().filter(|seen| seen.pod.key.namespace == *ns) {
            let pod = &seen.pod;
            if !by_target && !self.covers(budget, pod) {
                continue;
            }
            let mut next = pod.controller().cloned();
            for _ in 0..6 {
                let Some(owner) = next else { break };
                kinds.insert(owner.kind.clone());
                next = self.controllers.get(&owner.uid).and_then(|controller| controller.owner.clone());
            }
            kinds.extend(group_object(&rules, pod));
            match pod.link.as_deref() {
                Some(Link::PodGroup(_)) => drop(kinds.insert(pod_group_kind())),
                Some(Link::Replica { source, .. }) => drop(kinds.insert(workload_kind(*source))),
                None => {}
            }
            if pod.labels.get(&format!("{LWS}/name")).is_some() {
                kinds.insert(leader_worker_set());
            }
            if pod.probe.is_some() && self.gates.disruption_probe {
                kinds.extend([kind("coordination.k8s.io", "Lease"), kind("", "Node")]);
            }
        }
        // Sources without pods, and what is above them and above the groups.
        let sources = self.count(budget).kept.into_iter().map(|kept| kept.source);
        let remembered =
            self.memory.get(&budget.key).into_iter().flat_map(|memory| memory.sources.keys().cloned());
        let mut above: Vec<GroupKind> = sources.chain(remembered).map(|source| source.kind).collect();
        if kinds.contains(&pod_group_kind()) || above.contains(&pod_group_kind()) {
            let makers = self.pod_groups.values().filter_map(|group| group.controller.as_ref());
            above.extend(makers.map(|maker| maker.kind.clone()));
        }
        // The owner of a Workload decides whether its groups are expected.
        let of_kinds = self.workloads.iter().filter(|((source, _), _)| {
            let kind = workload_kind(*source);
            kinds.contains(&kind) || above.contains(&kind)
        });
        let owners: Vec<GroupKind> =
            of_kinds.filter_map(|(_, workload)| Some(workload.owner.as_ref()?.kind.clone())).collect();
        kinds.extend(above.into_iter().chain(owners));
        for _ in 0..5 {
            let of_kinds = self.controllers.values().filter(|controller| kinds.contains(&controller.kind));
            let owners: Vec<GroupKind> =
                of_kinds.filter_map(|controller| Some(controller.owner.as_ref()?.kind.clone())).collect();
            kinds.extend(owners);
        }
        kinds
    }

    /// The budgets that deny by age, from those of which an engine says so. Fails where the rule says otherwise.
    pub(crate) fn denying_by_age(
        &self,
        request: &Request,
        said: &BTreeSet<BudgetKey>,
    ) -> Result<BTreeSet<BudgetKey>, String> {
        let mut denying = BTreeSet::new();
        let Some(pod) = self.meant(request) else { return Ok(denying) };
        for budget in self.covering(&pod.uid) {
            let observes = self.rules(budget).0.observe;
            let (by_age, says) = (self.by_age(request, pod, budget), said.contains(&budget.key));
            let denies = match by_age {
                ByAge::Denies => true,
                ByAge::Decides => false,
                ByAge::Either => says,
            };
            if says && by_age == ByAge::Decides && !observes {
                return Err(format!("{} does not depend on a stale kind", budget.key));
            }
            if denies {
                denying.insert(budget.key.clone());
            }
        }
        Ok(denying)
    }
}

/// The kind of the object that forms the group of a pod.
fn group_object(rules: &Rules, pod: &Pod) -> Option<GroupKind> {
    match (&rules.units, pod.link.as_deref()) {
        (Units::Workload, Some(Link::PodGroup(_))) => Some(pod_group_kind()),
        (Units::Workload, Some(Link::Replica { source, .. })) => Some(workload_kind(*source)),
        (Units::Label { key, .. }, _) if rules.expected.is_none() => {
            let names = [format!("{LWS}/group-index"), format!("{LWS}/group-key")];
            let is_group = names.iter().any(|name| **name == **key) && pod.labels.get(key).is_some();
            (is_group && pod.labels.get(&format!("{LWS}/name")).is_some()).then(leader_worker_set)
        }
        _ => None,
    }
}
