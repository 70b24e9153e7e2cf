//! A replica as the search sees it, and what it did before when it got the same event in the same state.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use quorate_engine::basics::{Text, Time, Uid, Version};
use quorate_engine::facts::{Budget, BudgetKey, BudgetKind, Controller, Input, Pod};
use quorate_engine::ledger::{CallId, Event, Output, Replica, Reply, RequestId, Settings};
use quorate_engine::request::Request;
use quorate_engine::{Gates, Snapshot};
use rustc_hash::FxHashMap;

use super::part::{Part, digest};
use super::scale::set_kind;

/// So many steps are remembered before all are forgotten: about 1 GiB.
const REMEMBERED: usize = 150_000;

/// A replica, and the calls it waits for in the order in which it made them. Their names only count up, so states are
/// distinguished by that order instead.
#[derive(Clone, Debug)]
pub(crate) struct Mind {
    /// Its name goes into the tokens it makes.
    name: Text,
    pub(crate) replica: Replica,
    calls: Vec<CallId>,
}

impl Hash for Mind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.replica.fingerprint(state);
    }
}

/// What a replica learns.
#[derive(Clone, Debug, Hash)]
pub(crate) enum News {
    Pod(Part<Pod>),
    PodGone(Uid, Version),
    Pods(Vec<Part<Pod>>, Version),
    PodsAt(Version),
    Budget(Part<Budget>),
    BudgetGone(BudgetKey, Version),
    Budgets(Vec<Part<Budget>>),
    BudgetsAt(Version),
    Set(Part<Controller>),
    /// A bookmark of the watch of sets.
    SetsAt,
    Request(RequestId, Part<Request>, Time),
    /// The reply to one of the calls it waits for, by their order.
    Reply(usize, Part<Reply>),
    Serving,
    Leader(bool),
    Tick,
}

impl Mind {
    pub(crate) fn new(settings: Settings) -> Self {
        let name = settings.name.clone();
        Self { name, replica: Replica::new(settings, Gates::default()), calls: Vec::new() }
    }

    /// Tells it something; what it wants done comes back.
    pub(crate) fn hear(&mut self, news: &News, now: Time) -> Vec<Output> {
        let fact = |input| Event::Fact(Box::new(input));
        let events = match news.clone() {
            News::Pod(pod) => vec![fact(Input::Pod(Pod::clone(&pod)))],
            News::PodGone(uid, version) => vec![fact(Input::PodGone(uid, version))],
            News::PodsAt(version) => vec![fact(Input::PodsAt(version))],
            News::Pods(pods, version) => {
                vec![Event::List(Snapshot::Pods(pods.iter().map(|pod| Pod::clone(pod)).collect(), version))]
            }
            News::Budget(budget) => {
                let version = budget.version;
                vec![
                    fact(Input::Budget(Budget::clone(&budget))),
                    Event::BudgetsAt(BudgetKind::DisruptionBudget, version),
                ]
            }
            News::BudgetGone(key, version) => {
                vec![fact(Input::BudgetGone(key)), Event::BudgetsAt(BudgetKind::DisruptionBudget, version)]
            }
            News::Budgets(budgets) => vec![Event::List(Snapshot::Budgets(
                BudgetKind::DisruptionBudget,
                budgets.iter().map(|budget| Budget::clone(budget)).collect(),
            ))],
            News::BudgetsAt(version) => vec![Event::BudgetsAt(BudgetKind::DisruptionBudget, version)],
            News::Set(set) => {
                let kind = set.kind.clone();
                vec![fact(Input::Controller(Controller::clone(&set))), Event::Heard(kind, now)]
            }
            News::SetsAt => vec![Event::Heard(set_kind(), now)],
            News::Request(id, request, deadline) => {
                vec![Event::Request { id, request: Box::new(Request::clone(&request)), deadline }]
            }
            News::Reply(place, reply) => {
                vec![Event::Reply(self.calls.remove(place), Reply::clone(&reply))]
            }
            News::Serving => vec![Event::Synced, Event::Serving(true)],
            News::Leader(leader) => vec![Event::Leader(leader)],
            // A bookmark comes with every tick.
            News::Tick => vec![fact(Input::PodsAt(self.replica.engine().pods_version())), Event::Tick],
        };
        let mut outputs = Vec::new();
        for event in events {
            outputs.extend(self.replica.step(event, now));
        }
        self.replica.take_changes();
        self.calls.extend(outputs.iter().filter_map(|output| match output {
            Output::Call(id, _) => Some(*id),
            _ => None,
        }));
        outputs
    }
}

/// What replicas did before. A replica does the same whenever it gets the same event in the same state, whatever the rest
/// of the world looks like, and there are far fewer states of a replica than of the world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Habits(Rc<RefCell<FxHashMap<(u64, u64), Habit>>>);

/// What a replica became, and what it wanted done.
type Habit = (Part<Mind>, Rc<[Output]>);

impl Habits {
    /// Tells a replica something, or recalls what came of that.
    pub(crate) fn hear(&self, mind: &mut Part<Mind>, news: &News, now: Time) -> Rc<[Output]> {
        let key = (mind.digest(), digest(&(news, now)));
        if let Some((after, outputs)) = self.0.borrow().get(&key) {
            *mind = after.clone();
            return outputs.clone();
        }
        let outputs: Rc<[Output]> = mind.change(|mind| mind.hear(news, now)).into();
        let mut known = self.0.borrow_mut();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, (mind.clone(), outputs.clone()));
        outputs
    }
}
