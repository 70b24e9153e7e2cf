//! Admissions: whether every budget must have allowed them.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use super::callers::{by_controller, can_cause, denied, describe, exempt, operation};
use super::count::{Group, Sample};
use super::coverage::{Family, covers, group_of, leader_worker_set, scaled_by, surplus};
use super::decode::{Budget, Disruption, Grouping, Id, Pod, Spec};
use super::memory::LAG;
use super::report::{Arithmetic, Breach, Report, Violation};
use super::taken::{Record, Taken};
use super::world::{Effect, Entry, Space, State, World};
use crate::history::{History, Pardon, Request, Span};

/// Judges admissions in the order in which they ended.
pub(super) struct Judge<'a> {
    history: &'a History,
    /// Requests that may have been carried out, by namespace and name of the pod. Those of all pods have no name.
    carried_out: HashMap<(&'a str, &'a str), Vec<&'a Request>>,
    /// What was taken so far.
    pub(super) taken: Taken,
}

/// A disruption that is judged.
struct Case<'a> {
    space: &'a Space,
    effect: &'a Effect,
    record: &'a Record,
    /// When the first request that can have caused it was received, with the revision.
    received: Duration,
    received_at: u64,
    ended_at: u64,
    /// Whether a controller deleted the pod.
    by_controller: bool,
}

impl<'a> Judge<'a> {
    /// A judge of a history.
    pub(super) fn new(history: &'a History) -> Self {
        let mut carried_out: HashMap<_, Vec<_>> = HashMap::new();
        for request in history.requests.iter().filter(|request| request.may_have_acted() && !request.dry_run)
        {
            let key = (request.namespace.as_str(), request.name.as_str());
            carried_out.entry(key).or_default().push(request);
        }
        Self { history, carried_out, taken: Taken::default() }
    }

    /// Takes a change of a pod in.
    pub(super) fn observe(&mut self, pod: &Pod, revision: u64) {
        self.taken.observe(pod, revision);
    }

    /// Judges what a request did. The world is as it was when the request ended.
    pub(super) fn request(&mut self, world: &World, request: &Request, report: &mut Report) {
        report.summary.denials += usize::from(denied(request));
        let Some(space) = world.space(&request.namespace) else { return };
        if !request.may_have_acted() || request.dry_run || exempt(request) {
            return;
        }
        for effect in space.effects(request.received_at, request.ended_at) {
            let named = request.name.is_empty() || request.name == effect.pod.meta.name;
            if !named || !can_cause(request, effect.kind) {
                continue;
            }
            // A request that always passes may have caused it, or none that was recorded.
            let causes = self.causes(&request.namespace, effect);
            if causes.iter().any(|cause| exempt(cause)) {
                continue;
            }
            report.summary.admissions += 1;
            if self.taken.has(effect) {
                continue;
            }
            let operations = causes.iter().filter_map(|cause| operation(cause)).collect();
            let words = format!("{} {}", request.user, describe(request));
            let first = causes.iter().min_by_key(|cause| cause.received_at).unwrap_or(&request);
            let start = space.between(first.received_at, first.received_at).next_back();
            let budgets = start.iter().flat_map(|state| state.budgets.iter()).map(|entry| &entry.budget);
            let known_to = budgets.filter(|budget| budget.enforced).map(|budget| budget.meta.id).collect();
            let record = Record::new(effect, operations, known_to, words);
            let case = Case {
                space,
                effect,
                record: &record,
                received: first.received,
                received_at: first.received_at,
                ended_at: request.ended_at,
                by_controller: causes.iter().any(|cause| by_controller(cause)),
            };
            self.judge(&case, request, report);
            let since = space.between(effect.revision, request.ended_at);
            let id = effect.pod.id();
            let seen = since.filter_map(|state| state.pod(id).map(|pod| (&**pod, state.revision)));
            self.taken.add(record, seen);
        }
    }

