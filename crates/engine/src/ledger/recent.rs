//! What this replica admitted recently.
//!
//! A budget that is new, or that covers other pods than before, does not know what was admitted a moment ago. Each replica
//! backfills such a budget with its own recent admissions before it acknowledges it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::basics::{Text, Time, Uid};
use crate::claims::{Token, TokenId};
use crate::ledger::queue::Backfill;

/// One admission of this replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecentAdmission {
    pub(super) uid: Uid,
    pub(super) pod: Text,
    pub(super) token: TokenId,
    pub(super) what: Token,
    pub(super) at: Time,
}

/// The admissions of the last minutes, oldest first.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct RecentAdmissions {
    admissions: VecDeque<RecentAdmission>,
}

impl RecentAdmissions {
    pub(super) fn add(&mut self, admission: RecentAdmission) {
        self.admissions.push_back(admission);
    }

    /// Forgets admissions that are too old to matter to a new budget.
    pub(super) fn forget(&mut self, now: Time, recent_for: Duration) {
        while self.admissions.front().is_some_and(|first| now >= first.at.after(recent_for)) {
            self.admissions.pop_front();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.admissions.is_empty()
    }

    /// The tokens that a budget which covers these pods must have before it opens.
    pub(super) fn backfills(&self, covers: impl Fn(&Uid) -> bool) -> Vec<(TokenId, Backfill)> {
        let covered = self.admissions.iter().filter(|admission| covers(&admission.uid));
        covered.map(|admission| (admission.token.clone(), Backfill::required(admission))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Target;
    use crate::facts::Operation;

    fn admission(uid: &str, at: i64) -> RecentAdmission {
        let what = Token {
            operation: Operation::Evict,
            by: "drain".into(),
            at: Time(at),
            target: Target::default(),
        };
        RecentAdmission {
            uid: uid.into(),
            pod: uid.into(),
            token: format!("t-{uid}").into(),
            what,
            at: Time(at),
        }
    }

    fn tokens(recent: &RecentAdmissions, covers: impl Fn(&Uid) -> bool) -> Vec<String> {
        recent.backfills(covers).iter().map(|(token, _)| token.to_string()).collect()
    }

    #[test]
    fn a_budget_is_backfilled_with_admissions_of_pods_it_covers() {
        let mut recent = RecentAdmissions::default();
        recent.add(admission("a", 0));
        recent.add(admission("b", 1));
        assert_eq!(tokens(&recent, |_| true), ["t-a", "t-b"]);
        assert_eq!(tokens(&recent, |uid| **uid == *"b"), ["t-b"]);
    }

    #[test]
    fn an_admission_is_forgotten_after_its_time() {
        let mut recent = RecentAdmissions::default();
        recent.add(admission("a", 0));
        recent.add(admission("b", 500));
        let recent_for = Duration::from_secs(2);
        recent.forget(Time(1_999), recent_for);
        assert_eq!(tokens(&recent, |_| true), ["t-a", "t-b"]);
        recent.forget(Time(2_000), recent_for);
        assert_eq!(tokens(&recent, |_| true), ["t-b"]);
        recent.forget(Time(2_500), recent_for);
        assert!(recent.is_empty());
    }
}
