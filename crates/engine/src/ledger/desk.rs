//! The desk of a budget: one write at a time, and everybody who waits for it.
//!
//! Requests that arrive while a write is under way wait, are decided one after the other on what the earlier ones
//! leave, and go out together in the next write. In a storm of requests the first one waits for others, see `crowd`.

use std::collections::{BTreeMap, VecDeque};

use crate::basics::{Text, Time, Uid, Version};
use crate::claims::{Claim, Ledger, PROTOCOL, Token, TokenId};
use crate::facts::{Budget, BudgetKey, Input};
use crate::ledger::asks::Consent;
use crate::ledger::crowd::Crowd;
use crate::ledger::messages::{AskId, Call};
use crate::ledger::patch::{LedgerPatch, Step};
use crate::ledger::replica::{Purpose, Replica};
use crate::ledger::settings::Rule;
use crate::ledger::sources::Source;
use crate::ledger::tend::Opening;
use crate::verdict::{Ground, Verdict};

/// What stands at one budget's desk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Desk {
    /// What the budget covers, as this replica last saw it.
    pub(super) coverage: Option<u64>,
    /// The version in which that was first seen here.
    pub(super) seen_at: Version,
    /// Requests that wait to be decided and written.
    pub(super) queue: VecDeque<AskId>,
    /// Whether they wait for others.
    pub(super) crowd: Crowd,
    /// Tokens of admissions that the budget has not been told of.
    pub(super) joins: BTreeMap<TokenId, Join>,
    /// Our own tokens that are to be taken back.
    pub(super) withdrawals: BTreeMap<TokenId, Uid>,
    /// The write that is under way.
    pub(super) writing: Option<Writing>,
    /// The budget is being read again.
    pub(super) rereading: Option<Rereading>,
    /// A list of the pods is under way.
    pub(super) looking: Option<Look>,
    /// The last list of the pods.
    pub(super) looked: Option<Look>,
    /// The version of that list.
    pub(super) looked_version: Version,
    /// Reads under way of what says how many groups there should be, and those that came back.
    pub(super) sources_reading: BTreeMap<Source, Look>,
    pub(super) sources_read: BTreeMap<Source, Look>,
    /// Since when the pods here are older than the budget asks for.
    behind_since: Option<Time>,
    /// Since when there are claims that have come to their end.
    pub(super) ended_since: Option<Time>,
    /// A pod whose token is due is being read.
    pub(super) expiring: Option<Uid>,
    /// When to read again, after such a read showed that the watch will tell.
    pub(super) expire_after: Option<Time>,
    /// How far the opening of the budget has come.
    pub(super) opening: Option<Opening>,
}

/// A token that a budget is to be told of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Join {
    pub(super) uid: Uid,
    pub(super) pod: Text,
    pub(super) what: Token,
    /// The acknowledgement of the budget waits for it.
    pub(super) binding: bool,
}

/// What a write under way carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Writing {
    /// The budget that it is for, not one of the same name before or after.
    pub(super) budget: Uid,
    /// It opens the budget.
    pub(super) opens: bool,
    /// The number that it tests, if it does.
    pub(super) number: Option<u64>,
    pub(super) asks: Vec<Written>,
    pub(super) joins: Vec<TokenId>,
    pub(super) withdrawals: Vec<TokenId>,
}

/// What a budget is read again for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rereading {
    pub(super) writing: Writing,
    /// The budget that was known when the read was sent: that there was none then says nothing of a later one.
    pub(super) uid: Option<Uid>,
}

/// A request that is being written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Written {
    pub(super) ask: AskId,
    pub(super) uid: Uid,
    pub(super) token: TokenId,
    /// What is said of it when it is written.
    pub(super) consent: Consent,
}

/// A list of a budget's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Look {
    /// The number of the ledger that was known when it was sent.
    pub(super) number: u64,
    /// When it was sent, by the replica's own count.
    sequence: u64,
    /// What the budget covered then: a list of other pods says nothing of those that it covers now.
    pub(super) coverage: Option<u64>,
}

impl Look {
    pub(super) fn new(number: u64, sequence: u64, coverage: Option<u64>) -> Self {
        Self { number, sequence, coverage }
    }

    /// Whether it was sent after a request arrived and after this number of the ledger was read.
    pub(super) fn is_of(&self, number: u64, arrived: u64) -> bool {
        self.number == number && self.sequence >= arrived
    }
}

impl Desk {
    /// Every look that was sent and may still be used.
    pub(super) fn looks_mut(&mut self) -> impl Iterator<Item = &mut Look> {
        let pods = [&mut self.looked, &mut self.looking].into_iter().flatten();
        pods.chain(self.sources_read.values_mut()).chain(self.sources_reading.values_mut())
    }

