//! Commits: decides the requests that wait for a budget, one after the other, and writes their tokens in one patch.

use std::collections::{BTreeMap, VecDeque};

use super::Replica;
use crate::SafetyRule;
use crate::basics::{Text, Uid, Version};
use crate::claims::{Claim, Ledger, MAX_BACKFILL_BYTES, PROTOCOL, Token, TokenId};
use crate::decide::Passes;
use crate::decision::{AllowReason, Decision};
use crate::facts::{Budget, BudgetKey, Operation, Pod};
use crate::ledger::lists::{Lag, ReadStamp};
use crate::ledger::messages::{Call, RequestId};
use crate::ledger::outbox::Purpose;
use crate::ledger::patch::{LedgerPatch, Step};
use crate::ledger::queue::{Backfill, PendingWrite, WrittenRequest};
use crate::ledger::requests::Agreement;
use crate::ledger::settings::ProtocolRule;
use crate::ledger::settle;

impl Replica {
    /// Runs the queue of every budget that something happened to.
    pub(super) fn run_queues(&mut self) {
        // Requests that wait for newer pods are woken by any news of pods.
        let states = &self.budgets.states;
        let is_behind = |key: &BudgetKey| states.get(key).is_some_and(|state| state.lists.is_behind());
        self.budgets.work.add_busy(is_behind);
        while let Some(key) = self.budgets.work.pop() {
            self.run_queue(&key);
            let needs_leader = self.needs_leader(&key);
            match self.budgets.states.get(&key) {
                Some(state) if !state.queue.is_idle() || needs_leader => {
                    self.budgets.work.looked_at(key, true);
                }
                state => {
                    if state.is_some_and(|state| state.coverage.is_none()) {
                        self.budgets.states.remove(&key);
                    }
                    self.budgets.work.looked_at(key, false);
                }
            }
        }
    }