    /// The requests that can have had an effect: those under way when it happened.
    fn causes(&self, namespace: &str, effect: &Effect) -> Vec<&'a Request> {
        let of = |name| self.carried_out.get(&(namespace, name)).into_iter().flatten().copied();
        let under_way = |request: &&Request| {
            request.received_at < effect.revision
                && effect.revision <= request.ended_at
                && can_cause(request, effect.kind)
        };
        of(effect.pod.meta.name.as_str()).chain(of("")).filter(under_way).collect()
    }

    fn judge(&self, case: &Case<'_>, request: &Request, report: &mut Report) {
        let Some(start) = case.space.between(case.received_at, case.received_at).next_back() else { return };
        let own_start = case.space.between(request.received_at, request.received_at).next_back();
        let mut judged = false;
        let violation = |budget: &Budget, breach| Violation {
            at: request.ended,
            request: format!("{} {}/{}", case.record.by, request.namespace, case.effect.pod.meta.name),
            budget: format!("{} {}/{}", budget.kind, budget.meta.namespace, budget.meta.name),
            breach,
        };
        for entry in start.budgets.iter().filter(|entry| entry.budget.enforced) {
            let budget = &entry.budget;
            let still = own_start.and_then(|state| state.budget(budget.meta.id));
            if !still.is_some_and(|entry| entry.budget.enforced) || self.pardoned(budget, case) {
                continue;
            }
            let breach = self.breach(case, budget, &mut judged);
            report.violations.extend(breach.map(|breach| violation(budget, breach)));
        }
        for budget in case.not_recorded() {
            if !self.pardoned(budget, case) {
                report.violations.push(violation(budget, Breach::NotRecorded));
            }
        }
        report.summary.judged += usize::from(judged);
    }

    /// Whether the budget is not judged at the time of the request.
    fn pardoned(&self, budget: &Budget, case: &Case<'_>) -> bool {
        let of = |span: &Span| span.from <= case.effect.at && case.received <= span.to;
        self.history.pardons.iter().any(|pardon| {
            pardon.namespace == budget.meta.namespace && pardon.name == budget.meta.name && of(&pardon.span)
        })
    }

    /// Why a budget that was enforced when the request was received did not allow it.
    fn breach(&self, case: &Case<'_>, budget: &Budget, judged: &mut bool) -> Option<Breach> {
        let during = || case.space.between(case.received_at, case.ended_at);
        let faulty =
            self.history.faults.iter().any(|span| span.from <= case.effect.at && case.received <= span.to);
        let update = case.effect.kind != Disruption::Removed;
        let open = |state: &Rc<State>| {
            state.ending
                || state.budget(budget.meta.id).is_none()
                || (!state.fails_closed && (update || faulty))
        };
        if during().any(open) {
            return None;
        }
        // The annotations of a PodUnavailableBudget do not change its generation.
        let from = if budget.kind == "PodUnavailableBudget" {
            case.received.saturating_sub(LAG)
        } else {
            case.received
        };
        let states: Vec<&Rc<State>> = if from < case.received {
            case.space.since(from, case.ended_at).collect()
        } else {
            during().collect()
        };
        let mut specs: Vec<&Rc<Spec>> = Vec::new();
        for entry in states.iter().filter_map(|state| state.budget(budget.meta.id)) {
            let excluded = entry.budget.configured == "NamespaceExcluded";
            let spec = entry.budget.spec.as_ref().filter(|_| !excluded)?;
            if !specs.iter().any(|known| Rc::ptr_eq(known, spec)) {
                specs.push(spec);
            }
        }
        if !specs.iter().all(|spec| Self::protects(case, spec)) {
            return None;
        }
        *judged = true;
        let mut breach = None;
        for spec in specs {
            breach = Some(self.breach_of(case, budget, spec)?);
        }
        breach
    }

    /// Whether the spec protects the pod against this.
    fn protects(case: &Case<'_>, spec: &Spec) -> bool {
        let pod = &case.effect.pod;
        if spec.observes || !case.record.concerns(spec) || (spec.kruise && pod.no_protect) {
            return false;
        }
        case.before().is_some_and(|state| covers(spec, pod, state))
    }

    fn breach_of(&self, case: &Case<'_>, budget: &Budget, spec: &Rc<Spec>) -> Option<Breach> {
        if let Some(since) = case.said_no() {
            return Some(Breach::PodSaidNo(since));
        }
        let id = budget.meta.id;
        let pod = case.effect.pod.id();
        let pardons: Vec<Span> = self.pardons(budget);
        let gone = |other: Id, state: &State| {
            let record = self.taken.out(other, id, spec, state.revision)?;
            // The claim of an update may have been overwritten while the update goes on.
            let lost =
                |span: &Span| record.in_place() && record.since() <= span.to && span.from <= case.effect.at;
            (!pardons.iter().any(lost)).then_some(record)
        };
        if case.obviously_allowed(id, spec, &|other, state| gone(other, state).is_some()) {
            return None;
        }
        // A server can have seen the pod with the labels and owners that it had then.
        let covered = |state: &Rc<State>| state.pod(pod).is_none_or(|pod| covers(spec, pod, state));
        if !case.window().all(covered) {
            return None;
        }
        let minima = Minima::of(case, id, spec);
        if !case.harms(id, spec, &minima, &|other, state| gone(other, state).is_some()) {
            return None;
        }
        let before = case.before()?;
        let unit = group_of(spec, &case.effect.pod, before).map(|group| group.name);
        let single = unit.is_none() && spec.grouping != Grouping::Pods;
        let out = |other: Id, state: &State| other == pod || gone(other, state).is_some();
        let mut healthy: Option<(usize, Duration)> = None;
        let mut desired: Option<(u32, u32, Duration)> = None;
        let mut outstanding: BTreeMap<Id, &Record> = BTreeMap::new();
        for state in case.window().rev() {
            let sample = state.sample(id, spec);
            let number = minima.healthy(&sample, unit.is_some(), |other| out(other, state));
            let wanted = if single { sample.desired_single } else { sample.desired };
            if healthy.is_none_or(|(most, _)| number > most) {
                healthy = Some((number, state.at));
            }
            if case.known(state, spec, &sample) && desired.is_none_or(|(least, ..)| wanted.low < least) {
                desired = Some((wanted.low, sample.expected.low, state.at));
            }
            for other in sample.pods.iter().chain(sample.groups.values().flat_map(|group| &group.healthy)) {
                if let Some(record) = gone(other.pod, state) {
                    outstanding.insert(other.pod, record);
                }
            }
        }
        let (healthy, healthy_at) = healthy?;
        let (mut desired, expected, desired_at) = desired?;
        if case.by_controller {
            desired = desired.min(case.wanted_by_controller(spec));
        }
        if u32::try_from(healthy).unwrap_or(u32::MAX) >= desired {
            return None;
        }
        if unit.as_deref().is_some_and(|unit| Self::goes_anyway(case, id, spec, unit)) {
            return None;
        }
        Some(Breach::TooFew(Arithmetic {
            counted: if unit.is_some() { "group" } else { "pod" },
            unit: unit.map_or_else(|| "this pod".to_owned(), |name| format!("group {name}")),
            from: case.received.saturating_sub(LAG),
            healthy,
            healthy_at,
            desired,
            expected,
            desired_at,
            outstanding: outstanding
                .into_values()
                .map(|record| (record.pod().to_owned(), record.by.clone(), record.since()))
                .collect(),
        }))
    }

    /// Whether another healthy pod of the group had a claim: then the servers count the group as down. If nothing comes of
    /// that claim, and it was free because the group was down at the time, this request takes the group alone.
    fn goes_anyway(case: &Case<'_>, budget: Id, spec: &Rc<Spec>, group: &str) -> bool {
        let own = case.effect.pod.id();
        case.undisturbed().any(|state| {
            let claims = state.budget(budget).and_then(|entry| entry.budget.held.as_ref());
            let Some(claims) = claims else { return false };
            let sample = state.sample(budget, spec);
            let group = sample.groups.get(group);
            let mut healthy = group.into_iter().flat_map(|group| &group.healthy);
            healthy.any(|other| other.pod != own && claims.contains(&other.pod))
        })
    }

    fn pardons(&self, budget: &Budget) -> Vec<Span> {
        let of = |it: &&Pardon| it.namespace == budget.meta.namespace && it.name == budget.meta.name;
        self.history.pardons.iter().filter(of).map(|pardon| pardon.span).collect()
    }
}

