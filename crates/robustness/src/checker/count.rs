//! How many units are healthy, and how many are desired, in one state.
//!
//! Where the rules leave room, desired has two bounds: the low one judges admissions, the high one judges denials.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::coverage::{ExpectedFrom, covers, group_of, scaled_by};
use super::decode::{Amount, Budget, Detail, Grouping, Id, LWS_GROUP, Source, Spec};
use super::memory::Memory;
use super::states::State;

/// The counts of a budget in one state.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Healthy pods that are units by themselves.
    pub(super) pods: Vec<Healthy>,
    /// Groups with pods.
    pub(super) groups: BTreeMap<String, Group>,
    /// How many groups each source surely wants, unless the budget states the number of all.
    pub(super) wanted: BTreeMap<ExpectedFrom, u32>,
    /// Expected units: pods, or groups if the budget counts groups.
    pub(super) expected: Bounds,
    /// Desired units.
    pub(super) desired: Bounds,
    /// Desired pods among those without a group, under a budget that counts groups.
    pub(super) desired_single: Bounds,
    /// Whether something is unknown, so that servers may deny.
    pub(super) unsure: bool,
}

/// A healthy pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Healthy {
    pub(super) pod: Id,
    /// Whether servers must count it: the result of a probe may be stale.
    pub(super) surely: bool,
}

/// A group of pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) healthy: Vec<Healthy>,
    /// Pods that are not finished, those that are being deleted among them.
    pub(super) existing: usize,
    /// How many healthy pods it needs.
    pub(super) minimum: usize,
    /// Whether it needs all its existing pods.
    pub(super) needs_all: bool,
    /// Whether it has completed.
    pub(super) complete: bool,
    /// What wants it.
    pub(super) source: Option<ExpectedFrom>,
}

/// The smallest and the largest number that the rules can mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) low: u32,
    pub(super) high: u32,
}

impl Group {
    /// Whether it is whole without the pods that `out` names, if it needs `minimum` pods.
    pub(super) fn whole(&self, minimum: usize, out: impl Fn(Id) -> bool) -> bool {
        let minimum = if self.needs_all { minimum.max(self.existing) } else { minimum };
        !self.complete && self.healthy.iter().filter(|healthy| !out(healthy.pod)).count() >= minimum
    }
}

/// Counts the units of a budget. `budget` is the budget in this state, if it existed then.
pub(super) fn count(state: &State, spec: &Spec, memory: &Memory, budget: Option<&Budget>) -> Sample {
    let mut sample = Sample::default();
    let mut sources = BTreeSet::new();
    let mut single = 0;
    for pod in state.pods.iter().filter(|pod| covers(spec, pod, state)) {
        let healthy = pod.healthy(spec.kruise).then(|| Healthy { pod: pod.id(), surely: !pod.probe });
        if spec.grouping == Grouping::Pods {
            sample.pods.extend(healthy);
            match scaled_by(pod, state) {
                Some(source) => sources.extend([ExpectedFrom::Controller(source.meta.id)]),
                None => sample.unsure = true,
            }
            continue;
        }
        let Some(of) = group_of(spec, pod, state) else {
            sample.unsure = true;
            if spec.grouping != Grouping::Workload {
                sample.pods.extend(healthy);
                single += u32::from(!pod.finished());
            }
            continue;
        };
        let group = sample.groups.entry(of.name.clone()).or_insert_with(|| Group {
            minimum: usize::MAX,
            needs_all: of.needs_all,
            complete: memory.completed(&of.name),
            source: Some(of.expected_from.clone()),
            ..Group::default()
        });
        group.healthy.extend(healthy);
        group.existing += usize::from(!pod.finished());
        group.minimum = group.minimum.min(of.minimum.unwrap_or(usize::MAX));
        sample.unsure |= of.minimum.is_none() || matches!(of.expected_from, ExpectedFrom::Orphaned(_));
        sources.insert(of.expected_from);
    }
    if spec.expected.is_none() {
        let wanted = |source: &ExpectedFrom| (source.clone(), wants(state, memory, source, true));
        sample.wanted = sources.iter().map(wanted).collect();
    }
    let by_number = spec.grouping == Grouping::Pods && spec.max.is_none();
    sample.expected = match (spec.expected, spec.min) {
        (Some(number), _) => Bounds { low: number, high: number },
        (None, Some(Amount::Units(_))) if by_number => {
            // Such a budget needs no scales: it expects the pods that exist.
            sample.unsure = false;
            let number = state.pods.iter().filter(|pod| covers(spec, pod, state)).count();
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            Bounds { low: number, high: number }
        }
        _ => expected(state, spec, memory, budget, &sources, &mut sample.unsure),
    };
    sample.desired = desired(spec, sample.expected);
    sample.desired_single = desired(spec, Bounds { low: single.min(sample.expected.low), high: single });
    sample.desired_single.low = sample.desired_single.low.min(single);
    sample
}

/// Units that must stay healthy: the larger of what `minAvailable` and `maxUnavailable` require.
fn desired(spec: &Spec, expected: Bounds) -> Bounds {
    let of = |expected: u32| {
        let min = spec.min.map_or(0, |min| min.of(expected));
        let max = spec.max.map_or(0, |max| expected.saturating_sub(max.of(expected)));
        min.max(max)
    };
    Bounds { low: of(expected.low), high: of(expected.high) }
}

