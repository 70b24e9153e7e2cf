//! Groups that vanished where nobody says how many there should be: expected for a while longer.

use super::Tally;
use crate::basics::{Text, Time};
use crate::cluster_state::ClusterState;
use crate::facts::Rules;
use crate::units;

/// How long a group that vanished stays expected where nobody says how many there should be.
pub const GONE_FOR: std::time::Duration = std::time::Duration::from_secs(15 * 60);

impl Tally {
    /// Drops groups that have been gone for long enough; returns whether there were any.
    pub(crate) fn forget_gone(&mut self, now: Time) -> bool {
        let before = self.gone.len();
        self.gone.retain(|_, since| now < since.after(GONE_FOR));
        let changed = self.gone.len() != before;
        if changed {
            self.refresh_observed();
        }
        changed
    }

    /// Takes over groups that the budget's status remembers as gone.
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
                self.gone.insert(name.clone(), *since);
            }
        }
        self.refresh_observed();
    }

    /// When the next group stops being expected.
    pub(crate) fn next_forgotten(&self) -> Option<Time> {
        self.gone.values().min().map(|since| since.after(GONE_FOR))
    }
}
