//! What this replica admitted recently.
//!
//! A budget that is new, or that covers other pods than before, does not know what was admitted a moment ago. Each replica
//! backfills such a budget with its own recent admissions before it acknowledges it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::basics::{Time, Uid};
use crate::claims::TokenId;
use crate::ledger::messages::Admission;
use crate::ledger::queue::Backfill;

/// The admissions of the last minutes, oldest first, each with its time.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct RecentAdmissions {
    admissions: VecDeque<(Time, Admission)>,
}

impl RecentAdmissions {
    pub(super) fn add(&mut self, admission: Admission, now: Time) {
        self.admissions.push_back((now, admission));
    }

    /// Forgets admissions that are too old to matter to a new budget.
    pub(super) fn forget(&mut self, now: Time, recent_for: Duration) {
        while self.admissions.front().is_some_and(|(at, _)| now >= at.after(recent_for)) {
            self.admissions.pop_front();
        }
    }

    /// All with their times, oldest first.
    pub(super) fn timed(&self) -> impl Iterator<Item = &(Time, Admission)> {
        self.admissions.iter()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Admission> {
        self.admissions.iter().map(|(_, admission)| admission)
    }

    /// The tokens that a budget which covers these pods must have before it opens.
    pub(super) fn backfills(&self, covers: impl Fn(&Uid) -> bool) -> Vec<(TokenId, Backfill)> {
        let covered = self.iter().filter(|admission| covers(&admission.uid));
        covered.map(|admission| (admission.token.clone(), Backfill::required(admission))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{Target, Token};
    use crate::facts::Operation;

    fn admission(uid: &str) -> Admission {
        let what =
            Token { operation: Operation::Evict, by: "drain".into(), at: Time(0), target: Target::default() };
        Admission { uid: uid.into(), pod: uid.into(), token: format!("t-{uid}").into(), what }
    }

    fn tokens(recent: &RecentAdmissions, covers: impl Fn(&Uid) -> bool) -> Vec<String> {
        recent.backfills(covers).iter().map(|(token, _)| token.to_string()).collect()
    }

    #[test]
    fn a_budget_is_backfilled_with_admissions_of_pods_it_covers() {
        let mut recent = RecentAdmissions::default();
        recent.add(admission("a"), Time(0));
        recent.add(admission("b"), Time(1));
        assert_eq!(tokens(&recent, |_| true), ["t-a", "t-b"]);
        assert_eq!(tokens(&recent, |uid| **uid == *"b"), ["t-b"]);
    }

    #[test]
    fn an_admission_is_forgotten_after_its_time() {
        let mut recent = RecentAdmissions::default();
        recent.add(admission("a"), Time(0));
        recent.add(admission("b"), Time(500));
        let recent_for = Duration::from_secs(2);
        recent.forget(Time(1_999), recent_for);
        assert_eq!(tokens(&recent, |_| true), ["t-a", "t-b"]);
        recent.forget(Time(2_000), recent_for);
        assert_eq!(tokens(&recent, |_| true), ["t-b"]);
        recent.forget(Time(2_500), recent_for);
        assert_eq!(recent.iter().count(), 0);
    }
}
