//! Writes to the ledger: a list of steps that holds as a whole or not at all, as a JSON Patch does.

use crate::basics::{Uid, Version};
use crate::claims::Claim;
use crate::coverage::Coverage;
use crate::facts::{Budget, BudgetKey, RuleAnnotations};

/// One write to one budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LedgerPatch {
    /// The budget.
    pub budget: BudgetKey,
    /// What is tested and changed, in this order.
    pub steps: Vec<Step>,
}

/// A step of a write. If one fails nothing is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// It is this very object, not a successor of its name.
    TestUid(Uid),
    /// Nothing at all was written since.
    TestVersion(Version),
    /// Its spec is the one that was decided on.
    TestGeneration(i64),
    /// The annotations that are rules are those that were decided on.
    TestAnnotations(RuleAnnotations),
    /// No request was admitted since.
    TestNumber(u64),
    /// No claim was settled since.
    TestSettled(Version),
    /// Counts the write.
    SetNumber(u64),
    /// Deciding needs pods at least this new from now on.
    SetSettled(Version),
    /// Puts a claim in, in place of one that may be there.
    PutClaim(Uid, Claim),
    /// Takes a claim out. It must be there.
    RemoveClaim(Uid),
    /// Says for which coverage every replica knows the budget, and the generation of the spec that has this coverage.
    SetEnforced(Coverage, i64),
    /// Says which protocol its writers speak.
    SetProtocol(u32),
}

impl LedgerPatch {
    /// Applies the patch as an API server would: returns false, and changes nothing, if a step fails.
    pub fn apply(&self, stored: &mut Budget) -> bool {
        let mut ledger = stored.ledger.clone();
        for step in &self.steps {
            let holds = match step {
                Step::TestUid(uid) => *uid == stored.uid,
                Step::TestVersion(version) => *version == stored.version,
                Step::TestGeneration(generation) => *generation == stored.generation,
                Step::TestAnnotations(annotations) => *annotations == stored.annotations,
                Step::TestNumber(number) => *number == ledger.number,
                Step::TestSettled(version) => *version == ledger.settled,
                Step::SetNumber(number) => set(&mut ledger.number, *number),
                Step::SetSettled(version) => set(&mut ledger.settled, *version),
                Step::PutClaim(uid, claim) => {
                    ledger.claims.insert(uid.clone(), claim.clone());
                    true
                }
                Step::RemoveClaim(uid) => ledger.claims.remove(uid).is_some(),
                Step::SetEnforced(coverage, generation) => {
                    ledger.enforced_generation = Some(*generation);
                    set(&mut ledger.enforced, Some(*coverage))
                }
                Step::SetProtocol(protocol) => set(&mut ledger.protocol, Some(*protocol)),
            };
            if !holds {
                return false;
            }
        }
        stored.ledger = ledger;
        true
    }
}

fn set<T>(place: &mut T, value: T) -> bool {
    *place = value;
    true
}
