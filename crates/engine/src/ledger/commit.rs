//! The queue of a budget: one write at a time, and everybody who waits for it.
//!
//! Requests that arrive while a write is under way wait, are decided one after the other on what the earlier ones
//! leave, and go out together in the next write. In a storm of requests the first one waits for others, see `batch_window`.

use std::collections::{BTreeMap, VecDeque};

use crate::basics::{Text, Time, Uid, Version};
use crate::claims::{Claim, Ledger, PROTOCOL, Token, TokenId};
use crate::decision::{AllowReason, Decision};
use crate::facts::{Budget, BudgetKey, Input};
use crate::ledger::batch_window::BatchWindow;
use crate::ledger::leader::Opening;
use crate::ledger::messages::{Call, RequestId};
use crate::ledger::patch::{LedgerPatch, Step};
use crate::ledger::replica::{Purpose, Replica};
use crate::ledger::requests::Agreement;
use crate::ledger::settings::ProtocolRule;
use crate::ledger::sources::Source;

/// What stands at one budget's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CommitQueue {
    /// What the budget covers, as this replica last saw it.
    pub(super) coverage: Option<u64>,
    /// The version in which that was first seen here.
    pub(super) seen_at: Version,
    /// Requests that wait to be decided and written.
    pub(super) waiting: VecDeque<RequestId>,
    /// Whether they wait for others.
    pub(super) window: BatchWindow,
    /// Tokens of admissions that the budget has not been told of.
    pub(super) backfills: BTreeMap<TokenId, Backfill>,
    /// Our own tokens that are to be taken back.
    pub(super) withdrawals: BTreeMap<TokenId, Uid>,
    /// The write that is under way.
    pub(super) writing: Option<PendingWrite>,
    /// The budget is being read again.
    pub(super) rereading: Option<Rereading>,
    /// A list of the pods is under way.
    pub(super) listing: Option<ReadStamp>,
    /// The last list of the pods.
    pub(super) listed: Option<ReadStamp>,
    /// The version of that list.
    pub(super) listed_version: Version,
    /// Reads under way of what says how many groups there should be, and those that came back.
    pub(super) sources_reading: BTreeMap<Source, ReadStamp>,
    pub(super) sources_read: BTreeMap<Source, ReadStamp>,
    /// Since when the pods here are older than the budget asks for.
    behind_since: Option<Time>,
    /// Since when there are claims that have come to their end.
    pub(super) finished_since: Option<Time>,
    /// A pod whose token is due is being read.
    pub(super) expiring: Option<Uid>,
    /// When to read again, after such a read showed that the watch will tell.
    pub(super) expire_after: Option<Time>,
    /// How far the opening of the budget has come.
    pub(super) opening: Option<Opening>,
}

/// A token that a budget is to be told of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Backfill {
    pub(super) uid: Uid,
    pub(super) pod: Text,
    pub(super) what: Token,
    /// The acknowledgement of the budget waits for it.
    pub(super) binding: bool,
}

/// What a write under way carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PendingWrite {
    /// The budget that it is for, not one of the same name before or after.
    pub(super) budget: Uid,
    /// It opens the budget.
    pub(super) opens: bool,
    /// The number that it tests, if it does.
    pub(super) number: Option<u64>,
    pub(super) requests: Vec<WrittenRequest>,
    pub(super) backfills: Vec<TokenId>,
    pub(super) withdrawals: Vec<TokenId>,
}

/// What a budget is read again for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rereading {
    pub(super) writing: PendingWrite,
    /// The budget that was known when the read was sent: that there was none then says nothing of a later one.
    pub(super) uid: Option<Uid>,
}

/// A request that is being written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WrittenRequest {
    pub(super) request: RequestId,
    pub(super) uid: Uid,
    pub(super) token: TokenId,
    /// What is said of it when it is written.
    pub(super) agreement: Agreement,
}

/// A list of a budget's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadStamp {
    /// The number of the ledger that was known when it was sent.
    pub(super) number: u64,
    /// When it was sent, by the replica's own count.
    sequence: u64,
    /// What the budget covered then: a list of other pods says nothing of those that it covers now.
    pub(super) coverage: Option<u64>,
}

impl ReadStamp {
    pub(super) fn new(number: u64, sequence: u64, coverage: Option<u64>) -> Self {
        Self { number, sequence, coverage }
    }

