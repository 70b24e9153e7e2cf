//! The replica: routes each event to the machines, and collects what they want done.
//!
//! The machines are the other files of `ledger`; each has private state and tests of its own. Here they meet the engine:
//! - `admit`: from a request to its answer.
//! - `commit`: decides the requests that wait for a budget, and writes their tokens.
//! - `replies`: what came of a write or of a list.
//! - `lead`: what the leader does for every budget: settle, expire, open.

mod admit;
mod commit;
mod lead;
mod replies;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::basics::{Text, Time, Uid, Version};
use crate::coverage::Coverage;
use crate::engine::{Changes, Engine, Gates, Snapshot};
use crate::facts::{Budget, BudgetKey, BudgetKind, Input};
use crate::ledger::claim_index::ClaimIndex;
use crate::ledger::freshness::Freshness;
use crate::ledger::lists::FreshLists;
use crate::ledger::messages::{Event, Output, ReplicaLease};
use crate::ledger::opening::{Acknowledgements, Opening};
use crate::ledger::outbox::Outbox;
use crate::ledger::patch::{LedgerPatch, Step};
use crate::ledger::queue::CommitQueue;
use crate::ledger::reads::ConsistentReads;
use crate::ledger::recent::RecentAdmissions;
use crate::ledger::requests::PendingRequests;
use crate::ledger::settings::{ProtocolRule, Settings};
use crate::ledger::settle::Settlement;
use crate::status::Status;

/// One process of many that decide together.
#[derive(Clone, Debug)]
pub struct Replica {
    settings: Settings,
    engine: Engine,
    process: Process,
    requests: PendingRequests,
    reads: ConsistentReads,
    budgets: Budgets,
    claims: ClaimIndex,
    recent: RecentAdmissions,
    acknowledgements: Acknowledgements,
    outbox: Outbox,
}

/// What this process is, and the time.
#[derive(Clone, Debug)]
struct Process {
    now: Time,
    freshness: Freshness,
    /// Whether it holds the Lease that makes it settle, expire and open.
    leads: bool,
    /// What the last list of replicas showed, for the mutation that takes it for the truth.
    last_replicas: Option<Vec<ReplicaLease>>,
}

/// The machines of one budget.
#[derive(Clone, Debug, Default)]
struct BudgetState {
    /// What the budget covers, as this replica last saw it. `None` once the budget is gone.
    coverage: Option<Coverage>,
    queue: CommitQueue,
    lists: FreshLists,
    settlement: Settlement,
    opening: Opening,
}

/// All budgets, and those to look at.
#[derive(Clone, Debug, Default)]
struct Budgets {
    states: BTreeMap<BudgetKey, BudgetState>,
    /// To be looked at in this step.
    due: BTreeSet<BudgetKey>,
    /// With something to do or to wait for: looked at whenever time passes.
    busy: BTreeSet<BudgetKey>,
    /// When batch windows close.
    wakes: BTreeSet<Time>,
}

impl Replica {
    /// A replica that knows nothing and decides nothing yet.
    pub fn new(settings: Settings, gates: Gates) -> Self {
        let mut engine = Engine::new(gates);
        engine.open_all = settings.is_without(ProtocolRule::ClosedDenies);
        engine.coverage_by_uid = settings.is_without(ProtocolRule::ReopenOnCoverage);
        let process =
            Process { now: Time(i64::MIN), freshness: Freshness::new(), leads: false, last_replicas: None };
        Self {
            requests: PendingRequests::new(settings.name.clone()),
            settings,
            engine,
            process,
            reads: ConsistentReads::default(),
            budgets: Budgets::default(),
            claims: ClaimIndex::default(),
            recent: RecentAdmissions::default(),
            acknowledgements: Acknowledgements::default(),
            outbox: Outbox::default(),
        }
    }

    /// What it knows.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether a budget is closed: then other replicas wait for the acknowledgement of this one.
    pub fn has_closed_budgets(&self) -> bool {
        self.acknowledgements.has_closed_budgets()
    }

    /// The status of a budget as it should be written now.
    pub fn status(&mut self, key: &BudgetKey, now: Time) -> Option<Status> {
        self.engine.status(key, now)
    }

    /// The status of a budget as it is once a write of the leader is done, so that the same write can carry it. What a write
    /// that opens the budget changes is not known before it is done.
    pub fn status_with(&mut self, patch: &LedgerPatch, now: Time) -> Option<Status> {
        let opens = patch.steps.iter().any(|step| matches!(step, Step::SetEnforced(_)));
        if !self.process.leads || opens {
            return None;
        }
        let mut status = self.engine.status(&patch.budget, now)?;
        // The draft has the tokens that the write adds, and still has those that it removes.
        let is_removed = |uid: &Uid| {
            patch.steps.iter().any(|step| matches!(step, Step::RemoveClaim(removed) if removed == uid))
        };
        let claims = &self.engine.ledger(&patch.budget)?.claims;
        let left: BTreeSet<&Text> =
            claims.iter().filter(|(uid, _)| !is_removed(uid)).map(|(_, claim)| &claim.pod).collect();
        for pods in [&mut status.disrupted, &mut status.updating] {
            pods.retain(|(pod, _)| left.contains(pod));
        }
        Some(status)
    }

