//! Which claims this replica has seen in the budgets, since when, and which of their pods it saw go.

use std::collections::{BTreeMap, BTreeSet};

use crate::basics::{Time, Uid, Version};
use crate::claims::{Claim, TokenId};
use crate::facts::{Budget, BudgetKey};

/// When a token was first seen here, and in which version of its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FirstSeen {
    pub(super) at: Time,
    pub(super) version: Version,
}

/// The tokens of one budget, by pod.
type Tokens = BTreeMap<(Uid, TokenId), FirstSeen>;

/// The claims of all budgets, by token and by pod.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimIndex {
    first_seen: BTreeMap<BudgetKey, Tokens>,
    by_pod: BTreeMap<Uid, BTreeSet<BudgetKey>>,
    /// Pods with claims that were seen to go, and the version that showed it.
    gone_at: BTreeMap<Uid, Version>,
}

impl ClaimIndex {
    /// Takes in the claims of a budget: starts the clock of tokens that are new here, and drops those that are gone.
    /// `one_clock_per_pod` is a mutation: a token inherits the clock of another token of its pod.
    pub(super) fn update(&mut self, budget: &Budget, now: Time, one_clock_per_pod: bool) {
        let key = &budget.key;
        let old = self.first_seen.remove(key).unwrap_or_default();
        let new = FirstSeen { at: now, version: budget.version };
        let seen_of = |entry: &(Uid, TokenId)| {
            let of_pod = || old.iter().find(|((uid, _), _)| *uid == entry.0).map(|(_, seen)| *seen);
            let seen = old.get(entry).copied();
            seen.or_else(|| if one_clock_per_pod { of_pod() } else { None }).unwrap_or(new)
        };
        let claims = budget.ledger.claims.iter();
        let entries = claims
            .flat_map(|(uid, claim)| claim.tokens.keys().map(|token| (uid.clone(), token.clone())))
            .map(|entry| {
                let seen = seen_of(&entry);
                (entry, seen)
            });
        let tokens: Tokens = entries.collect();
        if !tokens.is_empty() {
            self.first_seen.insert(key.clone(), tokens);
        }
        for (uid, _) in old.keys() {
            if !budget.ledger.claims.contains_key(uid) {
                self.release(uid, key);
            }
        }
        for uid in budget.ledger.claims.keys() {
            self.by_pod.entry(uid.clone()).or_default().insert(key.clone());
        }
    }

    /// Forgets a budget and its claims.
    pub(super) fn remove(&mut self, budget: &BudgetKey) {
        let tokens = self.first_seen.remove(budget).unwrap_or_default();
        tokens.keys().for_each(|(uid, _)| self.release(uid, budget));
    }

    fn release(&mut self, uid: &Uid, budget: &BudgetKey) {
        if let Some(budgets) = self.by_pod.get_mut(uid) {
            budgets.remove(budget);
            if budgets.is_empty() {
                self.by_pod.remove(uid);
                self.gone_at.remove(uid);
            }
        }
    }

    /// A pod is gone, as of this version.
    pub(super) fn pod_gone(&mut self, uid: &Uid, version: Version) {
        if self.by_pod.contains_key(uid) {
            self.gone_at.insert(uid.clone(), version);
        }
    }

    /// The budgets with a claim on a pod.
    pub(super) fn budgets_of(&self, uid: &Uid) -> impl Iterator<Item = &BudgetKey> {
        self.by_pod.get(uid).into_iter().flatten()
    }

