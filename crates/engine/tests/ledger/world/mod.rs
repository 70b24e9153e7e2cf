//! An API server with pods, budgets and Leases, replicas that watch it, and requests that come and go.
//!
//! Everything that can happen next is an [`Action`]; a search tries all of them in every order. Time stands still but
//! for [`Action::TimePasses`], which is possible only when nothing is under way that would have ended by then.

mod apiserver;
mod happenings;
mod mind;
mod part;
mod scale;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Uid, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{ContainerChange, Target};
use quorate_engine::decision::Decision;
use quorate_engine::facts::{
    Budget, BudgetKey, BudgetKind, Container, Covers, Operation, Phase, Pod, RuleAnnotations, Rules,
};
use quorate_engine::ledger::{
    Acknowledged, Call, Output, PodRead, ProtocolRule, ReplicaLease, Reply, Settings, WriteOutcome,
};
use quorate_engine::request::Request;
use quorate_engine::selector::Selector;

use super::truth::Floors;
pub(crate) use apiserver::relabelled;
use mind::{Habits, Mind, News};
pub(crate) use part::Part;
use part::digest;
use scale::Scale;

pub(crate) const NAMESPACE: &str = "ns";
/// Two of these are longer than the expiry of tokens, the memory of admissions and the life of a vanished replica's
/// Lease. What the API server carries out takes less than two.
const A_WHILE: Duration = Duration::from_secs(61);
const DEADLINE: Duration = Duration::from_secs(10);

/// Everything there is.
#[derive(Clone, Debug)]
pub(crate) struct World {
    counts: Counts,
    pub(crate) clock: Time,
    pub(crate) pods: Part<BTreeMap<Uid, Part<Pod>>>,
    pub(crate) budgets: Part<BTreeMap<BudgetKey, Part<Budget>>>,
    leases: Part<BTreeMap<Text, Lease>>,
    /// The set that owns all pods, where there is one.
    pub(crate) scale: Option<Scale>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) requests: Part<Vec<Journey>>,
    /// What the scenario still has in store, by its place in the scenario's list.
    store: Part<BTreeSet<usize>>,
    /// How often a reply may still be lost, a replica crash, a watch start over.
    pub(crate) mishaps: Mishaps,
    pub(crate) floors: Part<Floors>,
    /// The rule is left out that a budget is opened again when it covers other pods.
    always_open: bool,
    /// The rule is left out that a budget is opened again when it covered other pods in between.
    any_generation: bool,
    /// A list of the replicas omits those that vanished.
    omits_vanished: bool,
    /// How often annotations have changed, where the rules of budgets are annotations.
    pub(crate) annotated: Option<i64>,
    /// Since which generation each budget has its coverage; those that have it since they were made are left out.
    steady: Part<BTreeMap<BudgetKey, i64>>,
    habits: Habits,
}

/// The revisions of the last writes. An API server counts all kinds together. What a replica does depends on the order
/// of a pod's and a budget's version only where it has to know whether a pod that it never saw is older than a claim;
/// where every pod is there from the start and stays, each kind is counted by itself, and states do not differ by the
/// order of writes that no replica compares.
#[derive(Clone, Copy, Debug, Hash)]
struct Counts {
    pods: u64,
    budgets: u64,
    together: bool,
}

impl Counts {
    fn next(&mut self, kind: fn(&mut Self) -> &mut u64) -> Version {
        let last = if self.together { self.pods.max(self.budgets) } else { *kind(self) };
        *kind(self) = last + 1;
        Version(last + 1)
    }

    fn next_pod(&mut self) -> Version {
        self.next(|counts| &mut counts.pods)
    }

    fn next_budget(&mut self) -> Version {
        self.next(|counts| &mut counts.budgets)
    }

    /// The version of a list of pods.
    fn pods(self) -> Version {
        Version(if self.together { self.pods.max(self.budgets) } else { self.pods })
    }

    /// The version of a list of budgets.
    fn budgets(self) -> Version {
        Version(if self.together { self.pods.max(self.budgets) } else { self.budgets })
    }
}

/// The Lease of a replica, and when it ran out.
#[derive(Clone, Debug, Hash)]
struct Lease {
    member: ReplicaLease,
    vanished: Option<Time>,
}

/// How much may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mishaps {
    pub(crate) lost: u8,
    pub(crate) crashes: u8,
    pub(crate) relists: u8,
    pub(crate) timeouts: u8,
    pub(crate) refusals: u8,
    pub(crate) time: u8,
}

/// A replica and what is on the wire to and from it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) mind: Option<Part<Mind>>,
    place: usize,
    incarnation: u8,
    leader: bool,
    serving: bool,
    /// What its watches have not shown yet.
    pods: Part<VecDeque<News>>,
    budgets: Part<VecDeque<News>>,
    sets: Part<VecDeque<News>>,
    /// Its calls, in the order in which it made them.
    calls: Part<Vec<Wire>>,
}

impl Node {
    fn new(place: usize, leader: bool) -> Self {
        Self {
            mind: None,
            place,
            incarnation: 0,
            leader,
            serving: false,
            pods: Part::new(VecDeque::new()),
            budgets: Part::new(VecDeque::new()),
            sets: Part::new(VecDeque::new()),
            calls: Part::new(Vec::new()),
        }
    }

