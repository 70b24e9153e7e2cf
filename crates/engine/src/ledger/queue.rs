//! The commit queue of one budget: one write at a time, and everything that waits for it.
//!
//! Requests that arrive while a write is in flight wait. They are decided one after the other, each on what the earlier
//! ones leave, and go out together in the next write. In a burst the first request waits for others, see `batch_window`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::basics::{Text, Time, Uid};
use crate::claims::{Ledger, Token, TokenId};
use crate::ledger::batch_window::BatchWindow;
use crate::ledger::messages::{Admission, RequestId};
use crate::ledger::opening::RETRY_PRUNED_AFTER;
use crate::ledger::requests::Agreement;
use crate::ledger::settings::Settings;

/// A token of an admission that a budget must still get.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Backfill {
    pub(super) uid: Uid,
    pub(super) pod: Text,
    pub(super) what: Token,
    /// The acknowledgement of the budget waits for it.
    required: bool,
}

impl Backfill {
    /// The budget must not open without it.
    pub(super) fn required(admission: &Admission) -> Self {
        Self { required: true, ..Self::best_effort(admission) }
    }

    /// The budget only observes the operation: nothing waits for this token.
    pub(super) fn best_effort(admission: &Admission) -> Self {
        Self {
            uid: admission.uid.clone(),
            pod: admission.pod.clone(),
            what: admission.what.clone(),
            required: false,
        }
    }
}

/// The tokens that the next write adds and removes besides those of the waiting requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TokenChanges {
    pub(super) backfills: BTreeMap<TokenId, Backfill>,
    /// Tokens of this replica whose requests were not admitted in the end.
    pub(super) withdrawals: BTreeMap<TokenId, Uid>,
}

impl TokenChanges {
    fn is_empty(&self) -> bool {
        self.backfills.is_empty() && self.withdrawals.is_empty()
    }
}

/// A write in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PendingWrite {
    /// The budget that it is for, not one of the same name before or after.
    pub(super) budget: Uid,
    /// It opens the budget.
    pub(super) opens: bool,
    /// It names this generation in a budget that is open.
    pub(super) names: Option<i64>,
    /// The ledger number that it tests, if it tests one.
    pub(super) number: Option<u64>,
    pub(super) requests: Vec<WrittenRequest>,
    pub(super) backfills: BTreeSet<TokenId>,
    pub(super) withdrawals: BTreeSet<TokenId>,
}

/// A request whose token is being written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WrittenRequest {
    pub(super) request: RequestId,
    pub(super) uid: Uid,
    pub(super) token: TokenId,
    /// What is recorded for the request once the token is there.
    pub(super) agreement: Agreement,
}

/// A read of the budget after a write that failed or whose reply was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reread {
    pub(super) write: PendingWrite,
    /// The budget that was known when the read was sent. That there was none then says nothing about a later one.
    pub(super) uid: Option<Uid>,
}

/// The commit queue of one budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CommitQueue {
    waiting: VecDeque<RequestId>,
    window: BatchWindow,
    tokens: TokenChanges,
    /// Tokens to add were written, and are not in the budget: its definition does not have claims.
    pruned: Pruned,
    write: Option<PendingWrite>,
    reread: Option<Reread>,
}

/// Tokens that a definition drops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pruned {
    /// When each was dropped first.
    since: BTreeMap<TokenId, Time>,
    /// No token is written before.
    until: Option<Time>,
}

impl CommitQueue {
    /// A request waits to be decided and written.
    pub(super) fn push(&mut self, request: RequestId, now: Time) {
        self.waiting.push_back(request);
        self.window.add(now);
    }

