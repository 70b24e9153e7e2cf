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
    /// Groups that have completed, with what wants them, and whether it is sure: no pod was ever lost.
    complete: BTreeMap<String, (ExpectedFrom, bool)>,
    /// Groups that lost pods before these had succeeded: how many of them were not replaced.
    losses: BTreeMap<String, u32>,
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
            && is_lost(before) == is_lost(after)
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
            self.sources.retain(|other, seen| seen.gone.is_none() || !other.is_replaced_by(expected_from));
        }
        let moved = old != new;
        let ended = before.is_some_and(|pod| pod.completed) != after.is_some_and(|pod| pod.completed);
        let lost = before.is_some_and(is_lost) != after.is_some_and(is_lost);
        if !moved && !ended && !lost {
            return;
        }
        self.count_losses(before.zip(old.as_ref()), after.zip(new.as_ref()));
        let left: Vec<(&Pod, Unit)> =
            state.pods.iter().filter_map(|pod| unit(pod).map(|unit| (&**pod, unit))).collect();
        for (group, expected_from) in [old, new].into_iter().flatten() {
            if !left.iter().any(|(_, (_, other))| *other == expected_from)
                && let Some(seen) = self.sources.get_mut(&expected_from)
            {
                seen.gone.get_or_insert(state.at);
                if left.iter().any(|(_, (_, other))| expected_from.is_replaced_by(other)) {
                    self.sources.remove(&expected_from);
                }
            }
            let Some(group) = group else { continue };
            let mut pods = left.iter().filter(|(_, (name, _))| name.as_ref() == Some(&group)).peekable();
            if pods.peek().is_none() {
                // What comes next under this name is another group.
                self.losses.remove(&group);
                continue;
            }
            let lost = self.losses.get(&group);
            if pods.all(|(pod, _)| pod.completed) && lost.is_none_or(|lost| *lost == 0) {
                let surely = lost.is_none();
                self.complete.insert(group, (expected_from, surely));
            } else {
                self.complete.remove(&group);
            }
        }
    }

    /// Counts a pod that a group loses before it has succeeded, or one that replaces such a pod.
    fn count_losses(&mut self, before: Option<(&Pod, &Unit)>, after: Option<(&Pod, &Unit)>) {
        let group = |side: Option<(&Pod, &Unit)>| side.and_then(|(_, (group, _))| group.clone());
        let stays = group(before) == group(after);
        if let (Some((pod, _)), Some(of)) = (before, group(before))
            && !is_lost(pod)
            && !pod.completed
            && (!stays || after.is_some_and(|(pod, _)| is_lost(pod)))
        {
            *self.losses.entry(of).or_default() += 1;
        }
        if let (Some((pod, _)), Some(of)) = (after, group(after))
            && !stays
            && !is_lost(pod)
            && let Some(lost) = self.losses.get_mut(&of)
        {
            *lost = lost.saturating_sub(1);
        }
    }

    /// Whether a group has completed.
    pub(super) fn completed(&self, group: &str) -> bool {
        self.complete.contains_key(group)
    }

    /// How many groups of a source have completed; with `surely`, without those that have lost pods and replaced them.
    pub(super) fn completed_of(&self, expected_from: &ExpectedFrom, surely: bool) -> u32 {
        self.count_complete(surely, |other| other == expected_from)
    }

    /// How many groups may have completed.
    pub(super) fn all_completed(&self) -> u32 {
        self.count_complete(false, |_| true)
    }

    fn count_complete(&self, surely: bool, of: impl Fn(&ExpectedFrom) -> bool) -> u32 {
        let counts = |(other, sure): &&(ExpectedFrom, bool)| of(other) && (*sure || !surely);
        u32::try_from(self.complete.values().filter(counts).count()).unwrap_or(u32::MAX)
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
            let recent = !matches!(expected_from, ExpectedFrom::Observed(..)) || at < gone + until;
            long && recent
        };
        self.sources.iter().filter(known).map(|(expected_from, _)| expected_from.clone()).collect()
    }
}

/// The group of a pod, if it has one, and what says how many units there should be.
type Unit = (Option<String>, ExpectedFrom);

/// Whether a pod will never succeed.
fn is_lost(pod: &Pod) -> bool {
    !pod.completed && !pod.active()
}

/// The unit of a pod, if the budget covers the pod.
fn unit(spec: &Spec, pod: &Pod, state: &State) -> Option<Unit> {
    if !covers(spec, pod, state) {
        return None;
    }
    if spec.grouping == Grouping::Pods {
        return scaled_by(pod, state).map(|source| (None, ExpectedFrom::Controller(source.meta.id)));
    }
    group_of(spec, pod, state).map(|group| (Some(group.name), group.expected_from))
}