    /// Nothing to do and nothing to wait for.
    fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.joins.is_empty()
            && self.withdrawals.is_empty()
            && self.writing.is_none()
            && self.rereading.is_none()
    }

    /// Feeds what can still matter into a hasher: when the budget was first seen only until it is open, a list only
    /// while somebody waits who had asked before it was sent, its version only if it is ahead of the watch.
    pub(super) fn fingerprint(
        &self,
        closed: bool,
        first_ask: Option<u64>,
        watched: Version,
        state: &mut impl std::hash::Hasher,
    ) {
        use std::hash::Hash;
        let looked = self.looked.filter(|look| first_ask.is_some_and(|first| first <= look.sequence));
        (self.coverage, closed.then_some(self.seen_at), &self.queue, &self.joins).hash(state);
        (&self.withdrawals, &self.writing, &self.rereading, &self.looking, looked).hash(state);
        (self.looked_version.max(watched), self.behind_since, &self.expiring).hash(state);
        (self.expire_after, &self.opening, self.ended_since).hash(state);
        (&self.sources_reading, &self.sources_read).hash(state);
    }
}

impl Replica {
    /// Looks at every desk that something happened to.
    pub(super) fn work_desks(&mut self) {
        // Asks that wait for newer pods are woken by any news of pods.
        let behind: Vec<BudgetKey> = self
            .busy
            .iter()
            .filter(|key| self.desks.get(*key).is_some_and(|desk| desk.behind_since.is_some()))
            .cloned()
            .collect();
        self.due.extend(behind);
        while let Some(key) = self.due.pop_first() {
            self.work_desk(&key);
            let tended = self.needs_tending(&key);
            match self.desks.get(&key) {
                Some(desk) if !desk.is_idle() || tended => {
                    self.busy.insert(key);
                }
                Some(desk) if desk.coverage.is_none() => {
                    self.desks.remove(&key);
                    self.busy.remove(&key);
                }
                _ => {
                    self.busy.remove(&key);
                }
            }
        }
    }

    fn work_desk(&mut self, key: &BudgetKey) {
        let Some(desk) = self.desks.get(key) else { return };
        if desk.writing.is_some() || desk.rereading.is_some() {
            return;
        }
        let Some(budget) = self.engine.budget(key) else {
            self.close_desk(key);
            return;
        };
        let budget = budget.clone();
        if self.gathers(key) {
            return;
        }
        if !self.write(key, &budget) && self.holder {
            self.tend(key, &budget);
        }
    }

