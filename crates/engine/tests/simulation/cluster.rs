//! One cluster: its objects, its replicas, and what happens next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;

use quorate_engine::basics::{ObjectKey, Text, Time, Uid, Version};
use quorate_engine::facts::{Budget, BudgetKey, BudgetKind, Pod};
use quorate_engine::ledger::{CallId, ProtocolRule, Reply};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::plan::Plan;
use super::replicas::{Lease, Node};
use super::requests::{Journey, OpenTokens, RequestId};
use super::truth::Truth;

pub(crate) const NAMESPACE: &str = "ns";

/// How many of the last happenings are printed after a failure.
const LAST_MOMENTS: usize = 400;

/// Something that happens at its time.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// A client sends requests.
    SendRequests,
    /// The API server waits no longer for an answer.
    GiveUp(RequestId),
    /// What was admitted is carried out.
    Execute(RequestId),
    /// A watch shows what is due.
    ShowPods(Process),
    ShowBudgets(Process),
    /// A watch that was cut starts over with a list.
    RelistPods(Process),
    RelistBudgets(Process),
    /// A call arrives at the API server.
    Perform(Process, CallId),
    /// A call comes back.
    Reply(Process, CallId, Box<Reply>),
    /// An acknowledgement is written into the replica's Lease.
    Publish(Process, Version),
    Tick(Process),
    Renew(Process),
    /// A process starts, and a moment later answers.
    Start(usize),
    Serve(Process),
    /// A process that was cut off from the API server reaches it again.
    Reconnect(Process),
    Leader(Process, bool),
    /// A pod changes by itself.
    Pod(Uid, Turn),
    /// A pod takes the place of one that is gone.
    Replace(usize, Box<Pod>),
    /// Something goes wrong, or a user changes a budget.
    Trouble,
    MakeBudget(usize),
    /// Tokens are looked at: is there one that should be gone?
    Audit,
}

/// How a pod changes by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    Ready,
    Gone,
    Restart,
    Collected,
    Obey,
}

/// A process: which replica, and which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) node: usize,
    pub(crate) life: u32,
}

struct Planned {
    at: Time,
    order: u64,
    what: Happening,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Everything there is.
pub(crate) struct Cluster {
    pub(crate) rng: ChaCha8Rng,
    pub(crate) now: Time,
    pub(crate) revision: u64,
    agenda: BinaryHeap<Reverse<Planned>>,
    order: u64,
    pub(crate) plan: Plan,
    pub(crate) pods: BTreeMap<Uid, Pod>,
    pub(crate) by_name: BTreeMap<Text, Uid>,
    pub(crate) budgets: BTreeMap<BudgetKey, Budget>,
    pub(crate) leases: BTreeMap<Text, Lease>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) requests: BTreeMap<RequestId, Journey>,
    pub(crate) next_request: RequestId,
    pub(crate) tokens: OpenTokens,
    pub(crate) truth: Truth,
    pub(crate) tallies: Tallies,
    pub(crate) without: BTreeSet<ProtocolRule>,
    /// Nothing goes wrong any more, and no client sends a request.
    pub(crate) calm: bool,
    /// The first thing that must not happen and did.
    pub(crate) failure: Option<String>,
    moments: Option<VecDeque<String>>,
}

impl Cluster {
    /// Lives until so many decisions were made, then lets everything come to rest and looks at what is left.
    pub(crate) fn live(
        seed: u64,
        decisions: u64,
        without: &BTreeSet<ProtocolRule>,
        verbose: bool,
    ) -> Result<Tallies, String> {
        let mut cluster = Self::new(seed, without.clone(), verbose);
        while cluster.tallies.decisions() < decisions && cluster.failure.is_none() {
            cluster.happen_next();
        }
        cluster.come_to_rest();
        match cluster.failure.take() {
            None => Ok(cluster.tallies),
            Some(what) => {
                let moments = cluster.moments.take().unwrap_or_default();
                let lines: Vec<String> = moments.into_iter().collect();
                Err(format!("{}\n{what}", lines.join("\n")))
            }
        }
    }

    fn new(seed: u64, without: BTreeSet<ProtocolRule>, verbose: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let plan = Plan::make(&mut rng);
        let mut cluster = Self {
            rng,
            now: Time(1_000_000),
            revision: 1,
            agenda: BinaryHeap::new(),
            order: 0,
            plan,
            pods: BTreeMap::new(),
            by_name: BTreeMap::new(),
            budgets: BTreeMap::new(),
            leases: BTreeMap::new(),
            nodes: Vec::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            tokens: OpenTokens::new(),
            truth: Truth::default(),
            tallies: Tallies::default(),
            without,
            calm: false,
            failure: None,
            moments: verbose.then(VecDeque::new),
        };
        cluster.populate();
        cluster
    }

    pub(crate) fn next_revision(&mut self) -> Version {
        self.revision += 1;
        Version(self.revision)
    }