    fn process(&self) -> Text {
        format!("r{}.{}", self.place, self.incarnation).into()
    }

    fn cut_off(&mut self) {
        self.pods = Part::new(VecDeque::new());
        self.budgets = Part::new(VecDeque::new());
        self.sets = Part::new(VecDeque::new());
        self.calls = Part::new(Vec::new());
    }

    /// Whether the next event of a budget tells this replica nothing that it does not know from its own writes.
    fn knows_next_budget(&self) -> Option<Version> {
        let (Some(News::Budget(budget)), Some(mind)) = (self.budgets.front(), &self.mind) else {
            return None;
        };
        let known = mind.replica.engine().budget(&budget.key)?;
        (known.uid == budget.uid && known.version >= budget.version).then_some(budget.version)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.leader && self.mind.is_some()
    }
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.incarnation, self.leader, self.serving).hash(state);
        (&self.mind, &self.pods, &self.budgets, &self.sets, &self.calls).hash(state);
    }
}

/// A call on its way.
#[derive(Clone, Debug, Hash)]
enum Wire {
    Sent(Part<Sent>),
    Answered(Part<Reply>),
}

/// A call, and what a list of pods asks for: what the budget covered for its sender when it was sent.
#[derive(Clone, Debug, Hash)]
struct Sent {
    call: Call,
    selector: Option<Selector>,
}

/// A request and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Journey {
    pub(crate) operation: Operation,
    pub(crate) pod: Text,
    pub(crate) stage: RequestState,
    /// What an update or a relabel changes.
    pub(crate) change: Change,
    /// The very object that is asked about. An eviction knows a name, unless it insists on a UID.
    meant: Option<Uid>,
    /// The version of that object. The API server stores an update on no other.
    pub(crate) base: Option<Version>,
    /// It was under way already when time last passed.
    aged: bool,
    /// The budgets that were open when it was sent, and how often their rules had changed.
    pub(crate) bound: Vec<(BudgetKey, i64)>,
    /// The pod, if it was healthy when it was sent and has been since.
    pub(crate) healthy: Option<Uid>,
}

/// An image that the runtime shows by another name: `docs/ledger.md#settling-and-expiry`.
pub(crate) const ALIAS: u64 = 100;

/// The image that a pod shows once its container runs what the spec has.
pub(crate) fn shown_image(container: &Container) -> u64 {
    match container.spec_image {
        ALIAS => ALIAS + 1,
        image => image,
    }
}

/// What an update changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// The image of the container.
    Image(u64),
    /// The readiness gate by which a controller announces what it is about to do.
    Gate,
    /// The value of a label, for a relabel.
    Label(&'static str, &'static str),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestState {
    /// It has not been sent yet.
    Planned,
    /// A replica is thinking about it.
    Asked(usize),
    /// Admitted: the API server is about to carry it out on this pod.
    Admitted(Uid),
    /// It is over.
    Over,
}

/// What becomes of a pod that is terminating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Nothing, within the case.
    Stays,
    /// It goes.
    Goes,
    /// It goes, and another one comes under its name, ready.
    ComesBack,
}

/// Which replica a request may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Any,
    At(usize),
}