    /// Whether it was sent after a request arrived and after this number of the ledger was read.
    pub(super) fn is_of(&self, number: u64, arrived: u64) -> bool {
        self.number == number && self.sequence >= arrived
    }
}

impl CommitQueue {
    /// Every look that was sent and may still be used.
    pub(super) fn stamps_mut(&mut self) -> impl Iterator<Item = &mut ReadStamp> {
        let pods = [&mut self.listed, &mut self.listing].into_iter().flatten();
        pods.chain(self.sources_read.values_mut()).chain(self.sources_reading.values_mut())
    }

    /// Nothing to do and nothing to wait for.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.backfills.is_empty()
            && self.withdrawals.is_empty()
            && self.writing.is_none()
            && self.rereading.is_none()
    }

    /// Feeds what can still matter into a hasher: when the budget was first seen only until it is open, a list only
    /// while somebody waits who had asked before it was sent, its version only if it is ahead of the watch.
    pub(super) fn fingerprint(
        &self,
        closed: bool,
        first_request: Option<u64>,
        watched: Version,
        state: &mut impl std::hash::Hasher,
    ) {
        use std::hash::Hash;
        let listed = self.listed.filter(|stamp| first_request.is_some_and(|first| first <= stamp.sequence));
        (self.coverage, closed.then_some(self.seen_at), &self.waiting, &self.backfills).hash(state);
        (&self.withdrawals, &self.writing, &self.rereading, &self.listing, listed).hash(state);
        (self.listed_version.max(watched), self.behind_since, &self.expiring).hash(state);
        (self.expire_after, &self.opening, self.finished_since).hash(state);
        (&self.sources_reading, &self.sources_read).hash(state);
    }
}

impl Replica {
    /// Looks at every queue that something happened to.
    pub(super) fn work_queues(&mut self) {
        // Asks that wait for newer pods are woken by any news of pods.
        let behind: Vec<BudgetKey> = self
            .busy
            .iter()
            .filter(|key| self.queues.get(*key).is_some_and(|queue| queue.behind_since.is_some()))
            .cloned()
            .collect();
        self.due.extend(behind);
        while let Some(key) = self.due.pop_first() {
            self.work_queue(&key);
            let needs_leader = self.needs_leader(&key);
            match self.queues.get(&key) {
                Some(queue) if !queue.is_idle() || needs_leader => {
                    self.busy.insert(key);
                }
                Some(queue) if queue.coverage.is_none() => {
                    self.queues.remove(&key);
                    self.busy.remove(&key);
                }
                _ => {
                    self.busy.remove(&key);
                }
            }
        }
    }

    fn work_queue(&mut self, key: &BudgetKey) {
        let Some(queue) = self.queues.get(key) else { return };
        if queue.writing.is_some() || queue.rereading.is_some() {
            return;
        }
        let Some(budget) = self.engine.budget(key) else {
            self.close_queue(key);
            return;
        };
        let budget = budget.clone();
        if self.is_batching(key) {
            return;
        }
        if !self.write(key, &budget) && self.leader {
            self.lead(key, &budget);
        }
    }

    /// Whether the requests at a queue wait for others. Nothing else does: what is to be joined or withdrawn takes them
    /// along at once.
    fn is_batching(&mut self, key: &BudgetKey) -> bool {
        let Some(queue) = self.queues.get(key) else { return false };
        let alone = queue.backfills.is_empty() && queue.withdrawals.is_empty();
        let Some(until) =
            queue.window.closes_at(&self.settings).filter(|_| alone && !queue.waiting.is_empty())
        else {
            return false;
        };
        if self.now >= until {
            return false;
        }
        self.wakes.insert(until);
        true
    }

