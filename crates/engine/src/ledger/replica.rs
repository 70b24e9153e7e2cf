//! The replica: state, what goes in, what comes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::basics::{ObjectKey, Text, Time, Uid, Version};
use crate::claims::{Token, TokenId};
use crate::engine::{Changes, Engine, Gates, Snapshot};
use crate::facts::{Budget, BudgetKey, Input, Pod};
use crate::ledger::asks::Ask;
use crate::ledger::desk::{Desk, Join};
use crate::ledger::patch::LedgerPatch;
use crate::request::Request;
use crate::verdict::Verdict;

/// Names a request while it is under way.
pub type AskId = u64;

/// Names a call to the API server while it is under way.
pub type CallId = u64;

/// The bounds of the protocol.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this process; no other process ever has the same name.
    pub name: Text,
    /// A pod watch that has shown nothing for this long is not fresh.
    pub fresh_for: Duration,
    /// A token whose pod is untouched after this long is dropped. Longer than the API server may take to carry out
    /// what was admitted.
    pub expiry: Duration,
    /// How long admissions are remembered for budgets that are new.
    pub memory: Duration,
    /// How long to wait for the watch before pods are listed instead.
    pub patience: Duration,
    /// Rules of the protocol that are left out. Always empty, but in the tests which show that each is needed.
    pub without: BTreeSet<Rule>,
}

impl Settings {
    /// The settings of production.
    pub fn new(name: impl Into<Text>) -> Self {
        Self {
            name: name.into(),
            fresh_for: Duration::from_secs(90),
            expiry: Duration::from_secs(120),
            memory: Duration::from_secs(120),
            patience: Duration::from_millis(100),
            without: BTreeSet::new(),
        }
    }
}

/// A rule of the protocol, for tests that leave it out and watch what breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is named by what it asks for")]
pub enum Rule {
    TestUid,
    TestGeneration,
    TestNumber,
    TestSettled,
    SecondAskWrites,
    WithdrawOnlyOwn,
    Pin,
    WaitForSettled,
    RaiseSettled,
    SettleOnlySeen,
    ExpiryReads,
    ClockPerToken,
    Expiry,
    FreshEyes,
    FreshEyesAfterNumber,
    PendingClaimed,
    DecideAfresh,
    JoinOnOpening,
    WaitForAcknowledgement,
    WaitForVanished,
    ListReplicas,
    ListAfterAcknowledgement,
    RecheckCovering,
    ClosedDenies,
    ReopenOnCoverage,
    UpdateSeenRunning,
    UpdateSettlesUpdates,
}

/// Something that happens to a replica.
#[derive(Clone, Debug)]
pub enum Event {
    /// A watch shows a change.
    Fact(Box<Input>),
    /// A watch was started over: this is everything.
    List(Snapshot),
    /// The watch of budgets has shown everything up to here.
    BudgetsAt(Version),
    /// The pod watch is alive, though it showed nothing.
    Heard,
    /// All watches have shown everything once.
    Synced,
    /// This process may answer: its own Lease is written and renewed.
    Serving(bool),
    /// This process holds, or lost, the lease that makes it tend the budgets.
    Holder(bool),
    /// Somebody asks.
    Ask {
        /// Names the request.
        id: AskId,
        /// What is asked.
        request: Box<Request>,
        /// When an answer must be there.
        deadline: Time,
    },
    /// A call came back.
    Reply(CallId, Reply),
    /// Time passed.
    Tick,
}

/// Something a replica wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The answer to a request.
    Answer(AskId, Verdict),
    /// A call to the API server.
    Call(CallId, Call),
    /// Every budget up to this version is known here, and has been told of what was admitted before.
    Acknowledge(Version),
    /// Something worth an Event.
    Note(Note),
}

/// A call to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Write.
    Patch(LedgerPatch),
    /// Read a budget.
    GetBudget(BudgetKey),
    /// Read a pod, consistently.
    GetPod(ObjectKey),
    /// List the pods of a budget, consistently.
    ListPods(BudgetKey),
    /// List the Leases of all replicas, consistently.
    ListReplicas,
}

/// What a call came back with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The outcome of a write.
    Wrote(Wrote),
    /// The budget as it is, or none.
    Budget(Option<Box<Budget>>),
    /// The pod as it is.
    Pod(PodRead),
    /// The pods of a budget, and the version of the list.
    Pods(Vec<Pod>, Version),
    /// All replicas.
    Replicas(Vec<Member>),
    /// Nobody knows: no answer came. A write may have happened, or may still.
    Lost,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wrote {
    /// Written; this is the budget now.
    Done(Box<Budget>),
    /// A test failed: nothing was written.
    Refused,
    /// There is no such budget.
    Gone,
}

/// What a consistent read of a pod shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PodRead {
    /// The pod.
    There(Box<Pod>),
    /// There is none of that name.
    Gone,
}

