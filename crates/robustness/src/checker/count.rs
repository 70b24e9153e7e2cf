//! How many units are healthy, and how many are desired, in one state.
//!
//! Where the rules leave room, desired has two bounds: the low one judges admissions, the high one judges denials.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::coverage::{ExpectedFrom, covers, group_of, scaled_by};
use super::decode::{Amount, Budget, Detail, Grouping, Id, LWS_GROUP, Pod, Source, Spec};
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
    /// Whether pods without a group are expected.
    pub(super) expects_single: bool,
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
    let mut singles = Singles::default();
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
        let of = group_of(spec, pod, state);
        singles.add(pod, of.is_some(), state);
        let Some(of) = of else {
            if spec.grouping == Grouping::Workload {
                sample.unsure = true;
            } else {
                sample.pods.extend(healthy);
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
        (Some(number), _) => {
            // Complete groups are not expected, but those that exist and are not complete are.
            let regular = sample.groups.values().filter(|group| !group.complete).count();
            let regular = u32::try_from(regular).unwrap_or(u32::MAX).min(number);
            let low = number.saturating_sub(memory.all_completed()).max(regular);
            Bounds { low, high: number }
        }
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
    let expected = singles.expected(spec, state, &mut sample.unsure);
    sample.expects_single = expected.low > 0;
    sample.desired_single = desired(spec, expected);
    sample
}

/// The pods without a group under a budget that counts groups.
#[derive(Default)]
struct Singles {
    /// By what says how many pods there should be, if that is known.
    by_source: BTreeMap<Option<Id>, Share>,
}

/// The pods of one controller.
#[derive(Default)]
struct Share {
    /// Pods without a group that have not ended, and those of them that are not being deleted.
    existing: u32,
    active: u32,
    /// Pods in groups, and those of them that have not ended.
    seated: u32,
    unfinished: u32,
}

impl Singles {
    fn add(&mut self, pod: &Pod, has_group: bool, state: &State) {
        let source = scaled_by(pod, state).map(|source| source.meta.id);
        let share = self.by_source.entry(source).or_default();
        if has_group {
            share.seated += 1;
            share.unfinished += u32::from(!pod.finished());
        } else {
            share.existing += u32::from(!pod.finished());
            share.active += u32::from(pod.active());
        }
    }

    /// How many of them are expected: those that exist, or more if their controller wants more. A budget that states the
    /// number of those that must stay needs no scales.
    fn expected(&self, spec: &Spec, state: &State, unsure: &mut bool) -> Bounds {
        let by_scale = spec.max.is_some() || !matches!(spec.min, Some(Amount::Units(_)));
        let mut expected = Bounds::default();
        let mut alone = 0;
        for (source, share) in self.by_source.iter().filter(|(_, share)| share.existing > 0) {
            let source = source.and_then(|id| state.sources.get(&id));
            let wants = source.filter(|source| !source.meta.deleting).and_then(|source| source.wants);
            *unsure |= by_scale && wants.is_none();
            let wants = wants.filter(|_| by_scale).unwrap_or(0);
            if by_scale && source.is_none() {
                // Where others state how many they want, such a pod stands in for one of them.
                alone += share.existing;
                continue;
            }
            // A pod of a controller may be on its way out because the controller wants fewer.
            expected.low += share.active.max(wants.saturating_sub(share.seated));
            expected.high += share.existing.max(wants.saturating_sub(share.unfinished));
        }
        if expected.low == 0 {
            // Nothing may go then.
            expected.low = alone;
        }
        expected.high = expected.high.max(expected.low);
        expected
    }
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
        let complete = |surely: bool| {
            found.map_or(0, |it| memory.completed_of(&ExpectedFrom::LeaderWorkerSet(it.meta.id), !surely))
        };
        let number = |surely| found.map_or(0, |it| wanted(it, surely)).saturating_sub(complete(surely));
        return Bounds { low: number(true), high: number(false) };
    }
    let sum = |surely: bool| {
        let mut sources = present.clone();
        if spec.target.is_none() {
            sources.extend(templates(state, spec, by_pods, surely));
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

/// The sources whose pods the budget would cover. Servers surely know only those of the kinds that they watch.
fn templates(state: &State, spec: &Spec, by_pods: bool, surely: bool) -> Vec<ExpectedFrom> {
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
    let known = |source: &&Rc<Source>| !surely || is_watched(source, state);
    state.sources.values().filter(leads).filter(matches).filter(known).filter_map(expected_from).collect()
}

/// Whether servers watch the kind of a source: always, or because a pod or a budget of the namespace names it.
fn is_watched(source: &Source, state: &State) -> bool {
    let same = |other: &Source| other.group == source.group && other.kind == source.kind;
    let is_named = || {
        let owners = state.pods.iter().filter_map(|pod| pod.meta.controller());
        let mut remembered = state.budgets.iter().flat_map(|entry| &entry.budget.sources);
        owners.into_iter().any(|owner| owner.group == source.group && owner.kind == source.kind)
            || remembered.any(|(id, _)| state.sources.get(id).is_some_and(|other| same(other)))
    };
    matches!(source.group.as_str(), "apps" | LWS_GROUP) || is_named()
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
        ExpectedFrom::Observed(..) => 1,
        ExpectedFrom::Orphaned(_) => u32::from(!surely),
    };
    all.saturating_sub(memory.completed_of(expected_from, !surely))
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