    /// Requests whose write did not happen wait again. They have waited for others already.
    pub(super) fn push_again(&mut self, requests: impl IntoIterator<Item = RequestId>) {
        self.waiting.extend(requests);
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the waiting requests out, to decide them.
    pub(super) fn take_waiting(&mut self) -> VecDeque<RequestId> {
        self.window.clear();
        std::mem::take(&mut self.waiting)
    }

    /// Puts requests that need a read first back, before those that came meanwhile.
    pub(super) fn put_back(&mut self, mut requests: VecDeque<RequestId>) {
        requests.append(&mut self.waiting);
        self.waiting = requests;
    }

    /// Until when the waiting requests wait for others. Tokens to add or remove do not wait, and take the requests along.
    pub(super) fn batch_until(&self, settings: &Settings) -> Option<Time> {
        let waits = self.tokens.is_empty() && self.has_waiting();
        self.window.closes_at(settings).filter(|_| waits)
    }

    pub(super) fn backfill(&mut self, token: TokenId, backfill: Backfill) {
        self.tokens.backfills.insert(token, backfill);
    }

    pub(super) fn withdraw(&mut self, token: TokenId, uid: Uid) {
        self.tokens.withdrawals.insert(token, uid);
    }

    /// The tokens to add.
    pub(super) fn backfills(&self) -> impl Iterator<Item = (&TokenId, &Backfill)> {
        self.tokens.backfills.iter()
    }

    /// Whether a token is missing that the acknowledgement of the budget waits for.
    pub(super) fn has_required_backfills(&self) -> bool {
        self.tokens.backfills.values().any(|backfill| backfill.required)
    }

    /// Takes the tokens to add and to remove out. Those that the definition of the budget drops stay for a while, and are
    /// given up when their admissions are not recent any more.
    pub(super) fn take_tokens(&mut self, now: Time, recent_for: Duration) -> TokenChanges {
        let Pruned { since, until } = &mut self.pruned;
        let backfills = &mut self.tokens.backfills;
        since.retain(|token, since| {
            let is_recent = now < since.after(recent_for);
            if !is_recent {
                backfills.remove(token);
            }
            is_recent
        });
        if until.is_some_and(|until| now < until) && !backfills.is_empty() {
            let withdrawals = std::mem::take(&mut self.tokens.withdrawals);
            return TokenChanges { withdrawals, ..TokenChanges::default() };
        }
        std::mem::take(&mut self.tokens)
    }

    /// What was written came back without tokens that it had. Returns whether there are such tokens.
    pub(super) fn note_pruned(&mut self, write: &PendingWrite, now: Time) -> bool {
        let mut is_pruned = false;
        for token in &write.backfills {
            if self.tokens.backfills.contains_key(token) {
                self.pruned.since.entry(token.clone()).or_insert(now);
                self.pruned.until = Some(now.after(RETRY_PRUNED_AFTER));
                is_pruned = true;
            } else {
                self.pruned.since.remove(token);
            }
        }
        is_pruned
    }

    /// Puts the tokens back that did not fit into the budget.
    pub(super) fn wait_for_room(&mut self, mut tokens: TokenChanges, fit: &BTreeSet<TokenId>) {
        tokens.backfills.retain(|token, _| !fit.contains(token));
        self.tokens.backfills.append(&mut tokens.backfills);
    }

    /// Starts a write.
    pub(super) fn start(&mut self, write: PendingWrite) {
        self.write = Some(write);
    }

    /// Starts a write of waiting requests and these tokens, which stay here until they are seen in the budget.
    pub(super) fn start_commit(&mut self, requests: usize, tokens: TokenChanges, now: Time) {
        self.tokens.backfills.extend(tokens.backfills);
        self.tokens.withdrawals.extend(tokens.withdrawals);
        self.window.wrote(requests, now);
    }

    /// Whether a write, or the read after one, is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.write.is_some() || self.reread.is_some()
    }

    /// The write came back.
    pub(super) fn take_write(&mut self) -> Option<PendingWrite> {
        self.write.take()
    }

    pub(super) fn start_reread(&mut self, reread: Reread) {
        self.reread = Some(reread);
    }

    /// The read after a write came back.
    pub(super) fn take_reread(&mut self) -> Option<Reread> {
        self.reread.take()
    }

    /// Drops the tokens of a write that are in the ledger now, or no longer have to be: a pod that is gone needs no claim.
    pub(super) fn confirm(
        &mut self,
        write: &PendingWrite,
        ledger: &Ledger,
        done: bool,
        is_needed: impl Fn(&TokenId) -> bool,
    ) {
        let has = |uid: &Uid, token: &TokenId| ledger.has_token(uid, token);
        let TokenChanges { backfills, withdrawals } = &mut self.tokens;
        withdrawals.retain(|token, uid| !write.withdrawals.contains(token) || has(uid, token));
        backfills.retain(|token, backfill| {
            let settled = has(&backfill.uid, token) || (done && !is_needed(token));
            !(write.backfills.contains(token) && settled)
        });
    }

    /// The budget is not known any more: what it was to get is moot.
    pub(super) fn drop_tokens(&mut self) {
        self.tokens = TokenChanges::default();
        self.pruned = Pruned::default();
    }

