//! The replica: routes each event to the machines, and collects what they want done.
//!
//! The machines are the other files of `ledger`; each has private state and tests of its own. Here they meet the engine:
//! - `admit`: from a request to its answer.
//! - `commit`: decides the requests that wait for a budget, and writes their tokens.
//! - `replies`: what came of a write or of a list.
//! - `lead`: what the leader does for every budget: settle, expire, open.
//! - `lower`: what the leader does with a `settledVersion` from another time.

mod admit;
mod commit;
mod lead;
mod lower;
mod replies;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::basics::{GroupKind, Text, Time, Uid, Version};
use crate::coverage::Coverage;
use crate::engine::{Changes, Engine, Gates, Snapshot};
use crate::facts::{Budget, BudgetKey, BudgetKind, Input};
use crate::ledger::claim_index::ClaimIndex;
use crate::ledger::freshness::Freshness;
use crate::ledger::lists::FreshLists;
#[cfg(feature = "mutations")]
use crate::ledger::messages::ReplicaLease;
use crate::ledger::messages::{Admission, Event, Output};
use crate::ledger::opening::{Acknowledgements, Opening, ReplicaLists};
use crate::ledger::outbox::Outbox;
use crate::ledger::patch::{LedgerPatch, Step};
use crate::ledger::queue::CommitQueue;
use crate::ledger::reads::ConsistentReads;
use crate::ledger::recent::RecentAdmissions;
use crate::ledger::requests::PendingRequests;
use crate::ledger::settings::{ProtocolRule, Settings};
use crate::ledger::settle::Settlement;
use crate::ledger::settled_ahead::SettledAhead;
use crate::ledger::work_queue::WorkQueue;
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
    #[cfg(feature = "mutations")]
    last_replicas: Option<Vec<ReplicaLease>>,
    /// What replicas that have ended handed over, as the last list of replicas showed it.
    handed_over: Vec<Admission>,
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
    work: WorkQueue,
    /// Kinds that are not watched any more. A reply to an earlier call must not bring back a budget of these.
    unwatched: BTreeSet<BudgetKind>,
    /// Kinds that were listed, and the version of the list is not known yet.
    listed: BTreeSet<BudgetKind>,
    /// The lists of the replicas, for the budgets that wait to be opened.
    replica_lists: ReplicaLists,
    /// The budgets that need newer pods than any that are known.
    ahead: SettledAhead,
}

impl Replica {
    /// A replica that knows nothing and decides nothing yet.
    pub fn new(settings: Settings, gates: Gates) -> Self {
        let mut engine = Engine::new(gates);
        let ages_count = !settings.is_without(ProtocolRule::StaleKindsDeny);
        engine.set_age_limit(if ages_count { settings.fresh_for } else { Duration::MAX });
        engine.leave_out(settings.left_out());
        let process = Process {
            now: Time(i64::MIN),
            freshness: Freshness::new(),
            leads: false,
            #[cfg(feature = "mutations")]
            last_replicas: None,
            handed_over: Vec::new(),
        };
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
        let opens = patch.steps.iter().any(|step| matches!(step, Step::SetEnforced(..)));
        if !self.process.leads || opens {
            return None;
        }
        let mut status = self.engine.status(&patch.budget, now)?;
        // The draft has the tokens that the write adds, and still has those that it removes.
        let steps = patch.steps.iter();
        let removed: BTreeSet<&Uid> = steps
            .filter_map(|step| match step {
                Step::RemoveClaim(uid) => Some(uid),
                _ => None,
            })
            .collect();
        if removed.is_empty() {
            return Some(status);
        }
        let claims = &self.engine.ledger(&patch.budget)?.claims;
        let left: BTreeSet<&Text> =
            claims.iter().filter(|(uid, _)| !removed.contains(uid)).map(|(_, claim)| &claim.pod).collect();
        for pods in [&mut status.disrupted, &mut status.updating] {
            pods.retain(|(pod, _)| left.contains(pod));
        }
        Some(status)
    }

