//! Groups that vanished while no object states their expected number. They stay expected for a while.

use super::Tally;
use crate::basics::{Text, Time};
use crate::cluster_state::ClusterState;
use crate::facts::Rules;
use crate::units;

/// How long a vanished group stays expected if no object states the expected number of groups.
pub const GONE_FOR: std::time::Duration = std::time::Duration::from_secs(15 * 60);

impl Tally {
    /// Forgets groups that have been gone for [`GONE_FOR`]. Returns whether there were any.
    pub(crate) fn forget_gone(&mut self, now: Time) -> bool {
        let before = self.gone.len();
        self.gone.retain(|_, since| now < since.after(GONE_FOR));
        let changed = self.gone.len() != before;
        if changed {
            self.refresh_observed();
        }
        changed
    }

    /// Adds vanished groups from the status of the budget: another process may have seen a group vanish that this one
    /// never saw. What this process saw itself is newer than the status.
    pub(crate) fn recall_gone(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        gone: &[(Text, Time)],
        cluster: &ClusterState,
        now: Time,
    ) {
        for (name, since) in gone {
            let seen = self.units.iter().any(|(_, unit)| unit.name == *name);
            if !seen && now < since.after(GONE_FOR) && units::is_observed(rules, namespace, name, cluster) {
                self.gone.entry(name.clone()).or_insert(*since);
            }
        }
        self.refresh_observed();
    }

    /// When the next group stops being expected.
    pub(crate) fn next_forgotten(&self) -> Option<Time> {
        self.gone.values().min().map(|since| since.after(GONE_FOR))
    }
}
