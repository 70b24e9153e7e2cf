//! The processes: how they start, crash, lose the API server, watch late, and hold the lease.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quorate_engine::basics::{ObjectKey, Text, Time, Version};
use quorate_engine::facts::{BudgetKind, Input, WorkloadSource};
use quorate_engine::ledger::{
    Acknowledged, Admission, CallId, Event, Output, Replica, ReplicaLease, Settings,
};
use quorate_engine::{Gates, Snapshot};
use rand::Rng;

use super::apiserver::Sent;
use super::cluster::{Cluster, Happening, NAMESPACE, Process};

/// How long a Lease holds, and how long it is kept after its end.
const LEASE_HOLDS: Duration = Duration::from_secs(15);
const LEASE_KEPT: Duration = Duration::from_secs(120);
/// A process that could not renew its Lease for this long stops answering, well before it can be taken for dead.
const STOPS_AFTER: Duration = Duration::from_secs(10);
/// A watch says how far it has come at least as often as this, as an API server has it.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// One replica of the server, in this or an earlier life.
pub(crate) struct Node {
    pub(crate) replica: Option<Replica>,
    pub(crate) life: u32,
    pub(crate) leader: bool,
    pub(crate) serving: bool,
    /// It does not reach the API server.
    pub(crate) cut_off: bool,
    /// Its clock is so far off, in milliseconds.
    skew: i64,
    /// How far its pod watch has come.
    pub(crate) seen: Version,
    pods: Watch,
    budgets: Watch,
    pub(crate) calls: BTreeMap<(u32, CallId), Sent>,
}

/// What a watch has yet to show, and when. One that was cut shows nothing until it starts over.
#[derive(Default)]
struct Watch {
    due: VecDeque<(Time, Version, Input)>,
    cut: bool,
    /// When it was last given a bookmark to show.
    bookmarked: Time,
}

/// The Lease of a process.
pub(crate) struct Lease {
    acknowledged: Acknowledged,
    renewed: Time,
    serves: bool,
    /// What it handed over when it ended.
    admitted: Vec<Admission>,
}

impl Lease {
    fn new(renewed: Time) -> Self {
        Self { acknowledged: Acknowledged::default(), renewed, serves: false, admitted: Vec::new() }
    }
}

impl Node {
    pub(crate) fn new(skew: i64) -> Self {
        Self {
            replica: None,
            life: 0,
            leader: false,
            serving: false,
            cut_off: false,
            skew,
            seen: Version(0),
            pods: Watch::default(),
            budgets: Watch::default(),
            calls: BTreeMap::new(),
        }
    }
}

impl Cluster {
    pub(crate) fn process_name(node: usize, life: u32) -> Text {
        format!("r{node}.{life}").into()
    }

    pub(crate) fn process(&self, node: usize) -> Process {
        Process { node, life: self.nodes[node].life }
    }

    pub(crate) fn is_alive(&self, process: Process) -> bool {
        let node = &self.nodes[process.node];
        node.life == process.life && node.replica.is_some()
    }

    /// The processes that run.
    pub(crate) fn running(&self) -> Vec<Process> {
        let running = (0..self.nodes.len()).filter(|node| self.nodes[*node].replica.is_some());
        running.map(|node| self.process(node)).collect()
    }

    /// The time as a process sees it.
    pub(crate) fn clock(&self, node: usize) -> Time {
        Time(self.now.0 + self.nodes[node].skew)
    }

