//! The replica: its state, and what each event does to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::basics::{ObjectKey, Text, Time, Uid, Version};
use crate::claims::{Token, TokenId};
use crate::engine::{Changes, Engine, Gates, Snapshot};
use crate::facts::{Budget, BudgetKey, BudgetKind, Input};
use crate::ledger::commit::{Backfill, CommitQueue};
use crate::ledger::messages::{Acknowledged, Call, CallId, Event, Output, ReplicaLease, RequestId};
use crate::ledger::patch::{LedgerPatch, Step};
use crate::ledger::reads::{ConsistentReads, ReadTarget};
use crate::ledger::requests::PendingRequest;
use crate::ledger::settings::{ProtocolRule, Settings};
use crate::ledger::sources::Source;

/// What this replica admitted lately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecentAdmission {
    pub(super) uid: Uid,
    pub(super) pod: ObjectKey,
    pub(super) token: TokenId,
    pub(super) what: Token,
    pub(super) at: Time,
}

/// When a token was first seen here, and in which version of its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FirstSeen {
    pub(super) at: Time,
    pub(super) version: Version,
}

/// One process of many that decide together.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(super) settings: Settings,
    pub(super) engine: Engine,
    pub(super) now: Time,
    pub(super) last_pod_event: Time,
    pub(super) synced: bool,
    pub(super) serving: bool,
    pub(super) leader: bool,
    pub(super) requests: BTreeMap<RequestId, PendingRequest>,
    /// Reads that requests wait for.
    pub(super) reads: ConsistentReads,
    pub(super) queues: BTreeMap<BudgetKey, CommitQueue>,
    pub(super) calls: BTreeMap<CallId, Purpose>,
    pub(super) next_call: CallId,
    pub(super) next_token: u64,
    /// Counts asks and lists, to tell whether a list was sent after a request arrived.
    pub(super) sequence: u64,
    pub(super) recent: VecDeque<RecentAdmission>,
    pub(super) first_seen: BTreeMap<(BudgetKey, Uid, TokenId), FirstSeen>,
    /// Which budgets have a claim on a pod.
    pub(super) claims_by_pod: BTreeMap<Uid, BTreeSet<BudgetKey>>,
    /// Pods with claims that were seen to go, and the version that showed it.
    pub(super) gone_at: BTreeMap<Uid, Version>,
    /// Desks to look at in this step.
    pub(super) due: BTreeSet<BudgetKey>,
    /// Desks that have something to do or to wait for: looked at whenever time passes.
    pub(super) busy: BTreeSet<BudgetKey>,
    /// When requests have waited for others long enough.
    pub(super) wakes: BTreeSet<Time>,
    /// Budgets that have not been told yet of what was admitted before.
    pub(super) backfilling: BTreeSet<BudgetKey>,
    /// Budgets that decide nothing yet: they wait until every replica knows them.
    pub(super) closed: BTreeSet<BudgetKey>,
    /// What the last list of replicas showed; kept for the test that takes it for the truth.
    pub(super) last_replicas: Option<Vec<ReplicaLease>>,
    pub(super) budgets_version: Acknowledged,
    pub(super) acknowledged: Acknowledged,
    pub(super) outputs: Vec<Output>,
    changes: Changes,
}

/// What a call under way is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// The write of a budget's queue.
    Write(BudgetKey),
    /// The read of a budget after a write that failed or was lost.
    Reread(BudgetKey),
    /// A list of a budget's pods, for free passes and late watches, and what it covered when that was sent.
    ListPods(BudgetKey, Option<u64>),
    /// The read of what requests wait for.
    Read(ReadTarget),
    /// The read of what says how many groups of a budget there should be.
    Source(BudgetKey, Source),
    /// The read of a pod whose token is due.
    Expire(BudgetKey, Uid),
    /// The list of replicas before a budget opens that was first seen in this version.
    ListReplicas(BudgetKey, Version),
    /// The list of pods before such a budget opens.
    ListPodsToOpen(BudgetKey, Version),
}

impl Replica {
    /// A replica that knows nothing and answers nobody yet.
    pub fn new(settings: Settings, gates: Gates) -> Self {
        let mut engine = Engine::new(gates);
        engine.open_all = settings.without.contains(&ProtocolRule::ClosedDenies);
        engine.coverage_by_uid = settings.without.contains(&ProtocolRule::ReopenOnCoverage);
        Self {
            settings,
            engine,
            now: Time(i64::MIN),
            last_pod_event: Time(i64::MIN),
            synced: false,
            serving: false,
            leader: false,
            requests: BTreeMap::new(),
            reads: ConsistentReads::default(),
            queues: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            next_token: 0,
            sequence: 0,
            recent: VecDeque::new(),
            first_seen: BTreeMap::new(),
            claims_by_pod: BTreeMap::new(),
            gone_at: BTreeMap::new(),
            due: BTreeSet::new(),
            busy: BTreeSet::new(),
            wakes: BTreeSet::new(),
            backfilling: BTreeSet::new(),
            closed: BTreeSet::new(),
            last_replicas: None,
            budgets_version: Acknowledged::default(),
            acknowledged: Acknowledged::default(),
            outputs: Vec::new(),
            changes: Changes::default(),
        }
    }

