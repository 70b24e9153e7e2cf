//! One disruption that is judged: what servers can have seen when they decided on it.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::count::{Group, Sample};
use super::coverage::{ExpectedFrom, covers, group_of, is_surge, leader_worker_set, scaled_by};
use super::decode::{Budget, Disruption, Grouping, Id, Pod, Spec};
use super::memory::LAG;
use super::report::Breach;
use super::states::{Effect, Entry, NamespaceHistory, State};
use super::taken::Record;
use super::trust::Trust;

/// A disruption that is judged.
pub(super) struct Case<'a> {
    pub(super) namespace: &'a NamespaceHistory,
    pub(super) trust: &'a Trust,
    pub(super) effect: &'a Effect,
    pub(super) record: &'a Record,
    /// The revision when the request that is judged ended.
    pub(super) ended_at: u64,
}

impl<'a> Case<'a> {
    /// Every state that a server can have seen when it decided.
    pub(super) fn window(&self) -> impl DoubleEndedIterator<Item = &'a Rc<State>> {
        self.namespace.since(self.record.received.saturating_sub(LAG), self.ended_at)
    }

    /// The states from the request to the disruption.
    pub(super) fn undisturbed(&self) -> impl DoubleEndedIterator<Item = &'a Rc<State>> {
        self.namespace.between(self.record.received_at, self.effect.revision.saturating_sub(1))
    }

    /// The state before the disruption.
    pub(super) fn before(&self) -> Option<&'a Rc<State>> {
        self.undisturbed().next_back()
    }

    /// Whether a server that saw this state knew that the budget covers the pod, or that the pod leaves it. A server can
    /// have seen a pod with the labels and owners that it had then. A relabel is stored on the very version of the pod that
    /// servers decided on, so only the owners above the pod may be seen late.
    pub(super) fn reaches(&self, spec: &Spec, state: &State) -> bool {
        match self.effect.kind {
            Disruption::Relabelled => self.effect.leaves(spec, state),
            _ => state.pod(self.effect.pod.id()).is_none_or(|pod| covers(spec, pod, state)),
        }
    }

    /// Whether a server that saw this state knew what says how many units there should be beside this pod's. Without
    /// that it must deny, so earlier states say nothing about what it desired. Kinds age separately: it may have seen the
    /// Deployment of this state with a later ReplicaSet.
    pub(super) fn known(&self, state: &State, spec: &Spec, sample: &Sample) -> bool {
        let Some(before) = self.before() else { return true };
        let pod = &self.effect.pod;
        let Some(group) = group_of(spec, pod, before) else {
            let own = scaled_by(pod, before).map(|source| source.meta.id);
            return own.is_none_or(|own| state.sources.contains_key(&own));
        };
        match &group.expected_from {
            ExpectedFrom::Controller(id)
            | ExpectedFrom::LeaderWorkerSet(id)
            | ExpectedFrom::PodGroup(id, _)
            | ExpectedFrom::Alone(id) => state.sources.contains_key(id),
            ExpectedFrom::Observed(..) => sample.groups.contains_key(&group.name),
            ExpectedFrom::Template(..) | ExpectedFrom::Orphaned(_) => {
                group_of(spec, pod, state).is_some_and(|then| then.expected_from == group.expected_from)
            }
        }
    }

    /// The budgets that were enforced when a healthy pod was disrupted, protect against it, and never had a claim for it.
    ///
    /// Servers write a claim into every such budget before they admit a request, whatever the reason why they admit it.
    /// What was admitted before the budget existed is added to it before it is enforced. So no number is needed here, and
    /// no view is too old: only what the pod is, and which budgets cover it, may be seen late. A pod that was not healthy
    /// yet when the request arrived, or did not exist, needs a claim as well.
    pub(super) fn not_recorded(&self) -> Vec<&'a Budget> {
        let recorded = [Disruption::Removed, Disruption::Updated, Disruption::Relabelled];
        if self.record.by_controller || !recorded.contains(&self.effect.kind) {
            return Vec::new();
        }
        let Some(before) = self.before() else { return Vec::new() };
        let id = self.effect.pod.id();
        if !before.pod(id).is_some_and(|pod| pod.healthy(true) && (pod.ready || !pod.probe)) {
            return Vec::new();
        }
        let under_way: Vec<&Rc<State>> = self.undisturbed().collect();
        let guarded = |state: &&Rc<State>| state.fails_closed && !state.ending;
        if !under_way.iter().all(guarded) {
            return Vec::new();
        }
        let lacks = |entry: &&'a Entry| {
            let budget = &entry.budget;
            let Some(spec) = budget.spec.as_ref().filter(|_| budget.enforced && budget.held.is_some()) else {
                return false;
            };
            let held = |state: &Rc<State>| {
                let held = state.budget(budget.meta.id).and_then(|entry| entry.budget.held.as_ref());
                held.is_some_and(|held| held.contains(&id))
            };
            let covered = |state: &Rc<State>| {
                let waives = |pod: &Rc<Pod>| spec.kruise && pod.no_protect;
                self.reaches(spec, state) && !state.pod(id).is_some_and(waives)
            };
            !spec.observes
                && budget.configured != "NamespaceExcluded"
                && self.record.concerns(spec)
                && !under_way.iter().any(|state| held(state))
                && self.window().all(covered)
        };
        before.budgets.iter().filter(lacks).map(|entry| &*entry.budget).collect()
    }

    /// Whether no server can have believed that the probe of this pod says yes, if it has a probe.
    pub(super) fn doubts(&self, pod: &Pod) -> bool {
        pod.probe && !self.trust.may(pod, self.record.received, self.effect.at)
    }

    /// Why the pod must stay whatever the numbers are: in every state that a server can have seen it was ready, and its
    /// probe said no, or had no result that counts.
    pub(super) fn refused(&self) -> Option<Breach> {
        if self.record.by_controller || !self.effect.pod.probe {
            return None;
        }
        let from = self.record.received.checked_sub(LAG)?;
        let states = self.namespace.since(from, self.effect.revision.saturating_sub(1));
        let mut first = None;
        let mut said_no = true;
        for state in states {
            let pod = state.pod(self.effect.pod.id()).filter(|pod| pod.asks_probe() && self.doubts(pod))?;
            said_no &= pod.disruptable == Some(false);
            first.get_or_insert(state.at);
        }
        let since = first.filter(|first| *first <= from)?;
        Some(if said_no { Breach::PodSaidNo(since) } else { Breach::NoResultCounts(from) })
    }

    /// Whether the last state before the disruption allowed it by itself. Mostly it did, and this is cheap.
    pub(super) fn obviously_allowed(
        &self,
        budget: Id,
        spec: &Rc<Spec>,
        gone: &dyn Fn(Id, &State) -> bool,
    ) -> bool {
        let Some(state) = self.before() else { return true };
        let sample = state.sample(budget, spec);
        let group = group_of(spec, &self.effect.pod, state);
        let single = group.is_none() && spec.grouping != Grouping::Pods;
        let out = |other: Id| other == self.effect.pod.id() || gone(other, state);
        let healthy = match group {
            Some(_) => sample.groups.values().filter(|group| group.whole(group.minimum, out)).count(),
            None => sample.pods.iter().filter(|healthy| !out(healthy.pod)).count(),
        };
        let desired = if single { sample.desired_single } else { sample.desired };
        u32::try_from(healthy).unwrap_or(u32::MAX) >= desired.low
    }

    /// Whether the disruption takes down a unit that would be whole without it.
    pub(super) fn harms(
        &self,
        budget: Id,
        spec: &Rc<Spec>,
        minima: &Minima,
        gone: &dyn Fn(Id, &State) -> bool,
    ) -> bool {
        let id = self.effect.pod.id();
        self.undisturbed().filter_map(|state| state.pod(id).map(|pod| (pod, state))).all(|(pod, state)| {
            // Without Ready it is down as soon as a server doubts the result of its probe.
            let unsure = pod.probe && !pod.ready;
            if !pod.healthy(spec.kruise) || unsure || gone(id, state) {
                return false;
            }
            let Some(of) = group_of(spec, pod, state) else {
                // Under budgetScope Workload a pod without a group counts as unhealthy.
                return spec.grouping != Grouping::Workload;
            };
            if is_surge(pod, state) {
                return false;
            }
            let sample = state.sample(budget, spec);
            let Some(group) = sample.groups.get(&of.name) else { return false };
            let (least, most) = minima.of_group(&of.name);
            let must = |other: Id| {
                let other = state.pod(other).filter(|other| other.probe);
                other.is_none_or(|other| self.trust.must(other, self.record.received, self.effect.at))
            };
            group.whole(most, |other| gone(other, state) || !must(other))
                && !group.whole(least, |other| other == id || gone(other, state))
        })
    }

    /// The most that a controller needs to leave: what the workloads wanted at least, at some instant of the window, and
    /// the pods that have no controller.
    pub(super) fn wanted_by_controller(&self, spec: &Spec, gone: &dyn Fn(Id, &State) -> bool) -> u32 {
        let pod = &self.effect.pod;
        if spec.grouping == Grouping::Pods {
            return self.wanted_pods(spec, gone);
        }
        let least = |state: &Rc<State>| {
            let set = leader_worker_set(pod, state);
            let Some(source) = set.or_else(|| scaled_by(pod, state)) else { return 0 };
            if source.meta.deleting || source.recreates {
                return 0;
            }
            let wants = source.wants.unwrap_or(0);
            let ours = |other: &&Rc<Pod>| other.active() && other.meta.controller() == pod.meta.controller();
            let has_more = state.pods.iter().filter(ours).count() > wants as usize;
            // Pods say nothing about groups: a controller of pods that scales down ends its group.
            if set.is_none() && has_more { 0 } else { wants }
        };
        self.window().map(least).min().unwrap_or(0)
    }

    /// The same for a budget that counts pods. Each kind is seen late by itself, so each source counts with the least that
    /// it wanted.
    fn wanted_pods(&self, spec: &Spec, gone: &dyn Fn(Id, &State) -> bool) -> u32 {
        let mut least: Option<BTreeMap<Option<Id>, u32>> = None;
        for state in self.window() {
            if scaled_by(&self.effect.pod, state).is_none_or(|own| own.recreates) {
                return 0;
            }
            let mut now: BTreeMap<Option<Id>, u32> = BTreeMap::new();
            for pod in state.pods.iter().filter(|pod| covers(spec, pod, state)) {
                match scaled_by(pod, state) {
                    Some(source) if source.meta.deleting => {}
                    Some(source) => drop(now.insert(Some(source.meta.id), source.wants.unwrap_or(0))),
                    None if pod.meta.controller().is_none() && pod.active() && !gone(pod.id(), state) => {
                        *now.entry(None).or_default() += 1;
                    }
                    None => {}
                }
            }
            least = Some(match least {
                None => now,
                Some(mut least) => {
                    least.retain(|source, _| now.contains_key(source));
                    least.iter_mut().for_each(|(source, wants)| *wants = (*wants).min(now[source]));
                    least
                }
            });
        }
        least.unwrap_or_default().values().sum()
    }
}

/// The fewest and the most pods that each group needed in a window: the objects that say so age by themselves.
pub(super) struct Minima {
    groups: BTreeMap<String, (usize, usize)>,
}

impl Minima {
    pub(super) fn of(case: &Case<'_>, budget: Id, spec: &Rc<Spec>) -> Self {
        let mut groups: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        if spec.grouping != Grouping::Pods {
            for state in case.window() {
                for (name, group) in &state.sample(budget, spec).groups {
                    let known = groups.entry(name.clone()).or_insert((group.minimum, group.minimum));
                    *known = (known.0.min(group.minimum), known.1.max(group.minimum));
                }
            }
        }
        Self { groups }
    }

    fn of_group(&self, name: &str) -> (usize, usize) {
        self.groups.get(name).copied().unwrap_or((1, 1))
    }

    /// Healthy units without the pods that are out.
    pub(super) fn healthy(&self, sample: &Sample, groups: bool, out: impl Fn(Id) -> bool) -> usize {
        if !groups {
            return sample.pods.iter().filter(|healthy| !out(healthy.pod)).count();
        }
        let whole = |(name, group): &(&String, &Group)| group.whole(self.of_group(name).0, &out);
        sample.groups.iter().filter(whole).count()
    }
}