    /// The status that a budget would have if it were there now.
    pub fn preview(&mut self, budget: Budget, now: Time) -> Option<Status> {
        self.engine.preview(budget, now)
    }

    /// How long the pod watch has shown nothing.
    pub fn silence(&self, now: Time) -> Duration {
        self.process.freshness.silence(now)
    }

    /// How long the pod watch has shown nothing, if that is too long to decide anything.
    pub fn stale_for(&self, now: Time) -> Option<Duration> {
        self.process.freshness.stale_for(now, self.settings.fresh_for)
    }

    /// Whether it admitted nothing recently that a new budget would have to know.
    pub fn admitted_nothing_recently(&self) -> bool {
        self.recent.is_empty()
    }

    /// Takes the budgets whose status may have changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        self.outbox.take_changes()
    }

    /// When the next batch window closes: the next tick is due then.
    pub fn wakes_at(&self) -> Option<Time> {
        self.budgets.wakes.first().copied()
    }

    /// Whether a budget has claims, written or being written: then its status changes again soon.
    pub fn has_claims(&self, key: &BudgetKey) -> bool {
        self.engine.ledger(key).is_some_and(|ledger| !ledger.claims.is_empty())
    }

    /// Feeds everything that its future depends on into a hasher, and nothing else, so that a search can tell states apart.
    pub fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.engine.fingerprint(state);
        let Process { now, freshness, leads, last_replicas } = &self.process;
        (now, freshness, leads, last_replicas).hash(state);
        (&self.requests, &self.reads, &self.recent).hash(state);
        self.acknowledgements.fingerprint(state);
        self.outbox.fingerprint(state);
        self.claims.fingerprint(|uid| self.engine.knows(uid), state);
        (&self.budgets.due, &self.budgets.busy).hash(state);
        for (key, budget) in &self.budgets.states {
            let closed = self.engine.budget(key).is_some_and(|known| self.is_closed(key, known));
            (key, budget.coverage, &budget.settlement).hash(state);
            budget.queue.fingerprint(state);
            budget.lists.fingerprint(self.requests.first_arrived(), self.engine.pods_version(), state);
            budget.opening.fingerprint(closed, state);
        }
    }

    /// Takes an event in, and returns what is to be done.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Output> {
        self.process.now = self.process.now.max(now);
        match event {
            Event::Fact(input) => self.take_fact(*input),
            Event::List(snapshot) => self.take_list(snapshot),
            Event::BudgetsAt(kind, version) => self.acknowledgements.saw(kind, version),
            Event::Unwatched(kind) => self.unwatched(kind),
            Event::Synced => self.process.freshness.synced(self.process.now),
            Event::Serving(serving) => self.process.freshness.set_serving(serving),
            Event::Leader(leads) => {
                self.process.leads = leads;
                self.budgets.due.extend(self.budgets.states.keys().cloned());
            }
            Event::Request { id, request, deadline } => self.receive(id, *request, deadline),
            Event::Reply(id, reply) => self.reply(id, reply),
            Event::Tick => {
                let now = self.process.now;
                self.budgets.wakes.retain(|wake| *wake > now);
                self.budgets.due.extend(self.budgets.busy.iter().cloned());
            }
        }
        self.run();
        self.outbox.take_outputs()
    }

    /// Does everything that can go on now.
    fn run(&mut self) {
        let now = self.process.now;
        let changes = self.engine.advance(now);
        self.outbox.changed(changes);
        self.recent.forget(now, self.settings.recent_for);
        self.reads.forget(now);
        self.deny_late_requests();
        self.run_queues();
        let changes = self.engine.advance(now);
        self.outbox.changed(changes);
        if self.process.freshness.may_acknowledge()
            && let Some(acknowledged) = self.acknowledgements.next()
        {
            self.outbox.acknowledge(acknowledged);
        }
    }

    fn is_without(&self, rule: ProtocolRule) -> bool {
        self.settings.is_without(rule)
    }

    fn apply(&mut self, input: Input) {
        let changes = self.engine.apply(input, self.process.now);
        self.outbox.changed(changes);
    }

    fn take_fact(&mut self, input: Input) {
        match &input {
            Input::Pod(pod) => {
                self.process.freshness.pod_event(self.process.now);
                let uid = pod.uid.clone();
                self.wake_claims_of(&uid);
            }
            Input::PodsAt(_) => self.process.freshness.pod_event(self.process.now),
            Input::PodGone(uid, version) => {
                self.process.freshness.pod_event(self.process.now);
                let (uid, version) = (uid.clone(), *version);
                self.pod_gone(&uid, version);
            }
            Input::Budget(budget) => {
                let budget = budget.clone();
                self.acknowledgements.saw(budget.key.kind, budget.version);
                self.take_budget(budget);
                return;
            }
            Input::BudgetGone(key) => {
                let key = key.clone();
                self.forget_budget(&key);
            }
            _ => {}
        }
        self.apply(input);
    }

    fn take_list(&mut self, snapshot: Snapshot) {
        match snapshot {
            Snapshot::Pods(pods, version) => {
                self.process.freshness.pod_event(self.process.now);
                let listed: BTreeSet<&Uid> = pods.iter().map(|pod| &pod.uid).collect();
                let missing = |uid: &&Uid| !listed.contains(uid) && self.engine.knows(uid);
                let gone: Vec<Uid> = self.claims.pods().filter(missing).cloned().collect();
                gone.iter().for_each(|uid| self.pod_gone(uid, version));
                self.sync(Snapshot::Pods(pods, version));
            }
            Snapshot::Budgets(kind, budgets) => {
                let listed: BTreeSet<&BudgetKey> = budgets.iter().map(|budget| &budget.key).collect();
                let known = self.engine.budgets().map(|budget| &budget.key);
                let gone: Vec<BudgetKey> =
                    known.filter(|key| key.kind == kind && !listed.contains(key)).cloned().collect();
                for key in gone {
                    self.forget_budget(&key);
                    self.apply(Input::BudgetGone(key));
                }
                budgets.into_iter().for_each(|budget| self.take_budget(budget));
            }
            other => self.sync(other),
        }
    }

    fn sync(&mut self, snapshot: Snapshot) {
        let changes = self.engine.sync(snapshot, self.process.now);
        self.outbox.changed(changes);
    }

    fn pod_gone(&mut self, uid: &Uid, version: Version) {
        self.claims.pod_gone(uid, version);
        self.wake_claims_of(uid);
    }

    fn wake_claims_of(&mut self, uid: &Uid) {
        self.budgets.due.extend(self.claims.budgets_of(uid).cloned());
    }

    /// Takes a budget in, from a watch or from the reply to a write or a read of this replica.
    fn take_budget(&mut self, budget: Budget) {
        let key = budget.key.clone();
        // Older than what is known, be it of the same budget or of one that had its name before.
        if self.engine.budget(&key).is_some_and(|known| budget.version < known.version) {
            return;
        }
        if self.engine.budget(&key).is_some_and(|known| known.uid != budget.uid) {
            self.forget_budget(&key);
        }
        let one_clock = self.is_without(ProtocolRule::ClockPerToken);
        self.claims.update(&budget, self.process.now, one_clock);
        self.budgets.due.insert(key.clone());
        let coverage = self.engine.coverage_of(&budget);
        let state = self.budgets.states.entry(key.clone()).or_default();
        let is_new = state.coverage.replace(coverage) != Some(coverage);
        if is_new {
            state.opening.restart(budget.version);
        }
        let closed = self.is_closed(&key, &budget);
        self.acknowledgements.set_closed(&key, closed);
        self.apply(Input::Budget(budget));
        if is_new {
            self.backfill(&key);
        }
    }

    /// What a budget covers, as this replica sees it now.
    fn coverage(&self, key: &BudgetKey) -> Option<Coverage> {
        self.budgets.states.get(key)?.coverage
    }

    /// Whether a budget denies everything because not every replica knows it.
    fn is_closed(&self, key: &BudgetKey, budget: &Budget) -> bool {
        budget.spec.is_ok() && budget.ledger.enforced != self.coverage(key)
    }

    /// Queues the tokens that a budget which is new here must get: those of recent admissions of pods that it covers.
    fn backfill(&mut self, key: &BudgetKey) {
        if self.is_without(ProtocolRule::BackfillOnOpening) {
            return;
        }
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        for (token, backfill) in self.recent.backfills(|uid| self.engine.covering(uid).contains(key)) {
            state.queue.backfill(token, backfill);
            self.acknowledgements.start_backfill(key);
        }
    }

    fn forget_budget(&mut self, key: &BudgetKey) {
        self.claims.remove(key);
        self.acknowledgements.remove(key);
        self.budgets.due.insert(key.clone());
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.coverage = None;
            state.opening.reset();
            state.queue.drop_tokens();
        }
    }

    /// Forgets the budgets of a kind that is not watched any more.
    fn unwatched(&mut self, kind: BudgetKind) {
        self.take_list(Snapshot::Budgets(kind, Vec::new()));
        if let Some(acknowledged) = self.acknowledgements.unwatched(kind) {
            self.outbox.acknowledge(acknowledged);
        }
    }
}
