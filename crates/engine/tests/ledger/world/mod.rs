//! An API server with pods, budgets and Leases, replicas that watch it, and requests that come and go.
//!
//! Everything that can happen next is an [`Action`]; a search tries all of them in every order. Time stands still but
//! for [`Action::TimePasses`], which is possible only when nothing is under way that would have ended by then.

mod apiserver;
mod happenings;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Uid, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{ContainerChange, Target};
use quorate_engine::facts::{
    Budget, BudgetKey, Container, Covers, Front, Input, Operation, Phase, Pod, Rules,
};
use quorate_engine::ledger::{
    Call, CallId, Event, Member, Output, PodRead, Replica, Reply, Rule, Settings, Stored, Wrote,
};
use quorate_engine::request::Request;
use quorate_engine::verdict::Verdict;
use quorate_engine::{Gates, Snapshot};

use super::truth::Floors;

pub(crate) const NAMESPACE: &str = "ns";
/// Two of these are longer than the expiry of tokens, the memory of admissions and the life of a vanished replica's
/// Lease. What the API server carries out takes less than two.
const A_WHILE: Duration = Duration::from_secs(61);
const DEADLINE: Duration = Duration::from_secs(10);

/// Everything there is.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) revision: u64,
    pub(crate) clock: Time,
    pub(crate) pods: BTreeMap<Uid, Pod>,
    pub(crate) budgets: BTreeMap<BudgetKey, Budget>,
    leases: BTreeMap<Text, Member>,
    vanished: BTreeMap<Text, Time>,
    /// Shared with the states before and after, as long as nothing happens to a replica.
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) requests: Vec<Journey>,
    /// What the scenario still has in store, by its place in the scenario's list.
    pub(crate) store: BTreeSet<usize>,
    /// How often a reply may still be lost, a replica crash, a watch start over.
    pub(crate) mishaps: Mishaps,
    pub(crate) floors: Floors,
    /// The rule is left out that a budget is opened again when it covers other pods.
    always_open: bool,
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
    pub(crate) replica: Option<Replica>,
    name: Text,
    incarnation: u8,
    holder: bool,
    pods: VecDeque<Input>,
    budgets: VecDeque<(Version, Input)>,
    calls: BTreeMap<CallId, Wire>,
    /// The hash of all this.
    digest: u64,
}

impl Node {
    fn new(index: usize, holder: bool) -> Self {
        Self {
            replica: None,
            name: Text::from(format!("r{index}")),
            incarnation: 0,
            holder,
            pods: VecDeque::new(),
            budgets: VecDeque::new(),
            calls: BTreeMap::new(),
            digest: 0,
        }
    }

    fn process(&self) -> Text {
        format!("{}.{}", self.name, self.incarnation).into()
    }

    fn digest(&self) -> u64 {
        let mut hasher = rustc_hash::FxHasher::default();
        let state = &mut hasher;
        (&self.name, self.incarnation, self.holder, self.calls.values().collect::<Vec<_>>()).hash(state);
        for input in &self.pods {
            match input {
                Input::Pod(pod) => hash_pod(pod, state),
                Input::PodGone(uid, version) => (1u8, uid, version).hash(state),
                _ => {}
            }
        }
        for (version, input) in &self.budgets {
            version.hash(state);
            if let Input::Budget(budget) = input {
                (budget.generation, &budget.ledger).hash(state);
            }
        }
        match &self.replica {
            Some(replica) => replica.fingerprint(state),
            None => 0u8.hash(state),
        }
        hasher.finish()
    }

    /// The next event of a budget that tells this replica something it does not know from its own writes.
    fn skip_known_budgets(&mut self) -> Option<Version> {
        let mut seen = None;
        while let (Some((version, Input::Budget(budget))), Some(replica)) =
            (self.budgets.front(), &self.replica)
        {
            let known = replica.engine().budget(&budget.key);
            if known.is_none_or(|known| known.uid != budget.uid || known.version < budget.version) {
                break;
            }
            seen = Some(*version);
            self.budgets.pop_front();
        }
        seen
    }

    pub(crate) fn is_holder(&self) -> bool {
        self.holder && self.replica.is_some()
    }
}

/// A call on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wire {
    Sent(Call),
    Answered(Reply),
}