    /// Whether there is nothing to do and nothing to wait for.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_waiting() && self.tokens.is_empty() && !self.is_busy()
    }

    /// Feeds what the future depends on into a hasher. A search runs without a batch window.
    pub(super) fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (&self.waiting, &self.tokens, &self.pruned, &self.write, &self.reread).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{Claim, Target};
    use crate::facts::Operation;

    const RECENT: Duration = Duration::from_secs(120);

    fn token() -> Token {
        Token { operation: Operation::Evict, by: "drain".into(), at: Time(0), target: Target::default() }
    }

    fn admission(uid: &str, token_id: &str) -> Admission {
        Admission { uid: uid.into(), pod: uid.into(), token: token_id.into(), what: token() }
    }

    fn ledger(claims: &[(&str, &str)]) -> Ledger {
        let claim = |(uid, id): &(&str, &str)| {
            (Uid::from(*uid), Claim { pod: (*uid).into(), tokens: [(TokenId::from(*id), token())].into() })
        };
        Ledger { claims: claims.iter().map(claim).collect(), ..Ledger::default() }
    }

    #[test]
    fn requests_that_need_a_read_are_decided_before_those_that_came_meanwhile() {
        let mut queue = CommitQueue::default();
        queue.push(1, Time(0));
        queue.push(2, Time(0));
        let taken = queue.take_waiting();
        queue.push(3, Time(1));
        queue.put_back(taken);
        assert_eq!(queue.take_waiting(), [1, 2, 3]);
        assert!(queue.is_idle());
    }

    #[test]
    fn a_required_backfill_stays_until_the_budget_has_it() {
        let mut queue = CommitQueue::default();
        let admission = admission("x", "t1");
        queue.backfill("t1".into(), Backfill::required(&admission));
        let tokens = queue.take_tokens(Time(0), RECENT);
        let write = PendingWrite { backfills: ["t1".into()].into(), ..PendingWrite::default() };
        queue.start_commit(0, tokens, Time(0));
        queue.start(write.clone());
        assert!(queue.is_busy() && queue.has_required_backfills());
        let write_back = queue.take_write().expect("it is in flight");
        queue.confirm(&write_back, &ledger(&[]), false, |_| true);
        assert!(queue.has_required_backfills(), "the write did not happen");
        queue.confirm(&write, &ledger(&[("x", "t1")]), true, |_| true);
        assert!(queue.is_idle());
    }

    #[test]
    fn a_backfill_of_a_pod_that_is_gone_is_dropped_once_the_write_is_done() {
        let mut queue = CommitQueue::default();
        queue.backfill("t1".into(), Backfill::required(&admission("x", "t1")));
        let write = PendingWrite { backfills: ["t1".into()].into(), ..PendingWrite::default() };
        queue.confirm(&write, &ledger(&[]), true, |_| false);
        assert!(!queue.has_required_backfills());
    }

    #[test]
    fn tokens_that_the_definition_drops_are_written_again_after_a_pause_and_given_up() {
        let mut queue = CommitQueue::default();
        queue.backfill("t1".into(), Backfill::required(&admission("x", "t1")));
        let write = PendingWrite { backfills: ["t1".into()].into(), ..PendingWrite::default() };
        queue.confirm(&write, &ledger(&[]), true, |_| true);
        assert!(queue.note_pruned(&write, Time(1_000)));
        queue.withdraw("t2".into(), "y".into());
        let tokens = queue.take_tokens(Time(30_999), RECENT);
        assert_eq!((tokens.backfills.len(), tokens.withdrawals.len()), (0, 1), "only what can be written");
        assert!(queue.has_required_backfills(), "the budget must not open without it");
        let tokens = queue.take_tokens(Time(31_000), RECENT);
        assert_eq!(tokens.backfills.len(), 1);
        queue.start_commit(0, tokens, Time(31_000));
        assert!(queue.note_pruned(&write, Time(31_000)));
        queue.backfill("t3".into(), Backfill::required(&admission("z", "t3")));
        let tokens = queue.take_tokens(Time(120_999), RECENT);
        assert_eq!(tokens.backfills.len(), 2);
        queue.start_commit(0, tokens, Time(120_999));
        let tokens = queue.take_tokens(Time(121_000), RECENT);
        let left: Vec<&TokenId> = tokens.backfills.keys().collect();
        assert_eq!(left, [&TokenId::from("t3")], "the other one is not recent any more");
        assert!(queue.is_idle());
    }

    #[test]
    fn a_withdrawal_stays_while_the_budget_has_the_token() {
        let mut queue = CommitQueue::default();
        queue.withdraw("t1".into(), "x".into());
        let write = PendingWrite { withdrawals: ["t1".into()].into(), ..PendingWrite::default() };
        queue.confirm(&write, &ledger(&[("x", "t1")]), false, |_| true);
        assert!(!queue.is_idle());
        queue.confirm(&write, &ledger(&[]), true, |_| true);
        assert!(queue.is_idle());
    }

    #[test]
    fn tokens_do_not_wait_for_a_batch() {
        let settings = Settings::new("a");
        let mut queue = CommitQueue::default();
        queue.start_commit(2, TokenChanges::default(), Time(0));
        queue.push(1, Time(50));
        assert!(queue.batch_until(&settings).is_some());
        queue.withdraw("t1".into(), "x".into());
        assert_eq!(queue.batch_until(&settings), None);
    }
}