    /// Whether the requests at a desk wait for others. Nothing else does: what is to be joined or withdrawn takes them
    /// along at once.
    fn gathers(&mut self, key: &BudgetKey) -> bool {
        let Some(desk) = self.desks.get(key) else { return false };
        let alone = desk.joins.is_empty() && desk.withdrawals.is_empty();
        let Some(until) = desk.crowd.waits_until(&self.settings).filter(|_| alone && !desk.queue.is_empty())
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
    fn close_desk(&mut self, key: &BudgetKey) {
        let Some(desk) = self.desks.get_mut(key) else { return };
        let waiting = std::mem::take(&mut desk.queue);
        desk.crowd.part();
        desk.joins.clear();
        desk.withdrawals.clear();
        desk.looking = None;
        desk.sources_reading.clear();
        desk.sources_read.clear();
        desk.behind_since = None;
        self.unjoined.remove(key);
        for id in waiting {
            self.proceed(id);
        }
    }

    /// Decides whoever waits and starts the next write; returns whether there is one.
    fn write(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let mut draft = Draft { ledger: budget.ledger.clone(), writing: Writing::default() };
        let Some(desk) = self.desks.get_mut(key) else { return false };
        let joins = std::mem::take(&mut desk.joins);
        let withdrawals = std::mem::take(&mut desk.withdrawals);
        let whole_claim = self.settings.without.contains(&Rule::WithdrawOnlyOwn);
        for (token, uid) in &withdrawals {
            if whole_claim {
                draft.ledger.claims.remove(uid);
            } else {
                draft.remove(uid, token);
            }
        }
        for (token, join) in &joins {
            // A pod that is gone needs no claim.
            if self.engine.knows(&join.uid) {
                draft.add(&join.uid, &join.pod, token, &join.what);
            }
        }
        draft.writing.withdrawals = withdrawals.keys().cloned().collect();
        draft.writing.joins = joins.keys().cloned().collect();
        self.decide_waiting(key, budget, &mut draft);
        if draft.ledger == budget.ledger {
            // What there was to join or withdraw is there, or gone, already.
            self.joined(key);
            return false;
        }
        let Some(desk) = self.desks.get_mut(key) else { return false };
        desk.joins.extend(joins);
        desk.withdrawals.extend(withdrawals);
        desk.crowd.were_written(draft.writing.asks.len(), self.now);
        let settled = self.take_along(key, budget, &mut draft.ledger);
        let steps = self.commit_steps(budget, &mut draft, settled);
        self.start_write(key, steps, draft.writing);
        true
    }

    /// Decides the requests at a desk, one after the other, each on what the earlier ones leave.
    fn decide_waiting(&mut self, key: &BudgetKey, budget: &Budget, draft: &mut Draft) {
        let Some(desk) = self.desks.get_mut(key) else { return };
        if desk.queue.is_empty() {
            desk.behind_since = None;
            return;
        }
        if self.is_behind(key, budget) {
            return;
        }
        let Some(desk) = self.desks.get_mut(key) else { return };
        let waiting = std::mem::take(&mut desk.queue);
        desk.crowd.part();
        let (mut unseen, mut unsourced) = (VecDeque::new(), VecDeque::new());
        self.imagine(budget, draft);
        for id in waiting {
            let Some(ask) = self.asks.get(&id).cloned() else { continue };
            let Some(uid) = &ask.uid else { continue };
            let held = draft.ledger.holds(uid);
            let answer = if held && self.without(Rule::DecideAfresh) {
                Ok(Ground::Surplus)
            } else {
                self.engine.decide_one(key, &ask.request, uid, self.now)
            };
            match answer {
                Err(block) => self.finish(id, Verdict::Deny(vec![block])),
                Ok(ground) if ground.needs_fresh_eyes() && !self.sees_clearly(key, budget, ask.sequence) => {
                    unseen.push_back(id);
                }
                Ok(Ground::Surge) if !self.sees_source(key, budget, uid, ask.sequence) => {
                    self.read_source(key, budget, uid);
                    unsourced.push_back(id);
                }
                Ok(ground) => {
                    let watches = matches!(ground, Ground::PassesBy | Ground::Observed);
                    let consent = Consent { budget: budget.uid.clone(), ground };
                    if !ask.request.dry_run && !watches {
                        draft.add(uid, &ask.request.pod.name, &ask.token, &ask.token(self.now));
                        draft.writing.asks.push(Written {
                            ask: id,
                            uid: uid.clone(),
                            token: ask.token.clone(),
                            consent,
                        });
                        self.imagine(budget, draft);
                    } else {
                        if let Some(ask) = self.asks.get_mut(&id) {
                            ask.committed.insert(key.clone(), consent);
                        }
                        self.go_on(id);
                    }
                }
            }
        }
        if !unseen.is_empty() {
            self.look(key, budget);
        }
        if let Some(desk) = self.desks.get_mut(key) {
            unseen.append(&mut unsourced);
            unseen.append(&mut desk.queue);
            desk.queue = unseen;
        }
    }

    /// Whether the pods here are too old to decide on the budget.
    fn is_behind(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let seen = self.engine.pods_version();
        let waits = !self.without(Rule::WaitForSettled);
        let (now, patience) = (self.now, self.settings.patience);
        let Some(desk) = self.desks.get_mut(key) else { return false };
        if !waits || seen.max(desk.looked_version) >= budget.ledger.settled {
            desk.behind_since = None;
            return false;
        }
        let since = *desk.behind_since.get_or_insert(now);
        if now >= since.after(patience) {
            self.look(key, budget);
        }
        true
    }

    /// Whether the pods were listed after the request arrived and after the number was read that the write will test.
    fn sees_clearly(&self, key: &BudgetKey, budget: &Budget, arrived: u64) -> bool {
        if self.without(Rule::FreshEyes) {
            return true;
        }
        let Some(look) = self.desks.get(key).and_then(|desk| desk.looked) else { return false };
        let any_number = self.without(Rule::FreshEyesAfterNumber);
        let number = if any_number { look.number } else { budget.ledger.number };
        look.is_of(number, arrived)
    }

    fn look(&mut self, key: &BudgetKey, budget: &Budget) {
        let Some(desk) = self.desks.get_mut(key) else { return };
        if desk.looking.is_none() {
            let coverage = desk.coverage;
            desk.looking = Some(Look::new(budget.ledger.number, self.sequence, coverage));
            self.call(Call::ListPods(key.clone()), Purpose::Look(key.clone(), coverage));
        }
    }

    /// Lets the engine see the budget as it will be after the write.
    fn imagine(&mut self, budget: &Budget, draft: &Draft) {
        let imagined = Budget { ledger: draft.ledger.clone(), ..budget.clone() };
        let changes = self.engine.apply(Input::Budget(imagined), self.now);
        self.note_changes(changes);
    }

    /// The steps that turn the ledger of a budget into the draft's, with what is settled on the way.
    fn commit_steps(&self, budget: &Budget, draft: &mut Draft, settled: Option<Version>) -> Vec<Step> {
        let old = &budget.ledger;
        let mut steps = self.preamble(budget);
        if !self.without(Rule::TestGeneration) {
            steps.push(Step::TestGeneration(budget.generation));
        }
        if !self.without(Rule::TestNumber) {
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
        if self.without(Rule::TestUid) { Vec::new() } else { vec![Step::TestUid(budget.uid.clone())] }
    }

    pub(super) fn start_write(&mut self, key: &BudgetKey, steps: Vec<Step>, mut writing: Writing) {
        if let Some(budget) = self.engine.budget(key) {
            writing.budget = budget.uid.clone();
        }
        if let Some(desk) = self.desks.get_mut(key) {
            desk.writing = Some(writing);
        }
        let patch = LedgerPatch { budget: key.clone(), steps };
        self.call(Call::Patch(patch), Purpose::Write(key.clone()));
    }
}

/// A ledger as it is to be, and what that carries out.
struct Draft {
    ledger: Ledger,
    writing: Writing,
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