/// Something that a scenario may do to the world, once.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// A pod that was not ready becomes ready.
    Heal(&'static str),
    /// A pod is created: name, ready or not.
    Create(&'static str, bool),
    /// A pod goes at once, and another one comes under its name, ready.
    Replace(&'static str),
    /// A pod is lost with its node.
    Lose(&'static str),
    /// A budget is made, or made anew after it was deleted.
    MakeBudget(&'static str, Rules),
    /// A budget's rules are changed.
    ChangeBudget(&'static str, Rules),
    /// The annotation with a budget's rules is changed, which does not change the generation.
    Annotate(&'static str, Rules),
    /// A budget is deleted.
    DeleteBudget(&'static str),
    /// The set that owns the pods wants so many.
    Rescale(u32),
    /// A replica that does not run is started.
    Start(usize),
    /// A replica that does not run is started, and does not serve yet.
    Join(usize),
    /// A replica that was started begins to serve.
    Serve(usize),
    /// A replica that gets no more requests ends, and hands over what it admitted.
    End(usize),
    /// A replica becomes the leader, or stops being one.
    Leader(usize, bool),
    /// A status from another time is written: decisions need pods that are so many versions ahead of the store.
    SettleAhead(&'static str, u64),
}

/// What may happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Send(usize, usize),
    ShowPod(usize),
    ShowBudget(usize),
    ShowSet(usize),
    Perform(usize, usize),
    Deliver(usize, usize),
    Lose(usize, usize),
    Execute(usize),
    Refuse(usize),
    Finish(Uid),
    Restart(Uid),
    /// The kubelet sees that a readiness gate is not True.
    Unready(Uid),
    /// The controller sees that the pod runs what it is asked to, and sets the readiness gate back.
    Reopen(Uid),
    Do(usize),
    Crash(usize),
    Relist(usize),
    Timeout(usize),
    Tick(usize),
    TimePasses,
}

/// A small case, to be searched completely.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Pods that are there: name, ready or not.
    pub(crate) pods: Vec<(&'static str, Phase, bool)>,
    /// Budgets that are there and open.
    pub(crate) budgets: Vec<(&'static str, Rules)>,
    /// Replicas: whether each runs from the start, and is the leader.
    pub(crate) replicas: Vec<(bool, bool)>,
    /// What is asked, and of which replica.
    pub(crate) requests: Vec<(Operation, &'static str, At)>,
    /// What each of them changes, if it is an update. Those that are not named give the container image 2.
    pub(crate) changes: Vec<Change>,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) mishaps: Mishaps,
    /// What becomes of a pod that is terminating.
    pub(crate) then: Then,
    /// The deeds are done in the order in which they are listed.
    pub(crate) in_order: bool,
    /// Evictions insist on the UID of the pod that is there when they are sent.
    pub(crate) insists: bool,
    /// A set owns all pods and wants so many.
    pub(crate) scale: Option<u32>,
    pub(crate) without: BTreeSet<ProtocolRule>,
    /// Too many states for every day: left to `cargo xtask soak`.
    pub(crate) large: bool,
}

pub(crate) fn budget_key(name: &str) -> BudgetKey {
    BudgetKey { object: ObjectKey::new(NAMESPACE, name), kind: BudgetKind::DisruptionBudget }
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let journey = |(place, (operation, pod, _)): (usize, &(Operation, &str, At))| Journey {
            operation: *operation,
            pod: Text::from(*pod),
            stage: RequestState::Planned,
            change: scenario.changes.get(place).copied().unwrap_or(Change::Image(2)),
            meant: None,
            base: None,
            aged: false,
            bound: Vec::new(),
            healthy: None,
        };
        let creates = scenario.deeds.iter().any(|deed| matches!(deed, Deed::Create(..) | Deed::Lose(_)));
        let mut world = Self {
            counts: Counts { pods: 0, budgets: 0, together: scenario.then != Then::Stays || creates },
            clock: Time(0),
            pods: Part::new(BTreeMap::new()),
            budgets: Part::new(BTreeMap::new()),
            leases: Part::new(BTreeMap::new()),
            scale: scenario.scale.map(Scale::new),
            nodes: Vec::new(),
            requests: Part::new(scenario.requests.iter().enumerate().map(journey).collect()),
            store: Part::new((0..scenario.deeds.len()).collect()),
            mishaps: scenario.mishaps,
            floors: Part::new(Floors::default()),
            always_open: scenario.without.contains(&ProtocolRule::ReopenOnCoverage),
            any_generation: scenario.without.contains(&ProtocolRule::SteadyCoverage),
            omits_vanished: scenario.without.contains(&ProtocolRule::WaitForVanished),
            annotated: scenario.deeds.iter().any(|deed| matches!(deed, Deed::Annotate(..))).then_some(0),
            steady: Part::new(BTreeMap::new()),
            habits: Habits::default(),
        };
        for (name, phase, ready) in &scenario.pods {
            world.create_pod(name, Uid::from(*name), *phase, *ready);
        }
        for (name, rules) in &scenario.budgets {
            let mut budget = world.new_budget(name, Uid::from(*name), rules.clone());
            budget.ledger.enforced = Some(quorate_engine::Coverage::of(&budget.uid, rules));
            budget.ledger.enforced_generation = Some(budget.generation);
            budget.ledger.protocol = Some(quorate_engine::claims::PROTOCOL);
            let key = budget.key.clone();
            world.budgets.change(|budgets| budgets.insert(key.clone(), Part::new(budget)));
            world.note_open(&key);
        }
        for (index, (runs, leader)) in scenario.replicas.iter().enumerate() {
            world.nodes.push(Node::new(index, *leader));
            if *runs {
                world.start(index, scenario);
            }
        }
        world
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut().filter(|node| node.mind.is_some())
    }

    pub(crate) fn request(&mut self, request: usize, change: impl FnOnce(&mut Journey)) {
        self.requests.change(|requests| change(&mut requests[request]));
    }

    /// A request is over: nothing of how it came there matters any more.
    fn over(&mut self, request: usize) {
        self.request(request, |journey| {
            journey.stage = RequestState::Over;
            journey.meant = None;
            journey.base = None;
            journey.aged = false;
            journey.bound = Vec::new();
            journey.healthy = None;
        });
        self.forgive(request);
    }

    /// A hash of what is stored and known: equal where no action could find a difference.
    pub(crate) fn stored_and_known(&self) -> u64 {
        digest(&(self.counts, self.clock, &self.pods, &self.budgets, &self.leases, self.scale, &self.nodes))
    }

    /// A hash of the whole state.
    pub(crate) fn fingerprint(&self) -> u64 {
        digest(&(
            (self.counts, self.clock, &self.pods, &self.budgets, &self.leases, self.scale),
            (&self.nodes, &self.requests, &self.store, self.mishaps, &self.floors, &self.steady),
        ))
    }
}
