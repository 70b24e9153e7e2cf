//! What the leader does with a `settledVersion` that the store of pods has not reached: `ledger::settled_ahead`.

use super::Replica;
use crate::basics::Version;
use crate::facts::{Budget, BudgetKey};
use crate::ledger::messages::{Call, Reply};
use crate::ledger::outbox::Purpose;
use crate::ledger::patch::Step;
use crate::ledger::queue::PendingWrite;
use crate::ledger::settings::ProtocolRule;

impl Replica {
    /// Whether a budget needs newer pods than any that are known here.
    pub(super) fn is_settled_ahead(&self, key: &BudgetKey) -> bool {
        let listed = self.budgets.states.get(key).map_or(Version(0), |state| state.lists.version());
        let known = self.engine.pods_version().max(listed).max(self.budgets.ahead.reached());
        self.engine.budget(key).is_some_and(|budget| budget.ledger.settled > known)
    }

    /// Lowers the `settledVersion` of a budget if it is from another time; returns whether that is written now.
    pub(super) fn lower_settled(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        if !self.is_settled_ahead(key) || self.is_without(ProtocolRule::LowerSettled) {
            self.budgets.ahead.clear(key);
            return false;
        }
        if self.is_without(ProtocolRule::ReadBeforeLowering) {
            self.budgets.ahead.assume(key, budget.version);
        }
        let (now, patience) = (self.process.now, self.settings.ahead_for);
        let Some(version) = self.budgets.ahead.check(key, budget.version, now, patience) else {
            return false;
        };
        let mut steps = self.preamble(budget);
        // A test of the number is not enough: a claim that another leader settles leaves both as they are.
        if self.is_without(ProtocolRule::LowerAsRead) {
            steps.extend([Step::TestNumber(budget.ledger.number), Step::TestSettled(budget.ledger.settled)]);
        } else {
            steps.push(Step::TestVersion(budget.version));
        }
        steps.push(Step::SetSettled(version));
        self.start_write(key, steps, PendingWrite::default());
        true
    }

    /// Reads how far the store of pods has come, for all budgets that wait for that.
    pub(super) fn read_pods_version(&mut self) {
        if self.budgets.ahead.start() {
            self.outbox.call(Call::PodsVersion, Purpose::PodsVersion);
        }
    }

    /// The version of the store of pods was read.
    pub(super) fn pods_version_read(&mut self, reply: &Reply) {
        let shown = match reply {
            Reply::PodsVersion(version) => Some(*version),
            _ => None,
        };
        let waited = self.budgets.ahead.read(shown);
        self.budgets.work.extend(waited);
    }
}