    /// The budget is gone: whoever waited for it is decided again without it.
    fn close_queue(&mut self, key: &BudgetKey) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let waiting = std::mem::take(&mut queue.waiting);
        queue.window.clear();
        queue.backfills.clear();
        queue.withdrawals.clear();
        queue.listing = None;
        queue.sources_reading.clear();
        queue.sources_read.clear();
        queue.behind_since = None;
        self.backfilling.remove(key);
        for id in waiting {
            self.decide(id);
        }
    }

    /// Decides whoever waits and starts the next write; returns whether there is one.
    fn write(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let mut draft = Draft { ledger: budget.ledger.clone(), writing: PendingWrite::default() };
        let Some(queue) = self.queues.get_mut(key) else { return false };
        let backfills = std::mem::take(&mut queue.backfills);
        let withdrawals = std::mem::take(&mut queue.withdrawals);
        let whole_claim = self.settings.without.contains(&ProtocolRule::WithdrawOnlyOwn);
        for (token, uid) in &withdrawals {
            if whole_claim {
                draft.ledger.claims.remove(uid);
            } else {
                draft.remove(uid, token);
            }
        }
        for (token, backfill) in &backfills {
            // A pod that is gone needs no claim.
            if self.engine.knows(&backfill.uid) {
                draft.add(&backfill.uid, &backfill.pod, token, &backfill.what);
            }
        }
        draft.writing.withdrawals = withdrawals.keys().cloned().collect();
        draft.writing.backfills = backfills.keys().cloned().collect();
        self.decide_waiting(key, budget, &mut draft);
        if draft.ledger == budget.ledger {
            // What there was to join or withdraw is there, or gone, already.
            self.backfilled(key);
            return false;
        }
        let Some(queue) = self.queues.get_mut(key) else { return false };
        queue.backfills.extend(backfills);
        queue.withdrawals.extend(withdrawals);
        queue.window.wrote(draft.writing.requests.len(), self.now);
        let settled = self.settle_with_commit(key, budget, &mut draft.ledger);
        let steps = self.commit_steps(budget, &mut draft, settled);
        self.start_write(key, steps, draft.writing);
        true
    }

    /// Decides the requests at a queue, one after the other, each on what the earlier ones leave.
    fn decide_waiting(&mut self, key: &BudgetKey, budget: &Budget, draft: &mut Draft) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.waiting.is_empty() {
            queue.behind_since = None;
            return;
        }
        if self.is_behind(key, budget) {
            return;
        }
        let Some(queue) = self.queues.get_mut(key) else { return };
        let waiting = std::mem::take(&mut queue.waiting);
        queue.window.clear();
        let (mut unseen, mut unsourced) = (VecDeque::new(), VecDeque::new());
        self.apply_draft(budget, draft);
        for id in waiting {
            let Some(pending) = self.requests.get(&id).cloned() else { continue };
            let Some(uid) = &pending.uid else { continue };
            let held = draft.ledger.holds(uid);
            let answer = if held && self.without(ProtocolRule::DecideAfresh) {
                Ok(AllowReason::Surplus)
            } else {
                self.engine.decide_one(key, &pending.request, uid, self.now)
            };
            match answer {
                Err(denial) => self.finish(id, Decision::Deny(vec![denial])),
                Ok(reason)
                    if reason.needs_fresh_list() && !self.has_fresh_list(key, budget, pending.sequence) =>
                {
                    unseen.push_back(id);
                }
                Ok(AllowReason::Surge) if !self.has_fresh_source(key, budget, uid, pending.sequence) => {
                    self.read_source(key, budget, uid);
                    unsourced.push_back(id);
                }
                Ok(reason) => {
                    let watches = matches!(reason, AllowReason::PassesBy | AllowReason::Observed);
                    let agreement = Agreement { budget: budget.uid.clone(), reason };
                    if !pending.request.dry_run && !watches {
                        draft.add(uid, &pending.request.pod.name, &pending.token, &pending.token(self.now));
                        draft.writing.requests.push(WrittenRequest {
                            request: id,
                            uid: uid.clone(),
                            token: pending.token.clone(),
                            agreement,
                        });
                        self.apply_draft(budget, draft);
                    } else {
                        if let Some(pending) = self.requests.get_mut(&id) {
                            pending.committed.insert(key.clone(), agreement);
                        }
                        self.advance(id);
                    }
                }
            }
        }
        if !unseen.is_empty() {
            self.list_pods(key, budget);
        }
        if let Some(queue) = self.queues.get_mut(key) {
            unseen.append(&mut unsourced);
            unseen.append(&mut queue.waiting);
            queue.waiting = unseen;
        }
    }

    /// Whether the pods here are too old to decide on the budget.
    fn is_behind(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let seen = self.engine.pods_version();
        let waits = !self.without(ProtocolRule::WaitForSettled);
        let (now, patience) = (self.now, self.settings.patience);
        let Some(queue) = self.queues.get_mut(key) else { return false };
        if !waits || seen.max(queue.listed_version) >= budget.ledger.settled {
            queue.behind_since = None;
            return false;
        }
        let since = *queue.behind_since.get_or_insert(now);
        if now >= since.after(patience) {
            self.list_pods(key, budget);
        }
        true
    }

    /// Whether the pods were listed after the request arrived and after the number was read that the write will test.
    fn has_fresh_list(&self, key: &BudgetKey, budget: &Budget, arrived: u64) -> bool {
        if self.without(ProtocolRule::FreshList) {
            return true;
        }
        let Some(stamp) = self.queues.get(key).and_then(|queue| queue.listed) else { return false };
        let any_number = self.without(ProtocolRule::FreshListAfterNumber);
        let number = if any_number { stamp.number } else { budget.ledger.number };
        stamp.is_of(number, arrived)
    }

    fn list_pods(&mut self, key: &BudgetKey, budget: &Budget) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.listing.is_none() {
            let coverage = queue.coverage;
            queue.listing = Some(ReadStamp::new(budget.ledger.number, self.sequence, coverage));
            self.call(Call::ListPods(key.clone()), Purpose::ListPods(key.clone(), coverage));
        }
    }

    /// Lets the engine see the budget as it will be after the write.
    fn apply_draft(&mut self, budget: &Budget, draft: &Draft) {
        let drafted = Budget { ledger: draft.ledger.clone(), ..budget.clone() };
        let changes = self.engine.apply(Input::Budget(drafted), self.now);
        self.note_changes(changes);
    }

    /// The steps that turn the ledger of a budget into the draft's, with what is settled on the way.
    fn commit_steps(&self, budget: &Budget, draft: &mut Draft, settled: Option<Version>) -> Vec<Step> {
        let old = &budget.ledger;
        let mut steps = self.preamble(budget);
        if !self.without(ProtocolRule::TestGeneration) {
            steps.push(Step::TestGeneration(budget.generation));
        }
        if !self.without(ProtocolRule::TestNumber) {
            steps.push(Step::TestNumber(old.number));
        }
        steps.push(Step::SetNumber(old.number + 1));
        if old.protocol.is_none() {
            steps.push(Step::SetProtocol(PROTOCOL));
        }
        if let Some(settled) = settled {
            self.raise_settled(old, settled, &mut steps);
        }
        steps.extend(claim_steps(old, &draft.ledger));
        draft.writing.number = Some(old.number);
        steps
    }

    pub(super) fn preamble(&self, budget: &Budget) -> Vec<Step> {
        if self.without(ProtocolRule::TestUid) { Vec::new() } else { vec![Step::TestUid(budget.uid.clone())] }
    }

    pub(super) fn start_write(&mut self, key: &BudgetKey, steps: Vec<Step>, mut writing: PendingWrite) {
        if let Some(budget) = self.engine.budget(key) {
            writing.budget = budget.uid.clone();
        }
        if let Some(queue) = self.queues.get_mut(key) {
            queue.writing = Some(writing);
        }
        let patch = LedgerPatch { budget: key.clone(), steps };
        self.call(Call::Patch(patch), Purpose::Write(key.clone()));
    }
}