    /// Starts a process as the server does: its Lease first, then everything else.
    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].replica.is_some() {
            return;
        }
        self.nodes[node].life += 1;
        let process = self.process(node);
        let name = Self::process_name(node, process.life);
        self.log(|| format!("{name} starts"));
        let settings =
            Settings { without: self.without.clone(), opens_unguarded: true, ..Settings::new(name.clone()) };
        let place = &mut self.nodes[node];
        place.replica = Some(Replica::new(settings, Gates::default()));
        (place.leader, place.serving, place.cut_off) = (false, false, false);
        place.seen = Version(0);
        let watch = || Watch { cut: true, bookmarked: self.now, ..Watch::default() };
        (place.pods, place.budgets) = (watch(), watch());
        self.leases.insert(name, Lease::new(self.now));
        for app in self.plan.apps.clone() {
            self.step(process, Event::Fact(Box::new(Input::Controller(app.controller()))));
            if let Some(workload) = app.workload() {
                let key = ObjectKey::new(NAMESPACE, app.name.clone());
                self.step(
                    process,
                    Event::Fact(Box::new(Input::Workload(WorkloadSource::Own, key, Some(workload)))),
                );
            }
        }
        self.plan_in(1..500, Happening::RelistPods(process));
        self.plan_in(500..1_000, Happening::RelistBudgets(process));
        self.plan_in(1_000..1_100, Happening::Serve(process));
        self.plan_in(1..1_000, Happening::Tick(process));
        self.plan_in(1..5_000, Happening::Renew(process));
    }

    pub(crate) fn serve(&mut self, process: Process) {
        if !self.is_alive(process) || self.nodes[process.node].cut_off {
            return;
        }
        let node = &self.nodes[process.node];
        if node.pods.cut || node.budgets.cut {
            self.plan_in(100..200, Happening::Serve(process));
            return;
        }
        // The Lease says first that it serves. Then the budgets are listed once more.
        let name = Self::process_name(process.node, process.life);
        if self.leases.get_mut(&name).is_some_and(|lease| !std::mem::replace(&mut lease.serves, true)) {
            self.nodes[process.node].budgets.cut();
            self.plan_in(1..500, Happening::RelistBudgets(process));
            self.plan_in(500..600, Happening::Serve(process));
            return;
        }
        self.nodes[process.node].serving = true;
        self.step(process, Event::Synced);
        self.step(process, Event::Serving(true));
    }

    /// A process ends: in order, if it can say so, else as in a crash.
    pub(crate) fn crash(&mut self, node: usize) {
        let name = Self::process_name(node, self.nodes[node].life);
        let in_order = !self.nodes[node].cut_off && self.chance(500);
        let admitted = self.nodes[node].replica.as_ref().map(Replica::admitted_recently);
        match (self.leases.get_mut(&name), admitted) {
            (Some(lease), Some(admitted)) if in_order => {
                if !admitted.is_empty() {
                    self.tallies.count("handed over");
                }
                (lease.serves, lease.admitted) = (false, admitted);
                self.tallies.count("end");
            }
            _ => self.tallies.count("crash"),
        }
        self.log(|| format!("r{node} ends, in order: {in_order}"));
        let place = &mut self.nodes[node];
        place.replica = None;
        place.leader = false;
        let life = place.life;
        self.abandon(node, life);
        self.plan_in(500..20_000, Happening::Start(node));
    }

    /// A process loses the API server for a while.
    pub(crate) fn cut_off(&mut self, node: usize) {
        self.tallies.count("cut off");
        self.log(|| format!("r{node} is cut off"));
        let process = self.process(node);
        self.nodes[node].cut_off = true;
        self.nodes[node].pods.cut();
        self.nodes[node].budgets.cut();
        let long = if self.chance(300) { 60_000..200_000 } else { 500..20_000 };
        self.plan_in(long, Happening::Reconnect(process));
    }

    pub(crate) fn reconnect(&mut self, process: Process) {
        if !self.is_alive(process) || !self.nodes[process.node].cut_off {
            return;
        }
        self.log(|| format!("{process:?} is back"));
        self.nodes[process.node].cut_off = false;
        if !self.write_lease(process) {
            return;
        }
        self.plan_in(1..500, Happening::RelistPods(process));
        self.plan_in(1..500, Happening::RelistBudgets(process));
        if !self.nodes[process.node].serving {
            self.plan_in(500..600, Happening::Serve(process));
        }
    }

    /// Renews the Lease of a process. A process whose Lease is gone ends, and this returns false: the others went on
    /// without it.
    fn write_lease(&mut self, process: Process) -> bool {
        let name = Self::process_name(process.node, process.life);
        let now = self.now;
        let Some(lease) = self.leases.get_mut(&name) else {
            self.crash(process.node);
            return false;
        };
        lease.renewed = now;
        true
    }

    pub(crate) fn renew(&mut self, process: Process) {
        if !self.is_alive(process) {
            return;
        }
        if !self.nodes[process.node].cut_off && !self.write_lease(process) {
            return;
        }
        self.plan_in(3_000..5_000, Happening::Renew(process));
    }

    pub(crate) fn publish(&mut self, process: Process, version: Version) {
        if !self.is_alive(process) {
            return;
        }
        if self.nodes[process.node].cut_off {
            self.plan_in(500..1_000, Happening::Publish(process, version));
            return;
        }
        let name = Self::process_name(process.node, process.life);
        if let Some(lease) = self.leases.get_mut(&name) {
            let known = lease.acknowledged.budgets.max(version);
            lease.acknowledged = lease.acknowledged.with(BudgetKind::DisruptionBudget, known);
        }
    }

    /// The Leases, as a consistent list shows them.
    pub(crate) fn members(&mut self) -> Vec<ReplicaLease> {
        let now = self.now;
        self.leases.retain(|_, lease| now < lease.renewed.after(LEASE_HOLDS + LEASE_KEPT));
        let member = |(name, lease): (&Text, &Lease)| ReplicaLease {
            name: name.clone(),
            acknowledged: lease.acknowledged,
            serves: lease.serves,
            admitted: lease.admitted.clone(),
        };
        self.leases.iter().map(member).collect()
    }

    pub(crate) fn tick(&mut self, process: Process) {
        if !self.is_alive(process) {
            return;
        }
        let name = Self::process_name(process.node, process.life);
        let late = self.leases.get(&name).is_none_or(|lease| self.now >= lease.renewed.after(STOPS_AFTER));
        if late && self.nodes[process.node].serving {
            self.nodes[process.node].serving = false;
            self.step(process, Event::Serving(false));
        }
        let silent_since = self.nodes[process.node].pods.bookmarked;
        if self.chance(50) || self.now >= silent_since.after(BOOKMARK_EVERY) {
            let version = Version(self.revision);
            self.nodes[process.node].pods.bookmarked = self.now;
            self.enqueue_pod(process.node, version, Input::PodsAt(version));
        }
        self.step(process, Event::Tick);
        self.plan_in(400..600, Happening::Tick(process));
    }

    /// Makes some process the leader, and another stop being it: a little sooner or later.
    pub(crate) fn pass_lease(&mut self) {
        let running = self.running();
        if running.is_empty() {
            return;
        }
        let next = running[self.pick(running.len())];
        for process in running.into_iter().filter(|process| *process != next) {
            if self.nodes[process.node].leader {
                self.plan_in(1..8_000, Happening::Leader(process, false));
            }
        }
        self.plan_in(1..4_000, Happening::Leader(next, true));
    }

    pub(crate) fn set_leader(&mut self, process: Process, holds: bool) {
        if !self.is_alive(process) {
            return;
        }
        self.nodes[process.node].leader = holds;
        if self.nodes.iter().filter(|node| node.leader).count() > 1 {
            self.tallies.count("two leaders");
        }
        self.step(process, Event::Leader(holds));
    }

    /// Lets a replica take a step, and sees to what it wants.
    pub(crate) fn step(&mut self, process: Process, event: Event) {
        let clock = self.clock(process.node);
        let Some(replica) = &mut self.nodes[process.node].replica else { return };
        let outputs = replica.step(event, clock);
        replica.take_changes();
        for output in outputs {
            match output {
                Output::Call(id, call) => self.send(process, id, call),
                Output::Acknowledge(known) => {
                    self.plan_in(1..300, Happening::Publish(process, known.budgets));
                }
                Output::Answer(id, decision) => self.answered(process, id, &decision),
                Output::Note(note) => self.noted(process, &note),
            }
        }
    }
}