    fn run_queue(&mut self, key: &BudgetKey) {
        if self.budgets.states.get(key).is_none_or(|state| state.queue.is_busy()) {
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
        if !self.commit(key, &budget) && self.process.leads {
            self.lead(key, &budget);
        }
    }

    /// Whether the requests of a budget wait for others.
    fn is_batching(&mut self, key: &BudgetKey) -> bool {
        let state = self.budgets.states.get(key);
        let until = state.and_then(|state| state.queue.batch_until(&self.settings));
        let Some(until) = until.filter(|until| self.process.now < *until) else { return false };
        self.budgets.work.wake_at(until);
        true
    }

    /// The budget is gone: the requests that waited for it are decided again without it.
    fn close_queue(&mut self, key: &BudgetKey) {
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let waiting = state.queue.take_waiting();
        state.queue.drop_tokens();
        state.lists.close();
        self.acknowledgements.backfilled(key);
        for id in waiting {
            self.decide(id);
        }
    }

    /// Decides the waiting requests and starts the next write; returns whether there is one.
    fn commit(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let Some(state) = self.budgets.states.get_mut(key) else { return false };
        let tokens = state.queue.take_tokens(self.process.now, self.settings.recent_for);
        let mut draft = Draft { ledger: budget.ledger.clone(), write: PendingWrite::default() };
        let whole_claim = self.is_without(ProtocolRule::WithdrawOnlyOwn);
        for (token, uid) in &tokens.withdrawals {
            if whole_claim {
                draft.ledger.claims.remove(uid);
            } else {
                draft.remove(uid, token);
            }
        }
        draft.write.withdrawals = tokens.withdrawals.keys().cloned().collect();
        let mut bytes = if tokens.backfills.is_empty() { 0 } else { draft.ledger.claim_bytes() };
        for (token, Backfill { uid, pod, what, .. }) in &tokens.backfills {
            if self.needs_claim(uid, what) {
                // The others wait until claims are settled: a status that is too large cannot be written at all.
                if bytes >= MAX_BACKFILL_BYTES {
                    continue;
                }
                bytes += add_token(&mut draft.ledger, uid, pod, token, what);
            }
            draft.write.backfills.insert(token.clone());
        }
        self.decide_waiting(key, budget, &mut draft);
        if draft.ledger == budget.ledger {
            // The tokens to add are there already, unless they wait for room, and those to remove are gone.
            if let Some(state) = self.budgets.states.get_mut(key) {
                state.queue.wait_for_room(tokens, &draft.write.backfills);
            }
            self.check_backfilled(key);
            return false;
        }
        // Requests that arrive during the write count it.
        self.engine.set_draft(key, &draft.ledger);
        let now = self.process.now;
        let Some(state) = self.budgets.states.get_mut(key) else { return false };
        state.queue.start_commit(draft.write.requests.len(), tokens, now);
        let settled = self.settle_with_commit(key, budget, &mut draft.ledger);
        let steps = self.commit_steps(budget, &mut draft, settled);
        self.start_write(key, steps, draft.write);
        true
    }

    /// Whether an admitted disruption of a pod may still come: a pod that is terminating, ended or gone needs no claim, nor
    /// does one that was relabelled.
    pub(super) fn needs_claim(&self, uid: &str, what: &Token) -> bool {
        let ends = |pod: &Pod| pod.terminating || pod.phase.is_terminal() || self.is_relabelled(pod, what);
        self.engine.knows(uid) && !self.engine.pod_by_uid(uid).is_some_and(ends)
    }

    /// Whether a token is of a relabel that is over.
    pub(super) fn is_relabelled(&self, pod: &Pod, what: &Token) -> bool {
        what.operation == Operation::Relabel && settle::is_relabel_over(what, pod, &self.settings)
    }

    /// Decides the waiting requests one after the other, each on what the earlier ones leave.
    fn decide_waiting(&mut self, key: &BudgetKey, budget: &Budget, draft: &mut Draft) {
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        if !state.queue.has_waiting() {
            state.lists.not_behind();
            return;
        }
        if self.is_behind(key, budget) {
            return;
        }
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let waiting = state.queue.take_waiting();
        let (mut need_list, mut need_source, mut replan) = (VecDeque::new(), VecDeque::new(), Vec::new());
        // Each request counts those that are written with it.
        self.engine.set_draft(key, &draft.ledger);
        for id in waiting {
            let Some(pending) = self.requests.get(id).cloned() else { continue };
            let Some(uid) = pending.uid() else { continue };
            let inherits = draft.ledger.holds(uid) && self.is_without(ProtocolRule::DecideAfresh);
            let decided = match inherits {
                true => Ok(Passes { reason: AllowReason::Surplus, needs_list: false, is_unlisted: false }),
                false => self.engine.review_one(key, pending.request(), uid, self.process.now),
            };
            match decided {
                Err(denial) => self.answer(id, Decision::Deny(vec![denial])),
                // A list that was sent after the request arrived may still be older than the pod that was read for it.
                Ok(Passes { is_unlisted: true, .. }) => need_list.push_back(id),
                Ok(Passes { needs_list: true, .. })
                    if !self.has_fresh_list(key, budget, pending.arrived()) =>
                {
                    need_list.push_back(id);
                }
                Ok(Passes { reason: AllowReason::Surge, .. })
                    if !self.has_fresh_source(key, budget, uid, pending.arrived()) =>
                {
                    self.read_source(key, budget, uid);
                    need_source.push_back(id);
                }
                Ok(Passes { reason, .. }) => {
                    let agreement = Agreement { budget: budget.uid.clone(), pod: uid.clone(), reason };
                    if pending.request().dry_run {
                        self.agreed(id, key, agreement);
                        continue;
                    }
                    // The budget has changed since the request was planned. It gets no token, so it has not agreed.
                    if reason.only_observes() {
                        replan.push(id);
                        continue;
                    }
                    let token = pending.token_id().clone();
                    let (pod, what) = (&pending.request().pod.name, pending.token(self.process.now));
                    add_token(&mut draft.ledger, uid, pod, &token, &what);
                    self.engine.add_to_draft(key, uid, |ledger| add_token(ledger, uid, pod, &token, &what));
                    let written = WrittenRequest { request: id, uid: uid.clone(), token, agreement };
                    draft.write.requests.push(written);
                }
            }
        }
        if !need_list.is_empty() {
            self.list_pods(key, budget);
        }
        if let Some(state) = self.budgets.states.get_mut(key) {
            need_list.append(&mut need_source);
            state.queue.put_back(need_list);
        }
        replan.into_iter().for_each(|id| self.decide(id));
    }

    /// A budget agrees to a request.
    pub(super) fn agreed(&mut self, id: RequestId, key: &BudgetKey, agreement: Agreement) {
        if let Some(pending) = self.requests.get_mut(id) {
            pending.agree(key.clone(), agreement);
        }
        self.advance(id);
    }

    /// Whether the pods here are too old to decide on the budget.
    fn is_behind(&mut self, key: &BudgetKey, budget: &Budget) -> bool {
        let (watched, needed) = (self.engine.pods_version(), budget.ledger.settled);
        let waits = !self.is_without(ProtocolRule::WaitForSettled);
        let Some(state) = self.budgets.states.get_mut(key) else { return false };
        if !waits {
            state.lists.not_behind();
            return false;
        }
        let lag = state.lists.lag(watched, needed, self.process.now, self.settings.patience);
        if lag == Lag::Overdue {
            self.list_pods(key, budget);
        }
        lag != Lag::None
    }

    /// Whether the pods were listed after the request arrived and after the number was read that the write will test.
    fn has_fresh_list(&self, key: &BudgetKey, budget: &Budget, arrived: u64) -> bool {
        if self.is_without(ProtocolRule::FreshList) {
            return true;
        }
        let any_number = self.is_without(ProtocolRule::FreshListAfterNumber);
        let number = (!any_number).then_some(budget.ledger.number);
        self.budgets.states.get(key).is_some_and(|state| state.lists.has_fresh_list(number, arrived))
    }

    fn list_pods(&mut self, key: &BudgetKey, budget: &Budget) {
        let arrived = self.requests.arrived();
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let coverage = state.coverage;
        if state.lists.start_list(ReadStamp::new(budget.ledger.number, arrived, coverage)) {
            self.outbox.call(Call::ListPods(key.clone()), Purpose::ListPods(key.clone(), coverage));
        }
    }

    /// Whether the source of a surge group was read after the request arrived and after the number was read that the write
    /// will test. Where no object says how many groups there should be, there is nothing to read.
    fn has_fresh_source(&self, key: &BudgetKey, budget: &Budget, uid: &str, arrived: u64) -> bool {
        if SafetyRule::SurgeIsRead.is_left_out() {
            return true;
        }
        let Some(source) = self.engine.source_of(uid, key) else { return true };
        let state = self.budgets.states.get(key);
        state.is_some_and(|state| state.lists.has_fresh_source(&source, budget.ledger.number, arrived))
    }

    fn read_source(&mut self, key: &BudgetKey, budget: &Budget, uid: &str) {
        let arrived = self.requests.arrived();
        let Some(source) = self.engine.source_of(uid, key) else { return };
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        let stamp = ReadStamp::new(budget.ledger.number, arrived, state.coverage);
        if state.lists.start_source(source.clone(), stamp) {
            let call = Call::GetController(source.0.clone(), source.1.clone());
            self.outbox.call(call, Purpose::ReadSource(key.clone(), source));
        }
    }

    /// Tests that the rules of a budget are those that were decided on.
    pub(super) fn test_rules(&self, budget: &Budget) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.is_without(ProtocolRule::TestGeneration) {
            steps.push(Step::TestGeneration(budget.generation));
        }
        if !budget.annotations.values.is_empty() && !self.is_without(ProtocolRule::TestAnnotations) {
            steps.push(Step::TestAnnotations(budget.annotations.clone()));
        }
        steps
    }