impl<'a> Case<'a> {
    /// Every state that a server can have seen when it decided.
    fn window(&self) -> impl DoubleEndedIterator<Item = &'a Rc<State>> {
        self.space.since(self.received.saturating_sub(LAG), self.ended_at)
    }

    /// The states from the request to the disruption.
    fn undisturbed(&self) -> impl DoubleEndedIterator<Item = &'a Rc<State>> {
        self.space.between(self.received_at, self.effect.revision.saturating_sub(1))
    }

    /// The state before the disruption.
    fn before(&self) -> Option<&'a Rc<State>> {
        self.undisturbed().next_back()
    }

    /// Whether a server that saw this state knew what says how many units there should be beside this pod's. Without
    /// that it must deny, so earlier states say nothing about what it desired. Kinds age separately: it may have seen the
    /// Deployment of this state with a later ReplicaSet.
    fn known(&self, state: &State, spec: &Spec, sample: &Sample) -> bool {
        let Some(before) = self.before() else { return true };
        let pod = &self.effect.pod;
        if spec.grouping == Grouping::Pods {
            let own = scaled_by(pod, before).map(|source| source.meta.id);
            return own.is_none_or(|own| state.sources.contains_key(&own));
        }
        let Some(group) = group_of(spec, pod, before) else { return true };
        match &group.family {
            Family::Controller(id)
            | Family::LeaderWorkerSet(id)
            | Family::PodGroup(id, _)
            | Family::Alone(id) => state.sources.contains_key(id),
            Family::Observed(_) => sample.groups.contains_key(&group.name),
            Family::Template(..) | Family::Orphaned(_) => {
                group_of(spec, pod, state).is_some_and(|then| then.family == group.family)
            }
        }
    }

    /// The budgets that were enforced when a healthy pod was disrupted, protect against it, and never had a claim for it.
    ///
    /// Servers write a claim into every such budget before they admit a request, whatever the reason why they admit it.
    /// What was admitted before the budget existed is added to it before it is enforced. So no number is needed here, and
    /// no view is too old: only what the pod is, and which budgets cover it, may be seen late.
    fn not_recorded(&self) -> Vec<&'a Budget> {
        let removed = self.effect.kind == Disruption::Removed;
        if self.by_controller || !(removed || self.effect.kind == Disruption::Updated) {
            return Vec::new();
        }
        let Some(before) = self.before() else { return Vec::new() };
        let id = self.effect.pod.id();
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
            let healthy =
                |state: &Rc<State>| state.pod(id).is_some_and(|pod| pod.healthy(true) && !pod.probe);
            let covered = |state: &Rc<State>| {
                state.pod(id).is_none_or(|pod| covers(spec, pod, state) && !(spec.kruise && pod.no_protect))
            };
            !spec.observes
                && budget.configured != "NamespaceExcluded"
                && self.record.concerns(spec)
                && under_way.iter().all(|state| healthy(state) && !held(state))
                && self.window().all(covered)
        };
        before.budgets.iter().filter(lacks).map(|entry| &*entry.budget).collect()
    }

    /// Since when the pod says no, if it did in every state that a server can have seen.
    fn said_no(&self) -> Option<Duration> {
        if self.by_controller {
            return None;
        }
        let from = self.received.saturating_sub(LAG);
        let mut states = self.space.since(from, self.effect.revision.saturating_sub(1));
        let no = |state: &Rc<State>| state.pod(self.effect.pod.id()).is_some_and(|pod| pod.says_no());
        let first = states.next()?;
        (first.at <= from && self.received >= LAG && no(first) && states.all(no)).then_some(first.at)
    }

    /// Whether the last state before the disruption allowed it by itself. Mostly it did, and this is cheap.
    fn obviously_allowed(&self, budget: Id, spec: &Rc<Spec>, gone: &dyn Fn(Id, &State) -> bool) -> bool {
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
    fn harms(&self, budget: Id, spec: &Rc<Spec>, minima: &Minima, gone: &dyn Fn(Id, &State) -> bool) -> bool {
        let id = self.effect.pod.id();
        self.undisturbed().filter_map(|state| state.pod(id).map(|pod| (pod, state))).all(|(pod, state)| {
            if !pod.healthy(spec.kruise) || gone(id, state) {
                return false;
            }
            let Some(of) = group_of(spec, pod, state) else {
                // Under budgetScope Workload a pod without a group counts as unhealthy.
                return spec.grouping != Grouping::Workload;
            };
            if surplus(pod, state) {
                return false;
            }
            let sample = state.sample(budget, spec);
            let Some(group) = sample.groups.get(&of.name) else { return false };
            let (least, most) = minima.of_group(&of.name);
            group.whole(most, |other| gone(other, state))
                && !group.whole(least, |other| other == id || gone(other, state))
        })
    }

    /// The most that a controller needs to leave: what its workload wanted at least, at some instant of the window.
    fn wanted_by_controller(&self, spec: &Spec) -> u32 {
        let pod = &self.effect.pod;
        let least = |state: &Rc<State>| {
            let set = if spec.grouping == Grouping::Pods { None } else { leader_worker_set(pod, state) };
            let Some(source) = set.or_else(|| scaled_by(pod, state)) else { return 0 };
            if source.meta.deleting || source.recreates {
                return 0;
            }
            let wants = source.wants.unwrap_or(0);
            let ours = |other: &&Rc<Pod>| other.active() && other.meta.controller() == pod.meta.controller();
            let surplus = state.pods.iter().filter(ours).count() > wants as usize;
            // Pods say nothing about groups: a controller of pods that scales down ends its group.
            if spec.grouping != Grouping::Pods && set.is_none() && surplus { 0 } else { wants }
        };
        self.window().map(least).min().unwrap_or(0)
    }
}

/// The fewest and the most pods that each group needed in a window: the objects that say so age by themselves.
struct Minima {
    groups: BTreeMap<String, (usize, usize)>,
}

impl Minima {
    fn of(case: &Case<'_>, budget: Id, spec: &Rc<Spec>) -> Self {
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
    fn healthy(&self, sample: &Sample, groups: bool, out: impl Fn(Id) -> bool) -> usize {
        if !groups {
            return sample.pods.iter().filter(|healthy| !out(healthy.pod)).count();
        }
        let whole = |(name, group): &(&String, &Group)| group.whole(self.of_group(name).0, &out);
        sample.groups.iter().filter(whole).count()
    }
}
