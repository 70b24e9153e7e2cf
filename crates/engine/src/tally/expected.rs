//! The numbers of a budget: current, expected, wanted and allowed units.

use super::Tally;
use crate::basics::{Quantity, Text};
use crate::cluster_state::ClusterState;
use crate::decision::{Noun, Numbers};
use crate::facts::{Rules, Units};
use crate::sources;
use crate::units::{self, ExpectedFrom};

impl Tally {
    /// The numbers of the budget in its units; in pods, if it counts pods.
    pub(crate) fn numbers(&self, rules: &Rules) -> Numbers {
        match rules.units {
            Units::Pods => numbers(rules, self.pods_healthy, self.pods_expected(rules)),
            _ => numbers(rules, self.groups_current, self.groups_expected),
        }
    }

    /// The numbers of the pods that have no group.
    pub(crate) fn single_numbers(&self, rules: &Rules) -> Numbers {
        let expected = if needs_scale(rules) { self.scales.singles_expected() } else { self.singles };
        numbers(rules, self.singles_healthy, expected)
    }

    /// The numbers that the status shows, and what they count: those of the groups or, if no group is expected, those
    /// of the pods that have no group.
    pub(crate) fn shown_numbers(&self, rules: &Rules) -> (Noun, Numbers) {
        match rules.units {
            Units::Pods => (Noun::Pod, self.numbers(rules)),
            _ if self.groups_expected == 0 && self.singles > 0 => (Noun::Pod, self.single_numbers(rules)),
            _ => (Noun::Group, self.numbers(rules)),
        }
    }

    /// How many single pods are wanted from now on.
    pub(crate) fn singles_wanted(&self) -> u32 {
        self.scales.singles_wanted().saturating_add(self.unmanaged_working)
    }

    /// How many units are wanted from now on: those of the workloads, pods without a controller also while they are not
    /// healthy, and groups that are whole with such pods alone. `None` if the budget counts pods and none has a controller.
    pub(crate) fn wanted(&self, rules: &Rules, namespace: &Text, cluster: &ClusterState) -> Option<u32> {
        if matches!(rules.units, Units::Pods) {
            let wanted = || self.scales.wanted().saturating_add(self.unmanaged_working);
            return (!self.scales.is_empty()).then(wanted);
        }
        let by_pods = |source: &ExpectedFrom| match source {
            ExpectedFrom::Observed => true,
            // No object states how many of them are expected, so only the existing ones count.
            ExpectedFrom::Lone(_) => {
                self.sources.contains_key(source)
                    || self.source_tallies.get(source).is_some_and(|expected_from| expected_from.units > 0)
            }
            _ => false,
        };
        let wanted = |source: &ExpectedFrom| match source {
            ending if sources::is_ending(namespace, ending, cluster) => 0,
            known => units::expected_number(rules, namespace, known, cluster).unwrap_or(u32::MAX),
        };
        let sum = |sources: &mut dyn Iterator<Item = &ExpectedFrom>| {
            let (seen, known): (Vec<&ExpectedFrom>, Vec<&ExpectedFrom>) =
                sources.partition(|source| by_pods(source));
            // The number of groups that can be whole with the wanted pods.
            let whole = self.scales.wanted() / units::required_minimum(rules).unwrap_or(1).max(1);
            let seen = if seen.is_empty() { 0 } else { whole.saturating_add(self.groups_whole_unmanaged) };
            known.into_iter().map(wanted).fold(seen, |sum, n| sum.saturating_add(n))
        };
        let sum = match rules.expected {
            Some(_) => {
                let without_pods = self.kept_beneath(rules, namespace, cluster);
                sum(&mut self.sources.keys().chain(&without_pods))
            }
            None => sum(&mut self.source_tallies.keys()),
        };
        Some(sum)
    }

    /// The number of whole units: at most the expected number or, with `all`, all of them. So many pods of `unit` that
    /// are held count as healthy.
    pub(crate) fn current(&self, unit: u32, held: u32, all: bool) -> u32 {
        let unit = &self.units[unit as usize];
        let reaches = |min| unit.healthy < min && min <= unit.healthy + held;
        let crosses = !unit.is_complete() && unit.min_count.is_some_and(reaches);
        if all {
            return self.groups_whole + u32::from(crosses);
        }
        let room = self
            .source_tallies
            .get(&unit.expected_from)
            .is_some_and(|f| f.whole < self.size_of(&unit.expected_from, f));
        self.groups_current + u32::from(crosses && room)
    }

    /// Whether the numbers depend on scales: `Some(true)` on those of single pods only, `Some(false)` on all of them.
    pub(crate) fn needs_scale_of_singles(&self, rules: &Rules) -> Option<bool> {
        match rules.units {
            Units::Pods => (needs_scale(rules) && rules.expected.is_none()).then_some(false),
            Units::Workload => None,
            _ => (needs_scale(rules) && self.singles > 0).then_some(true),
        }
    }

    /// The largest number of units that any source states. A minimum is not too high only because pods have not been
    /// created yet.
    pub(crate) fn expected_at_most(&self, rules: &Rules, numbers: Numbers) -> u32 {
        match rules.units {
            Units::Pods if rules.expected.is_none() => numbers.expected.max(self.scales.scale()),
            _ => numbers.expected,
        }
    }

    /// The sources of the expected numbers, also where the budget states the number itself.
    pub(crate) fn expected_sources(&self) -> impl Iterator<Item = &ExpectedFrom> {
        self.source_tallies.keys().chain(self.sources.keys())
    }

    /// Whether some expected number depends on observation only.
    pub(crate) fn is_observed(&self) -> bool {
        self.source_tallies
            .keys()
            .any(|expected_from| matches!(expected_from, ExpectedFrom::Observed | ExpectedFrom::Lone(_)))
    }

    fn pods_expected(&self, rules: &Rules) -> u32 {
        match rules.expected {
            Some(expected) => expected,
            None if needs_scale(rules) => self.scales.scale(),
            None => self.pods,
        }
    }
}

/// Whether the numbers depend on the expected number of units.
fn needs_scale(rules: &Rules) -> bool {
    rules.max_unavailable.is_some() || matches!(rules.min_available, Some(Quantity::Percent(_)) | None)
}

/// The numbers that follow from the rules.
fn numbers(rules: &Rules, current: u32, expected: u32) -> Numbers {
    let by_min = rules.min_available.map_or(0, |min| min.of(expected));
    let by_max = rules.max_unavailable.map_or(0, |max| expected.saturating_sub(max.of(expected)));
    let desired = by_min.max(by_max);
    let allowed = if expected == 0 { 0 } else { current.saturating_sub(desired) };
    Numbers { allowed, current, desired, expected }
}
