//! Which budgets a process knows, as its Lease says it.

use quorate_api::names;
use quorate_engine::facts::BudgetKind;
use quorate_engine::ledger::Acknowledged;

/// Annotations of a Lease: the version up to which its process knows every budget, by kind.
pub(super) const ACKNOWLEDGED: [(BudgetKind, &str); 2] = [
    (BudgetKind::DisruptionBudget, names::ACKNOWLEDGED),
    (BudgetKind::PodUnavailableBudget, names::ACKNOWLEDGED_UNAVAILABLE_BUDGETS),
];

/// The versions that this process acknowledges to the leader, which opens budgets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledgement {
    pub(crate) known: Acknowledged,
    /// A budget is waiting to be opened.
    pub(crate) awaited: bool,
}

impl Acknowledgement {
    /// Whether this must be written before the next renewal; `written` is what the Lease has. A budget changes with
    /// every claim: a write to the Lease each time would cost more than the claims.
    pub(super) fn is_urgent(&self, written: Acknowledged) -> bool {
        // The leader relies on an acknowledgement until its withdrawal is written.
        let takes_back = ACKNOWLEDGED.iter().any(|(kind, _)| self.known.of(*kind) < written.of(*kind));
        self.awaited || takes_back
    }
}

#[cfg(test)]
mod tests {
    use quorate_engine::basics::Version;

    use super::*;

    #[test]
    fn only_an_awaited_or_withdrawn_acknowledgement_is_written_before_the_next_renewal() {
        let known = |version| Acknowledged { budgets: Version(version), ..Acknowledged::default() };
        let written = known(5);
        for (now, awaited, urgent, why) in [
            (known(6), true, true, "a budget is waiting to be opened"),
            (known(6), false, false, "a claim was written, and no budget is waiting"),
            (known(0), false, true, "budgets are not watched any more"),
        ] {
            assert_eq!(Acknowledgement { known: now, awaited }.is_urgent(written), urgent, "{why}");
        }
    }
}