/// A replica, as its Lease shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The process.
    pub name: Text,
    /// It acknowledged every budget up to here.
    pub acknowledged: Version,
    /// Its Lease ran out. It counts until it is removed, since nobody can ask it what it admitted.
    pub vanished: bool,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A pod was admitted for disruption and nothing happened to it.
    NotDisrupted {
        /// The budget.
        budget: BudgetKey,
        /// The pod.
        pod: Text,
    },
    /// A budget is enforced from now on.
    Opened(BudgetKey),
}

/// What this replica admitted lately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Admission {
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
    pub(super) heard: Time,
    pub(super) synced: bool,
    pub(super) serving: bool,
    pub(super) holder: bool,
    pub(super) asks: BTreeMap<AskId, Ask>,
    pub(super) desks: BTreeMap<BudgetKey, Desk>,
    pub(super) calls: BTreeMap<CallId, Purpose>,
    pub(super) next_call: CallId,
    pub(super) next_token: u64,
    /// Counts asks and lists, to tell whether a list was sent after a request arrived.
    pub(super) sequence: u64,
    pub(super) memory: VecDeque<Admission>,
    pub(super) first_seen: BTreeMap<(BudgetKey, Uid, TokenId), FirstSeen>,
    /// Which budgets have a claim on a pod.
    pub(super) holders: BTreeMap<Uid, BTreeSet<BudgetKey>>,
    /// Pods with claims that were seen to go, and the version that showed it.
    pub(super) gone_at: BTreeMap<Uid, Version>,
    /// Desks to look at in this step.
    pub(super) due: BTreeSet<BudgetKey>,
    /// Desks that have something to do or to wait for: looked at whenever time passes.
    pub(super) busy: BTreeSet<BudgetKey>,
    /// Budgets that have not been told yet of what was admitted before.
    pub(super) unjoined: BTreeSet<BudgetKey>,
    /// What the last list of replicas showed; kept for the test that takes it for the truth.
    pub(super) mustered: Option<Vec<Member>>,
    pub(super) budgets_version: Version,
    pub(super) acknowledged: Version,
    pub(super) outputs: Vec<Output>,
    changes: Changes,
}

/// What a call under way is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// The write of a budget's desk.
    Write(BudgetKey),
    /// The read of a budget after a write that failed or was lost.
    Reread(BudgetKey),
    /// A list of a budget's pods, for free passes and late watches.
    Look(BudgetKey),
    /// The read of the pod that an ask is about.
    Find(AskId),
    /// The read of a pod whose token is due.
    Expire(BudgetKey, Uid),
    /// The list of replicas before a budget opens.
    Muster(BudgetKey),
    /// The list of pods before a budget opens.
    Survey(BudgetKey),
}

impl Replica {
    /// A replica that knows nothing and answers nobody yet.
    pub fn new(settings: Settings, gates: Gates) -> Self {
        let mut engine = Engine::new(gates);
        engine.open_all = settings.without.contains(&Rule::ClosedDenies);
        engine.coverage_by_uid = settings.without.contains(&Rule::ReopenOnCoverage);
        Self {
            settings,
            engine,
            now: Time(i64::MIN),
            heard: Time(i64::MIN),
            synced: false,
            serving: false,
            holder: false,
            asks: BTreeMap::new(),
            desks: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            next_token: 0,
            sequence: 0,
            memory: VecDeque::new(),
            first_seen: BTreeMap::new(),
            holders: BTreeMap::new(),
            gone_at: BTreeMap::new(),
            due: BTreeSet::new(),
            busy: BTreeSet::new(),
            unjoined: BTreeSet::new(),
            mustered: None,
            budgets_version: Version(0),
            acknowledged: Version(0),
            outputs: Vec::new(),
            changes: Changes::default(),
        }
    }

    /// What it knows.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The status of a budget as it should be written now.
    pub fn status(&mut self, key: &BudgetKey, now: Time) -> Option<crate::status::Status> {
        self.engine.status(key, now)
    }

    /// Feeds everything that its future depends on into a hasher, so that a search can tell states apart. The names of
    /// calls are left out: they only count up.
    pub fn fingerprint(&self, state: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.engine.fingerprint(state);
        (self.now, self.heard, self.synced, self.serving, self.holder).hash(state);
        (&self.asks, &self.desks, self.next_token, self.sequence).hash(state);
        (&self.memory, &self.first_seen, &self.gone_at, &self.mustered).hash(state);
        (self.budgets_version, self.acknowledged, &self.unjoined).hash(state);
        (&self.due, &self.busy).hash(state);
    }

    /// Takes the budgets whose status may have changed since this was last asked, and when to tick next.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Lets something happen, and says what to do.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Output> {
        self.now = self.now.max(now);
        match event {
            Event::Fact(input) => self.fact(*input),
            Event::List(snapshot) => self.list(snapshot),
            Event::BudgetsAt(version) => self.budgets_at(version),
            Event::Heard => self.heard = self.now,
            Event::Synced => {
                self.synced = true;
                self.heard = self.now;
            }
            Event::Serving(serving) => self.serving = serving,
            Event::Holder(holder) => {
                self.holder = holder;
                self.due.extend(self.desks.keys().cloned());
            }
            Event::Ask { id, request, deadline } => self.ask(id, *request, deadline),
            Event::Reply(id, reply) => self.reply(id, reply),
            Event::Tick => self.due.extend(self.busy.iter().cloned()),
        }
        self.run();
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn without(&self, rule: Rule) -> bool {
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
        self.give_up_late_asks();
        self.work_desks();
        self.acknowledge();
    }