/// A ledger as it is to be, and what that carries out.
struct Draft {
    ledger: Ledger,
    writing: PendingWrite,
}

impl Draft {
    fn add(&mut self, uid: &Uid, pod: &Text, token: &TokenId, what: &Token) {
        let claim = self.ledger.claims.entry(uid.clone()).or_insert_with(|| Claim {
            pod: pod.clone(),
            group: None,
            tokens: BTreeMap::new(),
        });
        claim.tokens.entry(token.clone()).or_insert_with(|| what.clone());
    }

    fn remove(&mut self, uid: &Uid, token: &TokenId) {
        if let Some(claim) = self.ledger.claims.get_mut(uid) {
            claim.tokens.remove(token);
            if claim.tokens.is_empty() {
                self.ledger.claims.remove(uid);
            }
        }
    }
}

/// The steps that turn one set of claims into another.
pub(super) fn claim_steps(old: &Ledger, new: &Ledger) -> Vec<Step> {
    let put = new
        .claims
        .iter()
        .filter(|(uid, claim)| old.claims.get(*uid) != Some(claim))
        .map(|(uid, claim)| Step::PutClaim(uid.clone(), claim.clone()));
    let removed = old.claims.keys().filter(|uid| !new.claims.contains_key(*uid));
    put.chain(removed.map(|uid| Step::RemoveClaim(uid.clone()))).collect()
}