/// Expected units: what all sources want that have pods, or whose pods are only gone.
fn expected(
    state: &State,
    spec: &Spec,
    memory: &Memory,
    budget: Option<&Budget>,
    present: &BTreeSet<ExpectedFrom>,
    unsure: &mut bool,
) -> Bounds {
    let by_pods = spec.grouping == Grouping::Pods;
    if let Some(target) = &spec.target
        && (by_pods || target.group == LWS_GROUP)
    {
        let found = state.sources.values().find(|it| it.is(&target.group, &target.kind, &target.name));
        *unsure |= found.is_none_or(|it| it.wants.is_none() || it.meta.deleting)
            || (by_pods && target.group == LWS_GROUP);
        let complete = found.map_or(0, |it| memory.completed_of(&ExpectedFrom::LeaderWorkerSet(it.meta.id)));
        let number = |surely| found.map_or(0, |it| wanted(it, surely)).saturating_sub(complete);
        return Bounds { low: number(true), high: number(false) };
    }
    let sum = |surely: bool| {
        let mut sources = present.clone();
        if spec.target.is_none() {
            sources.extend(templates(state, spec, by_pods));
        }
        sources.extend(memory.remembered(state.at, budget, surely).into_iter().filter(|source| {
            // The template of a controller says whether its pods are covered.
            !matches!(source, ExpectedFrom::Controller(id) | ExpectedFrom::LeaderWorkerSet(id)
                if state.sources.get(id).is_some_and(|source| !source.templates.is_empty()))
        }));
        sources.iter().map(|source| wants(state, memory, source, surely)).sum()
    };
    let unknown = |id: &Id| state.sources.get(id).is_none_or(|it| it.wants.is_none());
    *unsure |= present.iter().any(|source| matches!(source, ExpectedFrom::Controller(id) if unknown(id)));
    Bounds { low: sum(true), high: sum(false) }
}

/// The sources whose pods the budget would cover.
fn templates(state: &State, spec: &Spec, by_pods: bool) -> Vec<ExpectedFrom> {
    let leads = |source: &&Rc<Source>| {
        let owner = source.meta.controller();
        !(source.kind == "ReplicaSet" && owner.is_some_and(|owner| owner.kind == "Deployment"))
    };
    let matches = |source: &&Rc<Source>| source.templates.iter().any(|labels| spec.selector.matches(labels));
    let lws_index = matches!(&spec.grouping, Grouping::Label(key) if key.ends_with("/group-index"));
    let expected_from = |source: &Rc<Source>| match source.detail {
        Detail::Controller if by_pods => Some(ExpectedFrom::Controller(source.meta.id)),
        Detail::LeaderWorkerSet { .. } if lws_index => Some(ExpectedFrom::LeaderWorkerSet(source.meta.id)),
        _ => None,
    };
    state.sources.values().filter(leads).filter(matches).filter_map(expected_from).collect()
}

/// What a source wants. One that is being deleted surely wants nothing.
fn wanted(source: &Source, surely: bool) -> u32 {
    if surely && source.meta.deleting { 0 } else { source.wants.unwrap_or(0) }
}

/// The units of a source that are expected. Complete ones are not.
fn wants(state: &State, memory: &Memory, expected_from: &ExpectedFrom, surely: bool) -> u32 {
    let source = |id: &Id| state.sources.get(id).filter(|source| !surely || !source.meta.deleting);
    let all = match expected_from {
        ExpectedFrom::Controller(id) | ExpectedFrom::LeaderWorkerSet(id) => {
            source(id).map_or(0, |it| wanted(it, surely))
        }
        ExpectedFrom::PodGroup(id, name) => source(id).map_or(0, |workload| match &workload.detail {
            Detail::Workload(parts) => parts
                .iter()
                .find(|(part, ..)| part == name)
                .and_then(|(_, replicas, _)| *replicas)
                .unwrap_or(0),
            _ => 0,
        }),
        ExpectedFrom::Template(workload, template) => pod_groups(state, workload, template, surely),
        ExpectedFrom::Alone(id) => u32::from(source(id).is_some()),
        ExpectedFrom::Observed(_) => 1,
        ExpectedFrom::Orphaned(_) => u32::from(!surely),
    };
    all.saturating_sub(memory.completed_of(expected_from))
}

/// The number of PodGroups of a template; not more than a LeaderWorkerSet that owns them wants.
fn pod_groups(state: &State, workload: &str, template: &str, surely: bool) -> u32 {
    let of_template = |source: &&Rc<Source>| {
        matches!(&source.detail, Detail::PodGroup(group)
            if group.template.as_ref().is_some_and(|(of, name)| of == workload && name == template))
            && !(surely && source.meta.deleting)
    };
    let groups: Vec<&Rc<Source>> = state.sources.values().filter(of_template).collect();
    let owner = groups.first().and_then(|group| state.sources.get(&group.meta.controller()?.id));
    let number = u32::try_from(groups.len()).unwrap_or(u32::MAX);
    match owner.filter(|owner| matches!(owner.detail, Detail::LeaderWorkerSet { .. })) {
        Some(set) if surely => number.min(wanted(set, surely)),
        Some(set) => number.max(wanted(set, surely)),
        None if surely && owner.is_some_and(|owner| owner.wants == Some(0)) => 0,
        None => number,
    }
}