    pub(crate) fn plan_at(&mut self, at: Time, what: Happening) {
        self.order += 1;
        self.agenda.push(Reverse(Planned { at, order: self.order, what }));
    }

    /// Plans something for so many milliseconds from now.
    pub(crate) fn plan_in(&mut self, range: std::ops::Range<u64>, what: Happening) {
        let delay = self.rng.random_range(range);
        self.plan_at(self.now.after(Duration::from_millis(delay)), what);
    }

    /// Whether something with these odds in a thousand happens.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.random_range(0..1000) < per_mille
    }

    /// One of so many.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        self.rng.random_range(0..count.max(1))
    }

    /// Something that must not happen.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(format!("at {:?}, revision {}: {}", self.now, self.revision, what.into()));
        }
    }

    /// Keeps a line of the last moments, if they are to be printed.
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        let (now, revision) = (self.now, self.revision);
        if let Some(moments) = &mut self.moments {
            moments.push_back(format!("{:>9} r{revision} {}", now.0, line()));
            if moments.len() > LAST_MOMENTS {
                moments.pop_front();
            }
        }
    }

    fn happen_next(&mut self) -> bool {
        let Some(Reverse(planned)) = self.agenda.pop() else { return false };
        self.now = self.now.max(planned.at);
        self.happen(planned.what);
        true
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::SendRequests => self.send_requests(),
            Happening::GiveUp(request) => self.give_up(request),
            Happening::Execute(request) => self.execute(request),
            Happening::ShowPods(process) => self.show_pods(process),
            Happening::ShowBudgets(process) => self.show_budgets(process),
            Happening::RelistPods(process) => self.relist_pods(process),
            Happening::RelistBudgets(process) => self.relist_budgets(process),
            Happening::Perform(process, id) => self.perform(process, id),
            Happening::Reply(process, id, reply) => self.reply(process, id, *reply),
            Happening::Publish(process, version) => self.publish(process, version),
            Happening::Tick(process) => self.tick(process),
            Happening::Renew(process) => self.renew(process),
            Happening::Start(node) => self.start(node),
            Happening::Serve(process) => self.serve(process),
            Happening::Reconnect(process) => self.reconnect(process),
            Happening::Leader(process, holds) => self.set_leader(process, holds),
            Happening::Pod(uid, turn) => self.turn(&uid, turn),
            Happening::Replace(app, pod) => self.replace(app, *pod),
            Happening::Trouble => self.trouble(),
            Happening::MakeBudget(slot) => self.make_budget(slot),
            Happening::Audit => self.audit(),
        }
    }

    /// Lets everything under way come to its end, and checks what must hold then.
    fn come_to_rest(&mut self) {
        if self.failure.is_some() {
            return;
        }
        self.calm_down();
        let end = self.now.after(Duration::from_secs(900));
        while self.failure.is_none() && self.agenda.peek().is_some_and(|Reverse(next)| next.at <= end) {
            self.happen_next();
        }
        if self.failure.is_none() {
            self.check_rest();
        }
    }

    /// Lets time pass until a request has been answered.
    pub(crate) fn until_answered(&mut self, request: RequestId) {
        while self.failure.is_none() && self.requests.get(&request).is_some_and(Journey::is_waiting) {
            if !self.happen_next() {
                break;
            }
        }
    }
}

pub(crate) fn budget_key(slot: usize) -> BudgetKey {
    BudgetKey { object: ObjectKey::new(NAMESPACE, format!("b{slot}")), kind: BudgetKind::DisruptionBudget }
}

/// What happened, counted: a simulation in which nothing happens shows nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tallies(BTreeMap<&'static str, u64>);

impl Tallies {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn decisions(&self) -> u64 {
        self.of("allowed") + self.of("denied")
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// A protocol that refuses everything breaks no budget either.
    pub(crate) fn must_be_lively(&self) {
        assert!(self.of("allowed") * 10 >= self.decisions(), "hardly anything is admitted: {self}");
        assert!(self.of("charged") * 20 >= self.decisions(), "hardly anything is charged: {self}");
        for what in ["end", "handed over"] {
            assert!(self.of(what) > 0, "no {what} in {self}");
        }
        for what in ["crash", "cut off", "relist", "lost reply", "late write", "write refused", "two leaders"]
        {
            assert!(self.of(what) > 0, "no {what} in {self}");
        }
        for what in ["budget made", "budget deleted", "budget tightened", "budget widened", "budget opened"] {
            assert!(self.of(what) > 0, "no {what} in {self}");
        }
        for what in ["expired", "pod broke", "pod healed", "pod finished", "refused elsewhere", "free pass"] {
            assert!(self.of(what) > 0, "no {what} in {self}");
        }
    }
}

impl fmt::Display for Tallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.0.iter().map(|(what, count)| format!("{what} {count}")).collect();
        write!(f, "{} decisions: {}", self.decisions(), counts.join(", "))
    }
}
