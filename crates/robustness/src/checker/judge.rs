//! Admissions: whether every budget must have allowed them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::case::{Case, Minima};
use super::coverage::group_of;
use super::decode::{Budget, Disruption, Grouping, Id, Spec};
use super::memory::LAG;
use super::report::{Arithmetic, Breach, Report, Violation};
use super::states::{ClusterHistory, State};
use super::taken::{Record, Taken};
use crate::history::{History, Pardon, Request, Span};

/// Judges admissions in the order in which they ended.
pub(super) struct Judge<'a> {
    history: &'a History,
    taken: &'a Taken,
}

impl<'a> Judge<'a> {
    /// A judge of a history, with all disruptions that are in it.
    pub(super) fn new(history: &'a History, taken: &'a Taken) -> Self {
        Self { history, taken }
    }

    /// Judges a disruption that a request caused. The cluster is as it was when the request ended.
    pub(super) fn disruption(
        &self,
        cluster: &ClusterHistory,
        request: &Request,
        record: &Record,
        report: &mut Report,
    ) {
        let Some(namespace) = cluster.namespace(&request.namespace) else { return };
        let case = Case {
            namespace,
            trust: cluster.trust(),
            effect: record.effect(),
            record,
            ended_at: request.ended_at,
        };
        self.judge(&case, request, report);
    }

    fn judge(&self, case: &Case<'_>, request: &Request, report: &mut Report) {
        let Some(start) =
            case.namespace.between(case.record.received_at, case.record.received_at).next_back()
        else {
            return;
        };
        let own_start = case.namespace.between(request.received_at, request.received_at).next_back();
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
        let of = |span: &Span| span.from <= case.effect.at && case.record.received <= span.to;
        self.history.pardons.iter().any(|pardon| {
            pardon.namespace == budget.meta.namespace && pardon.name == budget.meta.name && of(&pardon.span)
        })
    }

    /// Why a budget that was enforced when the request was received did not allow it.
    fn breach(&self, case: &Case<'_>, budget: &Budget, judged: &mut bool) -> Option<Breach> {
        let during = || case.namespace.between(case.record.received_at, case.ended_at);
        let faulty = self
            .history
            .faults
            .iter()
            .any(|span| span.from <= case.effect.at && case.record.received <= span.to);
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
            case.record.received.saturating_sub(LAG)
        } else {
            case.record.received
        };
        let states: Vec<&Rc<State>> = if from < case.record.received {
            case.namespace.since(from, case.ended_at).collect()
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
        case.before().is_some_and(|state| case.reaches(spec, state))
    }

    fn breach_of(&self, case: &Case<'_>, budget: &Budget, spec: &Rc<Spec>) -> Option<Breach> {
        if let Some(refused) = case.refused() {
            return Some(refused);
        }
        let id = budget.meta.id;
        let pod = case.effect.pod.id();
        let pardons: Vec<Span> = self.pardons(budget);
        let gone = |other: Id, state: &State| {
            let judged = (case.record, case.ended_at);
            let record = self.taken.out(other, (id, spec), state.revision, judged)?;
            // The claim of an update may have been overwritten while the update goes on.
            let lost =
                |span: &Span| record.in_place() && record.since() <= span.to && span.from <= case.effect.at;
            (!pardons.iter().any(lost)).then_some(record)
        };
        let doubted = |other: Id, state: &State| state.pod(other).is_some_and(|pod| case.doubts(pod));
        let absent = |other: Id, state: &State| gone(other, state).is_some() || doubted(other, state);
        if case.obviously_allowed(id, spec, &absent) {
            return None;
        }
        if !case.window().all(|state| case.reaches(spec, state)) {
            return None;
        }
        let minima = Minima::of(case, id, spec);
        if !case.harms(id, spec, &minima, &absent) {
            return None;
        }
        let before = case.before()?;
        let unit = group_of(spec, &case.effect.pod, before).map(|group| group.name);
        let single = unit.is_none() && spec.grouping != Grouping::Pods;
        let out = |other: Id, state: &State| other == pod || absent(other, state);
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
        if case.record.by_controller {
            desired = desired.min(case.wanted_by_controller(spec, &absent));
        }
        if u32::try_from(healthy).unwrap_or(u32::MAX) >= desired {
            return None;
        }
        Some(Breach::TooFew(Arithmetic {
            counted: if unit.is_some() { "group" } else { "pod" },
            unit: unit.map_or_else(|| "this pod".to_owned(), |name| format!("group {name}")),
            from: case.record.received.saturating_sub(LAG),
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

    fn pardons(&self, budget: &Budget) -> Vec<Span> {
        let of = |it: &&Pardon| it.namespace == budget.meta.namespace && it.name == budget.meta.name;
        self.history.pardons.iter().filter(of).map(|pardon| pardon.span).collect()
    }
}