    fn fact(&mut self, input: Input) {
        match &input {
            Input::Pod(pod) => {
                self.heard = self.now;
                self.wake_holders(&pod.uid.clone());
            }
            Input::PodsAt(_) => self.heard = self.now,
            Input::PodGone(uid, version) => {
                self.heard = self.now;
                self.saw_gone(uid, *version);
            }
            Input::Budget(budget) => {
                let budget = budget.clone();
                self.budgets_at(budget.version);
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
                self.heard = self.now;
                let listed: BTreeSet<&Uid> = pods.iter().map(|pod| &pod.uid).collect();
                let gone: Vec<Uid> = self
                    .holders
                    .keys()
                    .filter(|uid| !listed.contains(uid) && self.engine.knows(uid))
                    .cloned()
                    .collect();
                let version = *version;
                gone.iter().for_each(|uid| self.saw_gone(uid, version));
            }
            Snapshot::Budgets(budgets) => {
                let listed: BTreeSet<&BudgetKey> = budgets.iter().map(|budget| &budget.key).collect();
                let gone: Vec<BudgetKey> = self
                    .engine
                    .budgets()
                    .map(|budget| &budget.key)
                    .filter(|key| !listed.contains(key))
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
        if self.holders.contains_key(uid) {
            self.gone_at.insert(uid.clone(), version);
        }
        self.wake_holders(uid);
    }

    fn wake_holders(&mut self, uid: &Uid) {
        if let Some(budgets) = self.holders.get(uid) {
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
        let desk = self.desks.entry(key.clone()).or_default();
        let is_new = desk.coverage != Some(coverage);
        desk.coverage = Some(coverage);
        if is_new {
            desk.seen_at = budget.version;
            desk.opening = None;
        }
        let changes = self.engine.apply(Input::Budget(budget), self.now);
        self.note_changes(changes);
        if is_new {
            self.join_recent(&key);
        }
    }

    fn coverage_of(&self, budget: &Budget) -> u64 {
        match &budget.spec {
            Ok(_) if self.engine.coverage_by_uid => crate::decide::bare_coverage(&budget.uid),
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
                    None if self.without(Rule::ClockPerToken) => old
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
                self.unhold(uid, key);
            }
        }
        for uid in budget.ledger.claims.keys() {
            self.holders.entry(uid.clone()).or_default().insert(key.clone());
        }
    }

    fn unhold(&mut self, uid: &Uid, key: &BudgetKey) {
        if let Some(budgets) = self.holders.get_mut(uid) {
            budgets.remove(key);
            if budgets.is_empty() {
                self.holders.remove(uid);
                self.gone_at.remove(uid);
            }
        }
    }

    pub(super) fn forget_budget(&mut self, key: &BudgetKey) {
        let held: Vec<Uid> =
            self.engine.budget(key).into_iter().flat_map(|b| b.ledger.claims.keys().cloned()).collect();
        held.iter().for_each(|uid| self.unhold(uid, key));
        self.first_seen.retain(|(other, ..), _| other != key);
        self.unjoined.remove(key);
        self.due.insert(key.clone());
        if let Some(desk) = self.desks.get_mut(key) {
            desk.coverage = None;
            desk.opening = None;
            desk.joins.clear();
            desk.withdrawals.clear();
        }
    }

    fn budgets_at(&mut self, version: Version) {
        self.budgets_version = self.budgets_version.max(version);
    }

    /// Forgets admissions that are too old to matter to a new budget.
    fn forget(&mut self) {
        while self.memory.front().is_some_and(|first| self.now >= first.at.after(self.settings.memory)) {
            self.memory.pop_front();
        }
    }

    /// Tells a budget that is new here what this replica admitted lately on the pods it covers.
    fn join_recent(&mut self, key: &BudgetKey) {
        if self.without(Rule::JoinOnOpening) {
            return;
        }
        for admission in &self.memory {
            let covered = self.engine.covering(&admission.uid).contains(key);
            if covered && let Some(desk) = self.desks.get_mut(key) {
                desk.joins.insert(
                    admission.token.clone(),
                    Join {
                        uid: admission.uid.clone(),
                        pod: admission.pod.name.clone(),
                        what: admission.what.clone(),
                        binding: true,
                    },
                );
                self.unjoined.insert(key.clone());
            }
        }
    }

    /// Says up to which version every budget is known here, joins included.
    fn acknowledge(&mut self) {
        if !self.serving || !self.synced {
            return;
        }
        if self.unjoined.is_empty() && self.acknowledged < self.budgets_version {
            self.acknowledged = self.budgets_version;
            self.outputs.push(Output::Acknowledge(self.acknowledged));
        }
    }
}