    /// The pods with claims.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Uid> {
        self.by_pod.keys()
    }

    /// The version that showed that a claimed pod is gone, if one did.
    pub(super) fn gone_at(&self, uid: &Uid) -> Option<Version> {
        self.gone_at.get(uid).copied()
    }

    /// When a token was first seen here.
    pub(super) fn first_seen(&self, budget: &BudgetKey, uid: &Uid, token: &TokenId) -> Option<FirstSeen> {
        self.first_seen.get(budget)?.get(&(uid.clone(), token.clone())).copied()
    }

    /// Whether every token of a claim was first seen in a version of its budget that is no newer than this.
    pub(super) fn is_no_newer_than(
        &self,
        budget: &BudgetKey,
        uid: &Uid,
        claim: &Claim,
        version: Version,
    ) -> bool {
        let mut tokens = claim.tokens.keys();
        tokens.all(|token| self.first_seen(budget, uid, token).is_some_and(|first| first.version <= version))
    }

    /// Feeds what the future depends on into a hasher. The version in which a token was first seen matters only while its
    /// pod was never seen: of any other pod the watch says when it went.
    pub(super) fn fingerprint(&self, knows: impl Fn(&Uid) -> bool, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.gone_at.hash(state);
        for (key, tokens) in &self.first_seen {
            for ((uid, token), first) in tokens {
                let version = (!knows(uid)).then_some(first.version);
                (key, uid, token, first.at, version).hash(state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::{ObjectKey, Text};
    use crate::claims::{Ledger, Target, Token};
    use crate::facts::{Broken, BudgetKind, Covers, Memory, Operation, Operations};
    use crate::selector::Selector;

    fn budget(name: &str, version: u64, claims: &[(&str, &[&str])]) -> Budget {
        let token = || Token {
            operation: Operation::Evict,
            by: "drain".into(),
            at: Time(0),
            target: Target::default(),
        };
        let claim = |(uid, tokens): &(&str, &[&str])| {
            let tokens = tokens.iter().map(|id| (TokenId::from(*id), token())).collect();
            (Uid::from(*uid), Claim { pod: Text::from(*uid), tokens })
        };
        Budget {
            key: BudgetKey { object: ObjectKey::new("shop", name), kind: BudgetKind::DisruptionBudget },
            uid: name.into(),
            generation: 1,
            version: Version(version),
            spec: Err(Broken {
                why: "not needed here".into(),
                covers: Covers::Selector(Selector::default()),
                operations: Operations::of(&[Operation::Evict]),
            }),
            ledger: Ledger { claims: claims.iter().map(claim).collect(), ..Ledger::default() },
            gone: [].into(),
            annotations: Default::default(),
            is_twin: false,
            memory: Memory::default(),
        }
    }

    fn at(index: &ClaimIndex, budget: &Budget, uid: &str, token: &str) -> Option<i64> {
        index.first_seen(&budget.key, &uid.into(), &token.into()).map(|first| first.at.0)
    }

    #[test]
    fn each_token_has_a_clock_of_its_own() {
        let mut index = ClaimIndex::default();
        index.update(&budget("web", 1, &[("x", &["t1"])]), Time(10), false);
        let both = budget("web", 2, &[("x", &["t1", "t2"])]);
        index.update(&both, Time(20), false);
        assert_eq!((at(&index, &both, "x", "t1"), at(&index, &both, "x", "t2")), (Some(10), Some(20)));
        let second = budget("web", 3, &[("x", &["t2"])]);
        index.update(&second, Time(30), false);
        assert_eq!((at(&index, &second, "x", "t1"), at(&index, &second, "x", "t2")), (None, Some(20)));
    }

    #[test]
    fn budgets_do_not_mix() {
        let mut index = ClaimIndex::default();
        let (a, b) = (budget("a", 1, &[("x", &["t1"])]), budget("b", 1, &[("x", &["t1"]), ("y", &["t2"])]));
        index.update(&a, Time(1), false);
        index.update(&b, Time(2), false);
        index.update(&budget("a", 2, &[]), Time(3), false);
        assert_eq!(at(&index, &a, "x", "t1"), None);
        assert_eq!((at(&index, &b, "x", "t1"), at(&index, &b, "y", "t2")), (Some(2), Some(2)));
        assert_eq!(index.budgets_of(&"x".into()).collect::<Vec<_>>(), [&b.key]);
        index.remove(&b.key);
        assert_eq!(index.pods().count(), 0);
    }

    #[test]
    fn when_a_pod_went_is_kept_as_long_as_it_is_claimed() {
        let mut index = ClaimIndex::default();
        index.pod_gone(&"x".into(), Version(5));
        assert_eq!(index.gone_at(&"x".into()), None, "no budget has a claim on it");
        index.update(&budget("web", 1, &[("x", &["t1"])]), Time(1), false);
        index.pod_gone(&"x".into(), Version(6));
        assert_eq!(index.gone_at(&"x".into()), Some(Version(6)));
        index.update(&budget("web", 2, &[]), Time(2), false);
        assert_eq!(index.gone_at(&"x".into()), None);
    }
}