    /// The steps that turn the ledger of a budget into the draft's, with what is settled on the way.
    fn commit_steps(&self, budget: &Budget, draft: &mut Draft, settled: Option<Version>) -> Vec<Step> {
        let old = &budget.ledger;
        let mut steps = self.preamble(budget);
        steps.extend(self.test_rules(budget));
        if !self.is_without(ProtocolRule::TestNumber) {
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
        draft.write.number = Some(old.number);
        steps
    }

    /// Every write tests that it changes the budget that was decided on.
    pub(super) fn preamble(&self, budget: &Budget) -> Vec<Step> {
        if self.is_without(ProtocolRule::TestUid) {
            Vec::new()
        } else {
            vec![Step::TestUid(budget.uid.clone())]
        }
    }

    pub(super) fn start_write(&mut self, key: &BudgetKey, steps: Vec<Step>, mut write: PendingWrite) {
        if let Some(budget) = self.engine.budget(key) {
            write.budget = budget.uid.clone();
        }
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.queue.start(write);
        }
        let patch = LedgerPatch { budget: key.clone(), steps };
        self.outbox.call(Call::Patch(patch), Purpose::Write(key.clone()));
    }
}

/// A ledger as a write makes it, and that write.
struct Draft {
    ledger: Ledger,
    write: PendingWrite,
}

impl Draft {
    fn remove(&mut self, uid: &Uid, token: &TokenId) {
        if let Some(claim) = self.ledger.claims.get_mut(uid) {
            claim.tokens.remove(token);
            if claim.tokens.is_empty() {
                self.ledger.claims.remove(uid);
            }
        }
    }
}

/// Adds a token, and returns by how many bytes the claims grow.
fn add_token(ledger: &mut Ledger, uid: &Uid, pod: &Text, token: &TokenId, what: &Token) -> usize {
    let before = ledger.claims.get(uid).map_or(0, |claim| claim.bytes(uid));
    let claim = ledger.claims.entry(uid.clone());
    let claim = claim.or_insert_with(|| Claim { pod: pod.clone(), tokens: BTreeMap::new() });
    claim.tokens.entry(token.clone()).or_insert_with(|| what.clone());
    claim.bytes(uid) - before
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