    /// The status that a budget would have if it were there now.
    pub fn preview(&mut self, budget: Budget, now: Time) -> Option<Status> {
        self.engine.preview(budget, now)
    }

    /// How long the pod watch has shown nothing, if that is too long to decide anything.
    pub fn stale_for(&self, now: Time) -> Option<Duration> {
        self.process.freshness.stale_for(now, self.settings.fresh_for)
    }

    /// What it admitted recently and has not seen carried out. A new budget would have to know that, so a process that
    /// ends hands it over. Call it once no answer can be sent any more.
    pub fn admitted_recently(&self) -> Vec<Admission> {
        let is_over = |admission: &Admission| match self.engine.pod_by_uid(&admission.uid) {
            Some(pod) => {
                pod.terminating || pod.phase.is_terminal() || self.is_relabelled(pod, &admission.what)
            }
            None => !self.engine.knows(&admission.uid),
        };
        self.recent.iter().filter(|admission| !is_over(admission)).cloned().collect()
    }

    /// What it admitted recently, with the times, for a replica that takes its place in the same process.
    pub fn recent_admissions(&self) -> Vec<(Time, Admission)> {
        self.recent.timed().cloned().collect()
    }

    /// Takes over what an earlier replica of the same process admitted recently, oldest first: budgets that do not have
    /// these tokens get them. An update is left out if it was admitted for a version of its pod: after the store went
    /// back, the pod does not have that version, and the API server calls the webhook again.
    pub fn remember(&mut self, recent: Vec<(Time, Admission)>) {
        for (at, admission) in recent {
            if admission.what.target.base.is_none() {
                self.recent.add(admission, at);
            }
        }
    }