    /// What it knows.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether a budget waits to be opened. Until then somebody waits for acknowledgements; else nobody does.
    pub fn has_closed_budgets(&self) -> bool {
        !self.closed.is_empty()
    }

    /// The status of a budget as it should be written now.
    pub fn status(&mut self, key: &BudgetKey, now: Time) -> Option<crate::status::Status> {
        self.engine.status(key, now)
    }

    /// The status of a budget as it is once a write of the holder's is done, so that the same write can tell of it. Of a
    /// write that opens the budget nobody knows yet what it changes.
    pub fn status_with(&mut self, patch: &LedgerPatch, now: Time) -> Option<crate::status::Status> {
        let opens = patch.steps.iter().any(|step| matches!(step, Step::SetEnforced(_)));
        if !self.leader || opens {
            return None;
        }
        let mut status = self.engine.status(&patch.budget, now)?;
        // What is added is imagined already; what is removed is still there.
        let is_removed = |uid: &Uid| {
            patch.steps.iter().any(|step| matches!(step, Step::RemoveClaim(removed) if removed == uid))
        };
        let claims = &self.engine.budget(&patch.budget)?.ledger.claims;
        let left: BTreeSet<&Text> =
            claims.iter().filter(|(uid, _)| !is_removed(uid)).map(|(_, claim)| &claim.pod).collect();
        for pods in [&mut status.disrupted, &mut status.updating] {
            pods.retain(|(pod, _)| left.contains(pod));
        }
        Some(status)
    }

