//! What stays expected after its pods are gone.
//!
//! A memory is a part of each state of a namespace, so that a past instant is judged by what was known then. It changes
//! only when a unit appears, vanishes or completes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::coverage::{ExpectedFrom, covers, group_of, scaled_by};
use super::decode::{Budget, Grouping, Pod, Spec};
use super::states::State;

/// How old the view of a server may be.
pub(super) const LAG: Duration = Duration::from_secs(90);

/// How long an observed group stays expected.
const OBSERVED: Duration = Duration::from_secs(15 * 60);

/// What a budget has seen of the units that it covers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Memory {
    sources: BTreeMap<ExpectedFrom, Seen>,
    complete: BTreeMap<String, ExpectedFrom>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    first: Duration,
    gone: Option<Duration>,
}

impl Memory {
    /// The memory of a budget that has just been created, or covers other pods than before.
    pub(super) fn new(spec: &Spec, state: &State) -> Self {
        let mut memory = Self::default();
        for pod in state.pods.iter() {
            memory.update(spec, state, None, Some(pod));
        }
        memory
    }

    /// Whether a change of a pod changes nothing here. Most changes do not, and this is cheaper than a copy.
    pub(super) fn ignores(
        &self,
        spec: &Spec,
        state: &State,
        before: Option<&Pod>,
        after: Option<&Pod>,
    ) -> bool {
        let (Some(before), Some(after)) = (before, after) else { return false };
        let old = unit(spec, before, state);
        let seen = |(_, expected_from): &(_, ExpectedFrom)| {
            self.sources.get(expected_from).is_some_and(|it| it.gone.is_none())
        };
        before.completed == after.completed
            && old == unit(spec, after, state)
            && old.as_ref().is_none_or(seen)
    }

    /// Takes a change of a pod in. `state` is the state after it.
    pub(super) fn update(&mut self, spec: &Spec, state: &State, before: Option<&Pod>, after: Option<&Pod>) {
        let unit = |pod: &Pod| unit(spec, pod, state);
        let old = before.and_then(unit);
        let new = after.and_then(unit);
        if let Some((_, expected_from)) = &new {
            let seen =
                self.sources.entry(expected_from.clone()).or_insert(Seen { first: state.at, gone: None });
            seen.gone = None;
        }
        let moved = old != new;
        let ended = before.is_some_and(|pod| pod.completed) != after.is_some_and(|pod| pod.completed);
        if !moved && !ended {
            return;
        }
        let left: Vec<(&Pod, (Option<String>, ExpectedFrom))> =
            state.pods.iter().filter_map(|pod| unit(pod).map(|unit| (&**pod, unit))).collect();
        for (group, expected_from) in [old, new].into_iter().flatten() {
            if !left.iter().any(|(_, (_, other))| *other == expected_from)
                && let Some(seen) = self.sources.get_mut(&expected_from)
            {
                seen.gone.get_or_insert(state.at);
            }
            let Some(group) = group else { continue };
            let mut pods = left.iter().filter(|(_, (name, _))| name.as_ref() == Some(&group)).peekable();
            if pods.peek().is_none() {
                continue;
            }
            if pods.all(|(pod, _)| pod.completed) {
                self.complete.insert(group, expected_from);
            } else {
                self.complete.remove(&group);
            }
        }
    }

    /// Whether a group has completed.
    pub(super) fn completed(&self, group: &str) -> bool {
        self.complete.contains_key(group)
    }

    /// How many groups of a source have completed.
    pub(super) fn completed_of(&self, expected_from: &ExpectedFrom) -> u32 {
        let count = self.complete.values().filter(|other| *other == expected_from).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The sources without pods that servers surely remember at this time, or may remember.
    ///
    /// Surely: the status lists them, or they had pods for longer than a view may be old.
    pub(super) fn remembered(
        &self,
        at: Duration,
        budget: Option<&Budget>,
        surely: bool,
    ) -> BTreeSet<ExpectedFrom> {
        let listed = |expected_from: &ExpectedFrom| {
            budget.is_some_and(|budget| {
                budget.sources.iter().any(|(id, part)| match expected_from {
                    ExpectedFrom::Controller(own)
                    | ExpectedFrom::LeaderWorkerSet(own)
                    | ExpectedFrom::Alone(own) => own == id,
                    ExpectedFrom::PodGroup(own, name) => own == id && name == part,
                    _ => false,
                })
            })
        };
        let known = |(expected_from, seen): &(&ExpectedFrom, &Seen)| {
            let Some(gone) = seen.gone else { return false };
            let long = !surely || gone.saturating_sub(seen.first) >= LAG || listed(expected_from);
            let until = if surely { OBSERVED.saturating_sub(LAG) } else { OBSERVED + LAG };
            let recent = !matches!(expected_from, ExpectedFrom::Observed(_)) || at < gone + until;
            long && recent
        };
        self.sources.iter().filter(known).map(|(expected_from, _)| expected_from.clone()).collect()
    }
}

/// The group of a pod, and what says how many units there should be, if the budget covers the pod.
fn unit(spec: &Spec, pod: &Pod, state: &State) -> Option<(Option<String>, ExpectedFrom)> {
    if !covers(spec, pod, state) {
        return None;
    }
    if spec.grouping == Grouping::Pods {
        return scaled_by(pod, state).map(|source| (None, ExpectedFrom::Controller(source.meta.id)));
    }
    group_of(spec, pod, state).map(|group| (Some(group.name), group.expected_from))
}