/// A request and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Journey {
    pub(crate) operation: Operation,
    pub(crate) pod: Text,
    pub(crate) stage: Stage,
    /// It was under way already when time last passed.
    aged: bool,
    /// The budgets that were open when it was sent, and their generations.
    pub(crate) bound: Vec<(BudgetKey, i64)>,
    /// The pod, if it was healthy when it was sent and has been since.
    pub(crate) healthy: Option<Uid>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Nobody has sent it yet.
    Planned,
    /// A replica is thinking about it.
    Asked(usize),
    /// Admitted: the API server is about to carry it out on this pod.
    Admitted(Uid),
    /// It is over.
    Over,
}

/// Which replica a request may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
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
    /// A budget is made, or made anew after it was deleted.
    MakeBudget(&'static str, Rules),
    /// A budget's rules are changed.
    ChangeBudget(&'static str, Rules),
    /// A budget is deleted.
    DeleteBudget(&'static str),
    /// A replica that does not run is started.
    Start(usize),
    /// A replica becomes holder, or stops being one.
    Holder(usize, bool),
}

/// What may happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Send(usize, usize),
    ShowPod(usize),
    ShowBudget(usize),
    Perform(usize, CallId),
    Deliver(usize, CallId),
    Lose(usize, CallId),
    Execute(usize),
    Refuse(usize),
    Finish(Uid),
    Restart(Uid),
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
    /// Replicas: whether each runs from the start, and is holder.
    pub(crate) replicas: Vec<(bool, bool)>,
    /// What is asked, and of which replica.
    pub(crate) requests: Vec<(Operation, &'static str, Ask)>,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) mishaps: Mishaps,
    /// A pod that is gone comes back under its name, ready.
    pub(crate) successors: bool,
    pub(crate) without: BTreeSet<Rule>,
    /// Too many states for every day: left to `cargo xtask soak`.
    pub(crate) large: bool,
}

pub(crate) fn budget_key(name: &str) -> BudgetKey {
    BudgetKey { object: ObjectKey::new(NAMESPACE, name), front: Front::DisruptionBudget }
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let mut world = Self {
            revision: 1,
            clock: Time(0),
            pods: BTreeMap::new(),
            budgets: BTreeMap::new(),
            leases: BTreeMap::new(),
            vanished: BTreeMap::new(),
            nodes: Vec::new(),
            requests: scenario
                .requests
                .iter()
                .map(|(operation, pod, _)| Journey {
                    operation: *operation,
                    pod: Text::from(*pod),
                    stage: Stage::Planned,
                    aged: false,
                    bound: Vec::new(),
                    healthy: None,
                })
                .collect(),
            store: (0..scenario.deeds.len()).collect(),
            mishaps: scenario.mishaps,
            floors: Floors::default(),
            always_open: scenario.without.contains(&Rule::ReopenOnCoverage),
        };
        for (name, phase, ready) in &scenario.pods {
            world.create_pod(name, *phase, *ready);
        }
        for (name, rules) in &scenario.budgets {
            let mut budget = world.new_budget(name, rules.clone());
            budget.ledger.enforced = Some(quorate_engine::coverage(&budget.uid, rules));
            budget.ledger.protocol = Some(quorate_engine::claims::PROTOCOL);
            let key = budget.key.clone();
            world.budgets.insert(key.clone(), budget);
            world.note_open(&key);
        }
        for (index, (runs, holder)) in scenario.replicas.iter().enumerate() {
            world.nodes.push(Arc::new(Node::new(index, *holder)));
            if *runs {
                world.start(index, scenario);
            }
        }
        for node in &mut world.nodes {
            let digest = node.digest();
            Arc::make_mut(node).digest = digest;
        }
        world
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut().filter(|node| node.replica.is_some()).map(Arc::make_mut)
    }

    fn node(&mut self, index: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[index])
    }

    fn next_revision(&mut self) -> Version {
        self.revision += 1;
        Version(self.revision)
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.revision, self.clock, &self.leases, &self.vanished).hash(state);
        for budget in self.budgets.values() {
            (&budget.uid, budget.version, budget.generation, &budget.ledger).hash(state);
        }
        for pod in self.pods.values() {
            hash_pod(pod, state);
        }
        (&self.requests, &self.store, self.mishaps, &self.floors).hash(state);
        for node in &self.nodes {
            node.digest.hash(state);
        }
    }
}

/// What can change of a pod here.
fn hash_pod(pod: &Pod, state: &mut impl Hasher) {
    (&pod.uid, pod.version, pod.phase, pod.ready, pod.terminating, &pod.containers).hash(state);
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let hash = |world: &Self| {
            let mut hasher = std::hash::DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        hash(self) == hash(other)
    }
}