    /// Feeds everything that its future depends on into a hasher, and nothing else, so that a search can tell states
    /// apart. The names of calls are left out, since they only count up; their order is not.
    pub fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.engine.fingerprint(state);
        (self.now, self.last_pod_event, self.synced, self.serving, self.leader).hash(state);
        (&self.requests, &self.reads, self.next_token, self.sequence, &self.recent, &self.gone_at)
            .hash(state);
        (&self.last_replicas, self.budgets_version, self.acknowledged, &self.backfilling).hash(state);
        (&self.due, &self.busy).hash(state);
        self.calls.values().for_each(|purpose| purpose.hash(state));
        // Whether a claim is older than the pods is asked only of a pod that was never seen; of any other the watch
        // says when it went.
        for ((key, uid, token), first) in &self.first_seen {
            let version = (!self.engine.knows(uid)).then_some(first.version);
            (key, uid, token, first.at, version).hash(state);
        }
        for (key, queue) in &self.queues {
            let closed = self.engine.budget(key).is_some_and(|budget| self.is_closed(key, budget));
            let first = self.requests.values().map(|pending| pending.sequence).min();
            key.hash(state);
            queue.fingerprint(closed, first, self.engine.pods_version(), state);
        }
    }

    /// Takes the budgets whose status may have changed since this was last asked, and when to tick next.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// When somebody has waited long enough for others: time should pass here then, not later.
    pub fn wakes_at(&self) -> Option<Time> {
        self.wakes.first().copied()
    }

    /// Lets something happen, and says what to do.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Output> {
        self.now = self.now.max(now);
        match event {
            Event::Fact(input) => self.fact(*input),
            Event::List(snapshot) => self.list(snapshot),
            Event::BudgetsAt(kind, version) => self.budgets_at(kind, version),
            Event::Unwatched(kind) => self.unwatched(kind),
            Event::Heard => self.last_pod_event = self.now,
            Event::Synced => {
                self.synced = true;
                self.last_pod_event = self.now;
            }
            Event::Serving(serving) => self.serving = serving,
            Event::Leader(leader) => {
                self.leader = leader;
                self.due.extend(self.queues.keys().cloned());
            }
            Event::Request { id, request, deadline } => self.receive(id, *request, deadline),
            Event::Reply(id, reply) => self.reply(id, reply),
            Event::Tick => {
                self.wakes.retain(|wake| *wake > self.now);
                self.due.extend(self.busy.iter().cloned());
            }
        }
        self.run();
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn without(&self, rule: ProtocolRule) -> bool {
        // One comparison in production, where the set is empty.
        !self.settings.without.is_empty() && self.settings.without.contains(&rule)
    }

    pub(super) fn call(&mut self, call: Call, purpose: Purpose) {
        let id = self.next_call;
        self.next_call += 1;
        self.calls.insert(id, purpose);
        self.outputs.push(Output::Call(id, call));
    }

    pub(super) fn note_changes(&mut self, changes: Changes) {
        self.changes.budgets.extend(changes.budgets);
        self.changes.wake = changes.wake;
    }

    /// Looks at everything that may go on now.
    fn run(&mut self) {
        let changes = self.engine.advance(self.now);
        self.note_changes(changes);
        self.forget();
        self.reject_late_requests();
        self.work_queues();
        self.acknowledge();
    }

    fn fact(&mut self, input: Input) {
        match &input {
            Input::Pod(pod) => {
                self.last_pod_event = self.now;
                self.wake_claims_of(&pod.uid.clone());
            }
            Input::PodsAt(_) => self.last_pod_event = self.now,
            Input::PodGone(uid, version) => {
                self.last_pod_event = self.now;
                self.saw_gone(uid, *version);
            }
            Input::Budget(budget) => {
                let budget = budget.clone();
                self.budgets_at(budget.key.kind, budget.version);
                self.take_budget(budget);
                return;
            }
            Input::BudgetGone(key) => {
                let key = key.clone();
                self.forget_budget(&key);
            }
            _ => {}
        }
        let changes = self.engine.apply(input, self.now);
        self.note_changes(changes);
    }

    fn list(&mut self, snapshot: Snapshot) {
        match &snapshot {
            Snapshot::Pods(pods, version) => {
                self.last_pod_event = self.now;
                let listed: BTreeSet<&Uid> = pods.iter().map(|pod| &pod.uid).collect();
                let gone: Vec<Uid> = self
                    .claims_by_pod
                    .keys()
                    .filter(|uid| !listed.contains(uid) && self.engine.knows(uid))
                    .cloned()
                    .collect();
                let version = *version;
                gone.iter().for_each(|uid| self.saw_gone(uid, version));
            }
            Snapshot::Budgets(kind, budgets) => {
                let listed: BTreeSet<&BudgetKey> = budgets.iter().map(|budget| &budget.key).collect();
                let gone: Vec<BudgetKey> = self
                    .engine
                    .budgets()
                    .map(|budget| &budget.key)
                    .filter(|key| key.kind == *kind && !listed.contains(key))
                    .cloned()
                    .collect();
                let budgets = budgets.clone();
                for key in gone {
                    self.forget_budget(&key);
                    let changes = self.engine.apply(Input::BudgetGone(key), self.now);
                    self.note_changes(changes);
                }
                budgets.into_iter().for_each(|budget| self.take_budget(budget));
                return;
            }
            _ => {}
        }
        let changes = self.engine.sync(snapshot, self.now);
        self.note_changes(changes);
    }

    fn saw_gone(&mut self, uid: &Uid, version: Version) {
        if self.claims_by_pod.contains_key(uid) {
            self.gone_at.insert(uid.clone(), version);
        }
        self.wake_claims_of(uid);
    }

    fn wake_claims_of(&mut self, uid: &Uid) {
        if let Some(budgets) = self.claims_by_pod.get(uid) {
            self.due.extend(budgets.iter().cloned());
        }
    }

    /// Takes a budget in, from a watch or from the reply to a write or read of ours.
    pub(super) fn take_budget(&mut self, budget: Budget) {
        let key = budget.key.clone();
        // Older than what is known, be it of the same budget or of one that had its name before.
        if self.engine.budget(&key).is_some_and(|known| budget.version < known.version) {
            return;
        }
        let new_uid = self.engine.budget(&key).is_some_and(|known| known.uid != budget.uid);
        if new_uid {
            self.forget_budget(&key);
        }
        self.see_tokens(&budget);
        self.due.insert(key.clone());
        let coverage = self.coverage_of(&budget);
        let queue = self.queues.entry(key.clone()).or_default();
        let is_new = queue.coverage != Some(coverage);
        queue.coverage = Some(coverage);
        if is_new {
            queue.seen_at = budget.version;
            queue.opening = None;
        }
        if self.is_closed(&key, &budget) {
            self.closed.insert(key.clone());
        } else {
            self.closed.remove(&key);
        }
        let changes = self.engine.apply(Input::Budget(budget), self.now);
        self.note_changes(changes);
        if is_new {
            self.backfill_recent(&key);
        }
    }

    fn coverage_of(&self, budget: &Budget) -> u64 {
        match &budget.spec {
            Ok(_) if self.engine.coverage_by_uid => crate::coverage::bare_coverage(&budget.uid),
            Ok(rules) => crate::coverage(&budget.uid, rules),
            Err(_) => 0,
        }
    }

    /// Starts the clock of tokens that were not seen before, and drops those that are gone.
    fn see_tokens(&mut self, budget: &Budget) {
        let key = &budget.key;
        let now = self.now;
        let mut old = self.first_seen.split_off(&(key.clone(), Uid::from(""), TokenId::from("")));
        let keep = match old.keys().find(|(other, ..)| other != key).cloned() {
            Some(next) => old.split_off(&next),
            None => BTreeMap::new(),
        };
        for (uid, claim) in &budget.ledger.claims {
            for token in claim.tokens.keys() {
                let entry = (key.clone(), uid.clone(), token.clone());
                let seen = match old.get(&entry) {
                    Some(seen) => *seen,
                    None if self.without(ProtocolRule::ClockPerToken) => old
                        .iter()
                        .find(|((_, other, _), _)| other == uid)
                        .map_or(FirstSeen { at: now, version: budget.version }, |(_, seen)| *seen),
                    None => FirstSeen { at: now, version: budget.version },
                };
                self.first_seen.insert(entry, seen);
            }
        }
        self.first_seen.extend(keep);
        for (_, uid, _) in old.keys() {
            if !budget.ledger.claims.contains_key(uid) {
                self.drop_claim(uid, key);
            }
        }
        for uid in budget.ledger.claims.keys() {
            self.claims_by_pod.entry(uid.clone()).or_default().insert(key.clone());
        }
    }

    fn drop_claim(&mut self, uid: &Uid, key: &BudgetKey) {
        if let Some(budgets) = self.claims_by_pod.get_mut(uid) {
            budgets.remove(key);
            if budgets.is_empty() {
                self.claims_by_pod.remove(uid);
                self.gone_at.remove(uid);
            }
        }
    }

    pub(super) fn forget_budget(&mut self, key: &BudgetKey) {
        let held: Vec<Uid> =
            self.engine.budget(key).into_iter().flat_map(|b| b.ledger.claims.keys().cloned()).collect();
        held.iter().for_each(|uid| self.drop_claim(uid, key));
        self.first_seen.retain(|(other, ..), _| other != key);
        self.backfilling.remove(key);
        self.closed.remove(key);
        self.due.insert(key.clone());
        if let Some(queue) = self.queues.get_mut(key) {
            queue.coverage = None;
            queue.opening = None;
            queue.backfills.clear();
            queue.withdrawals.clear();
        }
    }

    fn budgets_at(&mut self, kind: BudgetKind, version: Version) {
        let seen = self.budgets_version.of(kind).max(version);
        self.budgets_version = self.budgets_version.with(kind, seen);
    }

    /// Forgets the budgets of a front. Nobody may open one on the word of this replica before it looks at them again.
    fn unwatched(&mut self, kind: BudgetKind) {
        self.list(Snapshot::Budgets(kind, Vec::new()));
        self.budgets_version = self.budgets_version.with(kind, Version(0));
        let without = self.acknowledged.with(kind, Version(0));
        if std::mem::replace(&mut self.acknowledged, without) != without {
            self.outputs.push(Output::Acknowledge(without));
        }
    }

    /// Forgets admissions that are too old to matter to a new budget.
    fn forget(&mut self) {
        while self.recent.front().is_some_and(|first| self.now >= first.at.after(self.settings.recent_for)) {
            self.recent.pop_front();
        }
        self.reads.forget(self.now);
    }

    /// Tells a budget that is new here what this replica admitted lately on the pods it covers.
    fn backfill_recent(&mut self, key: &BudgetKey) {
        if self.without(ProtocolRule::JoinOnOpening) {
            return;
        }
        for admission in &self.recent {
            let covered = self.engine.covering(&admission.uid).contains(key);
            if covered && let Some(queue) = self.queues.get_mut(key) {
                queue.backfills.insert(
                    admission.token.clone(),
                    Backfill {
                        uid: admission.uid.clone(),
                        pod: admission.pod.name.clone(),
                        what: admission.what.clone(),
                        binding: true,
                    },
                );
                self.backfilling.insert(key.clone());
            }
        }
    }

    /// Says up to which version every budget is known here, joins included.
    fn acknowledge(&mut self) {
        if !self.serving || !self.synced {
            return;
        }
        if self.backfilling.is_empty() && self.acknowledged != self.budgets_version {
            self.acknowledged = self.budgets_version;
            self.outputs.push(Output::Acknowledge(self.acknowledged));
        }
    }
}
