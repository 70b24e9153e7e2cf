//! An API server with pods, budgets and Leases, replicas that watch it, and requests that come and go.
//!
//! Everything that can happen next is an [`Action`]; a search tries all of them in every order. Time stands still but
//! for [`Action::TimePasses`], which is possible only when nothing is under way that would have ended by then.

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

    fn new_budget(&mut self, name: &str, rules: Rules) -> Budget {
        let version = self.next_revision();
        Budget {
            key: budget_key(name),
            uid: format!("{name}@{}", version.0).into(),
            generation: 1,
            version,
            spec: Ok(rules),
            ledger: Default::default(),
            gone: Box::default(),
        }
    }

    fn create_pod(&mut self, name: &str, phase: Phase, ready: bool) {
        let version = self.next_revision();
        let group = name.chars().next().map(String::from).unwrap_or_default();
        let pod = Pod {
            key: ObjectKey::new(NAMESPACE, name),
            uid: format!("{name}@{}", version.0).into(),
            version,
            labels: Labels::new([("app", "web"), ("name", name), ("group", &group)]),
            node: None,
            phase,
            terminating: false,
            ready,
            ready_since: None,
            consistent: true,
            probe: None,
            owners: Box::default(),
            link: None,
            group_size: None,
            containers: [Container {
                name: "main".into(),
                id: version.0,
                image: 1,
                resources: 0,
                asked_image: 1,
                asked_resources: 0,
            }]
            .into(),
        };
        self.put_pod(&pod);
    }

    fn put_pod(&mut self, pod: &Pod) {
        self.pods.insert(pod.uid.clone(), pod.clone());
        for node in self.running() {
            node.pods.push_back(Input::Pod(pod.clone()));
        }
    }

    fn change_pod(&mut self, uid: &Uid, change: impl FnOnce(&mut Pod)) {
        let version = self.next_revision();
        if let Some(mut pod) = self.pods.get(uid).cloned() {
            change(&mut pod);
            pod.version = version;
            self.put_pod(&pod);
        }
    }

    fn remove_pod(&mut self, uid: &Uid) {
        let version = self.next_revision();
        self.pods.remove(uid);
        for node in self.running() {
            node.pods.push_back(Input::PodGone(uid.clone(), version));
        }
    }

    fn put_budget(&mut self, budget: &Budget) {
        self.budgets.insert(budget.key.clone(), budget.clone());
        for node in self.running() {
            node.budgets.push_back((budget.version, Input::Budget(budget.clone())));
        }
    }

    pub(crate) fn pod_named(&self, name: &str) -> Option<&Pod> {
        self.pods.values().find(|pod| &*pod.key.name == name)
    }

    /// Starts a replica as the server does: Lease, consistent lists, then it serves.
    fn start(&mut self, index: usize, scenario: &Scenario) {
        let node = self.node(index);
        node.incarnation += 1;
        let name = node.process();
        let settings = Settings {
            patience: Duration::ZERO,
            without: scenario.without.clone(),
            ..Settings::new(name.clone())
        };
        node.replica = Some(Replica::new(settings, Gates::default()));
        node.pods.clear();
        node.budgets.clear();
        node.calls.clear();
        let holder = node.holder;
        self.leases.insert(name.clone(), Member { name, acknowledged: Version(0), vanished: false });
        let pods = self.pods.values().cloned().collect();
        let budgets = self.budgets.values().cloned().collect();
        let version = Version(self.revision);
        for event in [
            Event::List(Snapshot::Pods(pods, version)),
            Event::List(Snapshot::Budgets(budgets)),
            Event::BudgetsAt(version),
            Event::Synced,
            Event::Serving(true),
            Event::Holder(holder),
        ] {
            self.step(index, event);
        }
    }

    /// Lets a replica take a step, and puts what it wants on the wire.
    fn step(&mut self, index: usize, event: Event) {
        let clock = self.clock;
        let node = self.node(index);
        let Some(replica) = &mut node.replica else { return };
        let outputs = replica.step(event, clock);
        replica.take_changes();
        let name = node.process();
        for output in outputs {
            match output {
                Output::Call(id, call) => {
                    self.node(index).calls.insert(id, Wire::Sent(call));
                }
                Output::Acknowledge(version) => {
                    if let Some(lease) = self.leases.get_mut(&name) {
                        lease.acknowledged = version;
                    }
                }
                Output::Answer(id, verdict) => self.answered(index, id as usize, &verdict),
                Output::Note(_) => {}
            }
        }
    }

    fn answered(&mut self, index: usize, request: usize, verdict: &Verdict) {
        // An API server that gave up does not hear the answer any more.
        if self.requests[request].stage != Stage::Asked(index) {
            return;
        }
        let uid = match verdict {
            Verdict::Allow(allow) => match allow.pin() {
                Some(uid) => Some(uid.clone()),
                None => self.pod_named(&self.requests[request].pod).map(|pod| pod.uid.clone()),
            },
            Verdict::Deny(_) => None,
        };
        self.requests[request].stage = match uid {
            Some(uid) => Stage::Admitted(uid),
            None => Stage::Over,
        };
        self.note_admitted(request);
    }

    /// Everything that may happen next.
    pub(crate) fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        let mut actions = Vec::new();
        for (request, journey) in self.requests.iter().enumerate() {
            match &journey.stage {
                Stage::Planned => {
                    let at = scenario.requests[request].2;
                    let running = self
                        .nodes
                        .iter()
                        .enumerate()
                        .filter(|(index, _)| at == Ask::Any || at == Ask::At(*index))
                        .filter(|(_, node)| node.replica.is_some());
                    actions.extend(running.map(|(node, _)| Action::Send(request, node)));
                }
                Stage::Asked(node) => {
                    if self.mishaps.timeouts > 0 || self.nodes[*node].replica.is_none() {
                        actions.push(Action::Timeout(request));
                    }
                }
                Stage::Admitted(_) => {
                    actions.push(Action::Execute(request));
                    if self.mishaps.refusals > 0 {
                        actions.push(Action::Refuse(request));
                    }
                }
                Stage::Over => {}
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.replica.is_none() {
                continue;
            }
            if !node.pods.is_empty() {
                actions.push(Action::ShowPod(index));
            }
            if !node.budgets.is_empty() {
                actions.push(Action::ShowBudget(index));
            }
            for (id, wire) in &node.calls {
                match wire {
                    Wire::Sent(_) => actions.push(Action::Perform(index, *id)),
                    Wire::Answered(_) => {
                        actions.push(Action::Deliver(index, *id));
                        if self.mishaps.lost > 0 {
                            actions.push(Action::Lose(index, *id));
                        }
                    }
                }
            }
            if self.mishaps.crashes > 0 && index + 1 == self.nodes.len() {
                actions.push(Action::Crash(index));
            }
            if self.mishaps.relists > 0 && !node.pods.is_empty() {
                actions.push(Action::Relist(index));
            }
        }
        for (uid, pod) in &self.pods {
            // Where nobody takes its place, a pod that is gone is one that is terminating, to everybody.
            if pod.terminating && scenario.successors {
                actions.push(Action::Finish(uid.clone()));
            }
            if pod.containers.iter().any(|c| c.image != c.asked_image) {
                actions.push(Action::Restart(uid.clone()));
            }
        }
        actions.extend(
            self.store
                .iter()
                .filter(|deed| self.is_possible(&scenario.deeds[**deed]))
                .map(|deed| Action::Do(*deed)),
        );
        for (index, node) in self.nodes.iter().enumerate() {
            let closed = self.budgets.values().any(|budget| !self.is_open(budget));
            if node.replica.is_some() && node.holder && closed && node.calls.is_empty() {
                actions.push(Action::Tick(index));
            }
        }
        // Nothing is under way for long.
        let old =
            self.requests.iter().any(|j| j.aged && matches!(j.stage, Stage::Asked(_) | Stage::Admitted(_)));
        if self.mishaps.time > 0 && !old {
            actions.push(Action::TimePasses);
        }
        actions
    }

    fn is_possible(&self, deed: &Deed) -> bool {
        match deed {
            Deed::Heal(name) => self.pod_named(name).is_some_and(|pod| !pod.ready && !pod.terminating),
            Deed::Create(name, _) => self.pod_named(name).is_none(),
            Deed::MakeBudget(name, _) => !self.budgets.contains_key(&budget_key(name)),
            Deed::ChangeBudget(name, _) | Deed::DeleteBudget(name) => {
                self.budgets.contains_key(&budget_key(name))
            }
            Deed::Start(node) => self.nodes[*node].replica.is_none(),
            Deed::Holder(node, holder) => self.nodes[*node].holder != *holder,
        }
    }

    /// Lets one thing happen.
    pub(crate) fn act(&mut self, action: &Action, scenario: &Scenario) {
        let before = self.nodes.clone();
        self.happen(action, scenario);
        for (index, was) in before.iter().enumerate() {
            if Arc::ptr_eq(was, &self.nodes[index]) {
                continue;
            }
            if let Some(version) = self.node(index).skip_known_budgets() {
                self.step(index, Event::BudgetsAt(version));
            }
            let digest = self.nodes[index].digest();
            self.node(index).digest = digest;
        }
        self.keep_floors();
    }

    fn happen(&mut self, action: &Action, scenario: &Scenario) {
        match action {
            Action::Send(request, node) => self.send(*request, *node),
            Action::ShowPod(node) => {
                if let Some(input) = self.node(*node).pods.pop_front() {
                    self.step(*node, Event::Fact(Box::new(input)));
                }
            }
            Action::ShowBudget(node) => {
                if let Some((version, input)) = self.node(*node).budgets.pop_front() {
                    self.step(*node, Event::Fact(Box::new(input)));
                    self.step(*node, Event::BudgetsAt(version));
                }
            }
            Action::Perform(node, id) => {
                if let Some(Wire::Sent(call)) = self.nodes[*node].calls.get(id).cloned() {
                    let reply = self.perform(*node, &call);
                    self.node(*node).calls.insert(*id, Wire::Answered(reply));
                }
            }
            Action::Deliver(node, id) => {
                if let Some(Wire::Answered(reply)) = self.node(*node).calls.remove(id) {
                    self.step(*node, Event::Reply(*id, reply));
                }
            }
            Action::Lose(node, id) => {
                self.mishaps.lost -= 1;
                self.node(*node).calls.remove(id);
                self.step(*node, Event::Reply(*id, Reply::Lost));
            }
            Action::Execute(request) => self.execute(*request, scenario),
            Action::Refuse(request) => {
                self.mishaps.refusals -= 1;
                self.requests[*request].stage = Stage::Over;
            }
            Action::Finish(uid) => {
                let name = self.pods.get(uid).map(|pod| pod.key.name.clone());
                self.remove_pod(uid);
                if let (Some(name), true) = (name, scenario.successors) {
                    self.create_pod(&name, Phase::Running, true);
                }
            }
            Action::Restart(uid) => {
                let id = self.revision + 1;
                self.change_pod(uid, |pod| {
                    for container in &mut pod.containers {
                        container.image = container.asked_image;
                        container.id = id;
                    }
                });
            }
            Action::Do(deed) => {
                self.store.remove(deed);
                self.do_deed(&scenario.deeds[*deed].clone(), scenario);
            }
            Action::Crash(node) => {
                self.mishaps.crashes -= 1;
                self.crash(*node);
            }
            Action::Relist(node) => {
                self.mishaps.relists -= 1;
                self.node(*node).pods.clear();
                let pods = self.pods.values().cloned().collect();
                self.step(*node, Event::List(Snapshot::Pods(pods, Version(self.revision))));
            }
            Action::Timeout(request) => {
                if matches!(self.requests[*request].stage, Stage::Asked(node) if self.nodes[node].replica.is_some())
                {
                    self.mishaps.timeouts -= 1;
                }
                self.requests[*request].stage = Stage::Over;
            }
            Action::Tick(node) => self.step(*node, Event::Tick),
            Action::TimePasses => self.pass_time(),
        }
    }

    fn send(&mut self, request: usize, node: usize) {
        let journey = &self.requests[request];
        // A delete or an update carries the very object; an eviction knows a name.
        let object = self.pod_named(&journey.pod).cloned();
        if object.is_none() && journey.operation != Operation::Evict {
            self.requests[request].stage = Stage::Over;
            return;
        }
        let target = match (journey.operation, &object) {
            (Operation::Update, Some(pod)) => Target(
                [ContainerChange {
                    name: "main".into(),
                    replaces: Some(pod.containers[0].id),
                    image: Some(2),
                    resources: None,
                }]
                .into(),
            ),
            _ => Target::default(),
        };
        let asked = Request {
            operation: journey.operation,
            pod: ObjectKey::new(NAMESPACE, journey.pod.clone()),
            object: object.filter(|_| journey.operation != Operation::Evict),
            precondition: None,
            caller: Caller::named("alice"),
            dry_run: false,
            target,
        };
        self.requests[request].stage = Stage::Asked(node);
        self.note_sent(request);
        let deadline = self.clock.after(DEADLINE);
        self.step(node, Event::Ask { id: request as u64, request: Box::new(asked), deadline });
    }

    /// What the API server does with a call.
    fn perform(&mut self, node: usize, call: &Call) -> Reply {
        match call {
            Call::Patch(patch) => {
                let Some(mut budget) = self.budgets.get(&patch.budget).cloned() else {
                    return Reply::Wrote(Wrote::Gone);
                };
                let was_open = self.is_open(&budget);
                let mut ledger = budget.ledger.clone();
                let mut stored =
                    Stored { uid: &budget.uid.clone(), generation: budget.generation, ledger: &mut ledger };
                if !patch.apply(&mut stored) {
                    return Reply::Wrote(Wrote::Refused);
                }
                budget.ledger = ledger;
                budget.version = self.next_revision();
                let opened = !was_open && self.is_open(&budget);
                self.put_budget(&budget);
                if opened {
                    self.note_open(&budget.key);
                }
                Reply::Wrote(Wrote::Done(Box::new(budget)))
            }
            Call::GetBudget(key) => Reply::Budget(self.budgets.get(key).cloned().map(Box::new)),
            Call::GetPod(key) => match self.pod_named(&key.name) {
                Some(pod) => Reply::Pod(PodRead::There(Box::new(pod.clone()))),
                None => Reply::Pod(PodRead::Gone),
            },
            Call::ListPods(key) => {
                let known = self.nodes[node].replica.as_ref().and_then(|r| r.engine().budget(key));
                let selected = |pod: &&Pod| match known.map(|budget| &budget.spec) {
                    Some(Ok(Rules { covers: Covers::Selector(selector), .. })) => {
                        selector.matches(&pod.labels)
                    }
                    _ => false,
                };
                let pods = self.pods.values().filter(selected).cloned().collect();
                Reply::Pods(pods, Version(self.revision))
            }
            Call::ListReplicas => Reply::Replicas(self.leases.values().cloned().collect()),
        }
    }

    pub(crate) fn is_open(&self, budget: &Budget) -> bool {
        if self.always_open {
            return budget.ledger.enforced.is_some();
        }
        let coverage = budget.spec.as_ref().ok().map(|rules| quorate_engine::coverage(&budget.uid, rules));
        budget.ledger.enforced == coverage
    }

    /// The API server carries out what was admitted.
    fn execute(&mut self, request: usize, scenario: &Scenario) {
        let journey = self.requests[request].clone();
        let Stage::Admitted(uid) = journey.stage else { return };
        let by_name = self.pod_named(&journey.pod).map(|pod| pod.uid.clone());
        let pinned = journey.operation != Operation::Evict || !scenario.without.contains(&Rule::Pin);
        let struck = if pinned { self.pods.contains_key(&uid).then_some(uid) } else { by_name };
        if let Some(uid) = struck.filter(|uid| self.pods.get(uid).is_some_and(|pod| !pod.terminating)) {
            match journey.operation {
                Operation::Evict | Operation::Delete => self.change_pod(&uid, |pod| pod.terminating = true),
                Operation::Update | Operation::Resize => {
                    self.change_pod(&uid, |pod| pod.containers[0].asked_image = 2);
                }
            }
        }
        self.requests[request].stage = Stage::Over;
    }

    fn do_deed(&mut self, deed: &Deed, scenario: &Scenario) {
        match deed {
            Deed::Heal(name) => {
                if let Some(uid) = self.pod_named(name).map(|pod| pod.uid.clone()) {
                    self.change_pod(&uid, |pod| {
                        pod.ready = true;
                        pod.phase = Phase::Running;
                    });
                }
            }
            Deed::Create(name, ready) => self.create_pod(name, Phase::Running, *ready),
            Deed::MakeBudget(name, rules) => {
                let budget = self.new_budget(name, rules.clone());
                self.put_budget(&budget);
            }
            Deed::ChangeBudget(name, rules) => {
                let version = self.next_revision();
                if let Some(mut budget) = self.budgets.get(&budget_key(name)).cloned() {
                    budget.spec = Ok(rules.clone());
                    budget.generation += 1;
                    budget.version = version;
                    self.put_budget(&budget);
                    self.note_change(&budget_key(name));
                }
            }
            Deed::DeleteBudget(name) => {
                let version = self.next_revision();
                let key = budget_key(name);
                self.budgets.remove(&key);
                self.floors.drop(&key);
                for node in self.running() {
                    node.budgets.push_back((version, Input::BudgetGone(key.clone())));
                }
            }
            Deed::Start(node) => self.start(*node, scenario),
            Deed::Holder(node, holder) => {
                self.node(*node).holder = *holder;
                self.step(*node, Event::Holder(*holder));
            }
        }
    }

    fn crash(&mut self, index: usize) {
        let node = self.node(index);
        let name = node.process();
        node.replica = None;
        node.pods.clear();
        node.budgets.clear();
        // What was sent and performed stays; what was not is as if it had never been sent.
        node.calls.clear();
        if let Some(lease) = self.leases.get_mut(&name) {
            lease.vanished = true;
            self.vanished.insert(name, self.clock);
        }
    }

    /// Enough time for every bound of the protocol to pass.
    fn pass_time(&mut self) {
        self.mishaps.time -= 1;
        self.clock = self.clock.after(A_WHILE);
        let clock = self.clock;
        let vanished = &self.vanished;
        self.leases.retain(|name, _| vanished.get(name).is_none_or(|at| clock < at.after(2 * A_WHILE)));
        for journey in &mut self.requests {
            journey.aged = matches!(journey.stage, Stage::Asked(_) | Stage::Admitted(_));
        }
        for index in 0..self.nodes.len() {
            // A watch that has nothing to show says how far it has come.
            if self.nodes[index].pods.is_empty() {
                self.step(index, Event::Fact(Box::new(Input::PodsAt(Version(self.revision)))));
            }
            self.step(index, Event::Heard);
            self.step(index, Event::Tick);
        }
    }

    /// Lets everything that is under way come to its end, and then enough time pass, a few times over. Whoever holds
    /// the lease has then had every chance to tidy up.
    pub(crate) fn run_out(&mut self, scenario: &Scenario) {
        for _ in 0..5 {
            self.mishaps = Mishaps { time: 1, ..Mishaps::default() };
            self.pass_time();
            while let Some(action) = self.actions(scenario).into_iter().find(|action| {
                matches!(
                    action,
                    Action::ShowPod(_) | Action::ShowBudget(_) | Action::Perform(..) | Action::Deliver(..)
                )
            }) {
                self.act(&action, scenario);
            }
        }
    }

    /// Nothing is under way anywhere.
    pub(crate) fn is_quiet(&self) -> bool {
        self.nodes.iter().all(|node| node.pods.is_empty() && node.budgets.is_empty() && node.calls.is_empty())
            && self.requests.iter().all(|journey| journey.stage == Stage::Over)
            && self.pods.values().all(|pod| pod.containers.iter().all(|c| c.image == c.asked_image))
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