/// Watches.
impl Cluster {
    pub(crate) fn show_pod(&mut self, version: Version, input: &Input) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].replica.is_some() {
                self.enqueue_pod(node, version, input.clone());
            }
        }
    }

    fn enqueue_pod(&mut self, node: usize, version: Version, input: Input) {
        let due = self.due();
        let process = self.process(node);
        if let Some(at) = self.nodes[node].pods.enqueue(due, version, input) {
            self.plan_at(at, Happening::ShowPods(process));
        }
    }

    pub(crate) fn show_budget(&mut self, version: Version, input: &Input) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].replica.is_none() {
                continue;
            }
            let due = self.due();
            let process = self.process(node);
            if let Some(at) = self.nodes[node].budgets.enqueue(due, version, input.clone()) {
                self.plan_at(at, Happening::ShowBudgets(process));
            }
        }
    }

    /// When a watch shows what happens now: soon, and sometimes much later.
    fn due(&mut self) -> Time {
        let millis = match self.rng.random_range(0..1_000) {
            0 if !self.calm => self.rng.random_range(1_000..20_000),
            1..30 if !self.calm => self.rng.random_range(50..1_000),
            _ => self.rng.random_range(1..30),
        };
        self.now.after(Duration::from_millis(millis))
    }

    pub(crate) fn show_pods(&mut self, process: Process) {
        while self.is_alive(process) {
            match self.nodes[process.node].pods.next(self.now) {
                Next::Shown(version, input) => {
                    let node = &mut self.nodes[process.node];
                    node.seen = node.seen.max(version);
                    self.step(process, Event::Fact(input));
                }
                Next::At(at) => return self.plan_at(at, Happening::ShowPods(process)),
                Next::Nothing => return,
            }
        }
    }

    pub(crate) fn show_budgets(&mut self, process: Process) {
        while self.is_alive(process) {
            match self.nodes[process.node].budgets.next(self.now) {
                Next::Shown(version, input) => {
                    self.step(process, Event::Fact(input));
                    self.step(process, Event::BudgetsAt(BudgetKind::DisruptionBudget, version));
                }
                Next::At(at) => return self.plan_at(at, Happening::ShowBudgets(process)),
                Next::Nothing => return,
            }
        }
    }

    /// Cuts a watch: what it had not shown is not shown, and it starts over with a list.
    pub(crate) fn cut_watch(&mut self, node: usize, of_pods: bool) {
        self.tallies.count("relist");
        let process = self.process(node);
        if of_pods {
            self.nodes[node].pods.cut();
            self.plan_in(1..5_000, Happening::RelistPods(process));
        } else {
            self.nodes[node].budgets.cut();
            self.plan_in(1..5_000, Happening::RelistBudgets(process));
        }
    }

    pub(crate) fn relist_pods(&mut self, process: Process) {
        if !self.is_alive(process) || !self.nodes[process.node].pods.cut || self.nodes[process.node].cut_off {
            return;
        }
        let version = Version(self.revision);
        let pods = self.pods.values().cloned().collect();
        let node = &mut self.nodes[process.node];
        node.pods.cut = false;
        node.seen = version;
        self.step(process, Event::List(Snapshot::Pods(pods, version)));
    }

    pub(crate) fn relist_budgets(&mut self, process: Process) {
        if !self.is_alive(process)
            || !self.nodes[process.node].budgets.cut
            || self.nodes[process.node].cut_off
        {
            return;
        }
        let version = Version(self.revision);
        let budgets = self.budgets.values().cloned().collect();
        self.nodes[process.node].budgets.cut = false;
        self.step(process, Event::List(Snapshot::Budgets(BudgetKind::DisruptionBudget, budgets)));
        self.step(process, Event::BudgetsAt(BudgetKind::DisruptionBudget, version));
    }

    /// What every running process has been shown.
    pub(crate) fn seen_by_all(&self) -> Version {
        let running = self.nodes.iter().filter(|node| node.replica.is_some());
        running.map(|node| node.seen).min().unwrap_or(Version(0))
    }
}

enum Next {
    Shown(Version, Box<Input>),
    At(Time),
    Nothing,
}

impl Watch {
    /// Adds an event. Returns when to look, if nothing else does.
    fn enqueue(&mut self, due: Time, version: Version, input: Input) -> Option<Time> {
        if self.cut {
            return None;
        }
        let due = self.due.back().map_or(due, |(last, ..)| due.max(*last));
        self.due.push_back((due, version, input));
        (self.due.len() == 1).then_some(due)
    }

    fn next(&mut self, now: Time) -> Next {
        match self.due.front() {
            None => Next::Nothing,
            Some((at, ..)) if *at > now => Next::At(*at),
            Some(_) => match self.due.pop_front() {
                Some((_, version, input)) => Next::Shown(version, Box::new(input)),
                None => Next::Nothing,
            },
        }
    }

    fn cut(&mut self) {
        self.due.clear();
        self.cut = true;
    }
}