    /// Takes the budgets whose status may have changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        self.outbox.take_changes()
    }

    /// When the next batch window closes: the next tick is due then.
    pub fn wakes_at(&self) -> Option<Time> {
        self.budgets.work.next_wake()
    }

    /// Whether a budget has claims, written or being written: then its status changes again soon.
    pub fn has_claims(&self, key: &BudgetKey) -> bool {
        self.engine.ledger(key).is_some_and(|ledger| !ledger.claims.is_empty())
    }

    /// Feeds everything that its future depends on into a hasher, and nothing else, so that a search can distinguish states.
    pub fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.engine.fingerprint(state);
        let process = &self.process;
        (process.now, &process.freshness, process.leads, &process.handed_over).hash(state);
        #[cfg(feature = "mutations")]
        process.last_replicas.hash(state);
        self.budgets.replica_lists.fingerprint(state);
        (&self.requests, &self.reads, &self.recent).hash(state);
        self.budgets.ahead.fingerprint(self.engine.pods_version(), state);
        self.acknowledgements.fingerprint(state);
        self.outbox.fingerprint(state);
        self.claims.fingerprint(|uid| self.engine.knows(uid), state);
        self.budgets.work.fingerprint(state);
        (&self.budgets.unwatched, &self.budgets.listed).hash(state);
        for (key, budget) in &self.budgets.states {
            let closed = self.is_closed(key);
            (key, budget.coverage, &budget.settlement).hash(state);
            budget.queue.fingerprint(state);
            budget.lists.fingerprint(self.requests.first_arrived(), self.engine.pods_version(), state);
            budget.opening.fingerprint(closed, state);
        }
    }

    /// Takes an event in, and returns what is to be done.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Output> {
        self.process.now = self.process.now.max(now);
        // First: the server refuses a request at its deadline, so a reply that comes later must not admit it.
        self.deny_late_requests();
        match event {
            Event::Fact(input) => self.take_fact(*input),
            Event::List(snapshot) => self.take_list(snapshot),
            Event::Heard(kind, at) => self.heard(&kind, at.min(self.process.now)),
            Event::Doubted(kind) => self.engine.doubt(&kind),
            Event::Forgotten(kind) => self.engine.forget(&kind),
            Event::BudgetsAt(kind, version) => {
                self.acknowledgements.saw(kind, version);
                self.budgets.listed.remove(&kind);
            }
            Event::Unwatched(kind) => self.unwatched(kind),
            Event::Synced => self.synced(),
            Event::Serving(serving) => self.process.freshness.set_serving(serving),
            Event::Leader(leads) => {
                self.process.leads = leads;
                self.budgets.work.extend(self.budgets.states.keys().cloned());
            }
            Event::Request { id, request, deadline } => self.receive(id, *request, deadline),
            Event::Reply(id, reply) => self.reply(id, reply),
            Event::Tick => {
                let now = self.process.now;
                self.budgets.work.tick(now);
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
        self.run_queues();
        self.read_pods_version();
        self.list_replicas();
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

    /// Everything that happened to a kind up to this time is known.
    fn heard(&mut self, kind: &GroupKind, at: Time) {
        if is_pod(kind) {
            self.process.freshness.pod_event(at);
        } else {
            self.engine.heard(kind, at);
        }
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
                self.budgets.unwatched.remove(&budget.key.kind);
                self.acknowledgements.saw(budget.key.kind, budget.version);
                self.take_budget(budget);
                return;
            }
            Input::BudgetGone(key) => {
                let key = key.clone();
                self.forget_budget(&key);
            }
            Input::ControllerGone(uid) => {
                let uid = uid.clone();
                self.outdate_reads(&uid);
            }
            _ => {}
        }
        self.apply(input);
    }

    fn take_list(&mut self, snapshot: Snapshot) {
        match snapshot {
            Snapshot::Pods(pods, version) => {
                let listed: BTreeSet<&Uid> = pods.iter().map(|pod| &pod.uid).collect();
                let missing = |uid: &&Uid| !listed.contains(uid) && self.engine.knows(uid);
                let gone: Vec<Uid> = self.claims.pods().filter(missing).cloned().collect();
                gone.iter().for_each(|uid| self.pod_gone(uid, version));
                self.sync(Snapshot::Pods(pods, version));
            }
            Snapshot::Budgets(kind, budgets) => {
                self.budgets.unwatched.remove(&kind);
                self.budgets.listed.insert(kind);
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
            Snapshot::Controllers(kind, controllers) => {
                let listed: BTreeSet<&Uid> = controllers.iter().map(|controller| &controller.uid).collect();
                let known = self.engine.cluster.controllers_of(&kind);
                for gone in known.filter(|controller| !listed.contains(&controller.uid)) {
                    self.outbox.outdate(&gone.kind, &gone.key);
                }
                self.sync(Snapshot::Controllers(kind, controllers));
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
        self.budgets.work.extend(self.claims.budgets_of(uid).cloned());
    }

    /// A controller is gone: what a read that is in flight shows of it is of before.
    fn outdate_reads(&mut self, uid: &Uid) {
        if let Some(gone) = self.engine.cluster.controller(uid) {
            self.outbox.outdate(&gone.kind, &gone.key);
        }
    }

    /// Takes a budget in from the reply to a call of this replica. If the watch has come as far as its version and does not
    /// know it, it is gone. A late reply must not restore it: the watch does not show its end again.
    fn take_shown_budget(&mut self, budget: Budget) {
        let kind = budget.key.kind;
        let may_be_gone =
            self.budgets.listed.contains(&kind) || self.acknowledgements.has_seen(kind, budget.version);
        let is_known = self.engine.budget(&budget.key).is_some();
        if !self.budgets.unwatched.contains(&kind) && (is_known || !may_be_gone) {
            self.take_budget(budget);
        }
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
        // A generation that was not shown may have covered other pods.
        let known = self.engine.budget(&key).map(|known| known.generation);
        let skipped = known.is_some_and(|known| budget.generation > known.saturating_add(1))
            && !self.is_without(ProtocolRule::SteadyCoverage);
        let one_clock = self.is_without(ProtocolRule::ClockPerToken);
        self.claims.update(&budget, self.process.now, one_clock);
        self.budgets.work.add(key.clone());
        let coverage = self.engine.coverage_of(&budget);
        let state = self.budgets.states.entry(key.clone()).or_default();
        let changed = state.coverage.replace(coverage) != Some(coverage);
        if changed || skipped {
            state.opening.restart(budget.version);
        }
        self.apply(Input::Budget(budget));
        let closed = self.is_closed(&key);
        self.acknowledgements.set_closed(&key, closed);
        // After generations that were not shown, nothing is missing: for what this replica knew, it has written tokens.
        if changed {
            self.backfill(&key);
        }
    }

    /// What a budget covers, as this replica sees it now.
    fn coverage(&self, key: &BudgetKey) -> Option<Coverage> {
        self.budgets.states.get(key)?.coverage
    }

    /// Whether a budget denies everything because not every replica knows it.
    fn is_closed(&self, key: &BudgetKey) -> bool {
        self.engine.budget(key).is_some_and(|budget| budget.spec.is_ok()) && !self.engine.is_open(key)
    }

    /// Whether a budget is open, and the status names another generation than the present one. A replica that has not
    /// seen the generations in between, because it has just started, takes such a budget for closed.
    fn is_outdated(&self, key: &BudgetKey) -> bool {
        let Some(budget) = self.engine.budget(key).filter(|budget| budget.spec.is_ok()) else { return false };
        let named = budget.ledger.enforced_generation == Some(budget.generation);
        let dropped =
            self.budgets.states.get(key).is_some_and(|state| state.opening.drops(budget.generation));
        !named && !dropped && self.engine.is_open(key) && !self.is_without(ProtocolRule::SteadyCoverage)
    }

    /// Queues the tokens that a budget which is new here must get: those of recent admissions of pods that it covers.
    fn backfill(&mut self, key: &BudgetKey) {
        if self.is_without(ProtocolRule::BackfillOnOpening) {
            return;
        }
        let Some(state) = self.budgets.states.get_mut(key) else { return };
        for (token, backfill) in self.recent.backfills(|uid| self.engine.may_cover(key, uid)) {
            state.queue.backfill(token, backfill);
            self.acknowledgements.start_backfill(key);
        }
    }

    /// Everything was listed. Which budgets cover the pods that an earlier replica of this process admitted is known only
    /// now, in whatever order the lists came.
    fn synced(&mut self) {
        if !self.process.freshness.synced(self.process.now) {
            return;
        }
        let known: Vec<BudgetKey> = self.budgets.states.keys().cloned().collect();
        for key in known {
            self.backfill(&key);
            self.budgets.work.add(key);
        }
    }

    fn forget_budget(&mut self, key: &BudgetKey) {
        self.claims.remove(key);
        self.budgets.ahead.clear(key);
        self.acknowledgements.remove(key);
        self.budgets.work.add(key.clone());
        if let Some(state) = self.budgets.states.get_mut(key) {
            state.coverage = None;
            state.opening.reset();
            state.queue.drop_tokens();
        }
    }

    /// Forgets the budgets of a kind that is not watched any more.
    fn unwatched(&mut self, kind: BudgetKind) {
        self.take_list(Snapshot::Budgets(kind, Vec::new()));
        self.budgets.unwatched.insert(kind);
        if let Some(acknowledged) = self.acknowledgements.unwatched(kind) {
            self.outbox.acknowledge(acknowledged);
        }
    }
}

/// Pods have no age in the engine: every decision depends on them, so the replica checks theirs first.
fn is_pod(kind: &GroupKind) -> bool {
    kind.group.is_empty() && &*kind.kind == "Pod"
}
