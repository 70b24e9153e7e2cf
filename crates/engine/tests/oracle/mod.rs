//! A second engine, written from the design and not from the first one. It stores the raw facts and computes everything
//! from them each time, in the simplest way. It is slow, and short enough to review.

mod ages;
mod count;
mod judge;
mod memory;
mod tests;

use ages::Ages;
use count::Id;
pub(crate) use count::StatusView;
pub(crate) use judge::ExpectedDecision;
use memory::{Before, Remembered};

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{GroupKind, ObjectKey, Text, Time, Uid, Version};
use quorate_engine::facts::{
    Agent, Budget, BudgetKey, Controller, Covers, HealthRule, Input, Namespace, NativeBudget, Node,
    Operations, Phase, Pod, PodGroup, Rules, UnhealthyPolicy, Units, Workload, WorkloadSource,
};
use quorate_engine::{Gates, Snapshot};

pub(crate) const LWS: &str = "leaderworkerset.sigs.k8s.io";

/// A pod as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) pod: Pod,
    /// The version of a list that should contain the pod and does not, until the watch has reached that version.
    pub(crate) absent: Option<Version>,
}

#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    pub(crate) gates: Gates,
    pub(crate) now: Time,
    pub(crate) pods: BTreeMap<Uid, Seen>,
    pub(crate) pods_version: Version,
    pub(crate) budgets: BTreeMap<BudgetKey, Budget>,
    pub(crate) controllers: BTreeMap<Uid, Controller>,
    pub(crate) pod_groups: BTreeMap<ObjectKey, PodGroup>,
    pub(crate) workloads: BTreeMap<(WorkloadSource, ObjectKey), Workload>,
    pub(crate) namespaces: BTreeMap<Text, Namespace>,
    pub(crate) natives: BTreeMap<ObjectKey, NativeBudget>,
    pub(crate) nodes: BTreeMap<Text, Node>,
    pub(crate) agents: BTreeMap<Text, Agent>,
    /// The kinds of controllers of which an object or a list was delivered.
    pub(crate) kinds: BTreeSet<GroupKind>,
    /// Groups that were observed and are gone. The present facts do not show them.
    pub(crate) gone: BTreeMap<BudgetKey, BTreeMap<Text, Time>>,
    /// How many pods a group has lost before they had ended, and not got back. The present facts do not show this either.
    pub(crate) lost: BTreeMap<BudgetKey, BTreeMap<Id, usize>>,
    /// What else a budget remembers. The present facts do not show this either.
    pub(crate) memory: BTreeMap<BudgetKey, Remembered>,
    /// The budgets in the last event.
    heard: BTreeSet<BudgetKey>,
    /// Lists of a budget's pods that the watch has not reached yet: the coverage of the budget, and the version.
    pub(crate) looks: BTreeMap<BudgetKey, (quorate_engine::Coverage, Version)>,
    /// When the watches last received something.
    pub(crate) ages: Ages,
    /// Pods whose agents and nodes are taken for alive.
    pub(crate) trusted: BTreeSet<Uid>,
}

/// An input of an engine.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Apply(Input),
    Sync(Snapshot),
    Learn(Pod),
    BudgetPods(BudgetKey, Vec<Pod>, Version),
    /// The watches of these kinds received something.
    Heard(Vec<GroupKind>),
    /// A kind seems not to be served any more.
    Doubted(GroupKind),
    /// A kind is not watched any more.
    Forgotten(GroupKind),
    Time,
}

impl Oracle {
    pub(crate) fn new(gates: Gates) -> Self {
        Self {
            gates,
            now: Time(i64::MIN),
            pods: BTreeMap::new(),
            pods_version: Version(0),
            budgets: BTreeMap::new(),
            controllers: BTreeMap::new(),
            pod_groups: BTreeMap::new(),
            workloads: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            natives: BTreeMap::new(),
            nodes: BTreeMap::new(),
            agents: BTreeMap::new(),
            kinds: BTreeSet::new(),
            gone: BTreeMap::new(),
            lost: BTreeMap::new(),
            memory: BTreeMap::new(),
            heard: BTreeSet::new(),
            looks: BTreeMap::new(),
            ages: Ages::default(),
            trusted: BTreeSet::new(),
        }
    }

    pub(crate) fn step(&mut self, event: Event, now: Time) {
        // Time never goes back.
        self.now = self.now.max(now);
        let before: BTreeMap<BudgetKey, Before> = self
            .budgets
            .iter()
            .map(|(key, budget)| (key.clone(), (budget.clone(), self.count(budget).groups)))
            .collect();
        let listed = memory::listed(&event);
        self.heard.clear();
        match event {
            Event::Apply(input) => self.apply(input),
            Event::Sync(snapshot) => self.sync(snapshot),
            Event::Learn(pod) => {
                let version = pod.version;
                // A name has one pod at a time.
                let namesakes =
                    self.pods.values_mut().filter(|it| it.pod.key == pod.key && it.pod.uid != pod.uid);
                let namesake = namesakes.max_by_key(|it| it.pod.version);
                let is_late = namesake.as_ref().is_some_and(|it| it.pod.version > version);
                if let Some(gone) = namesake.filter(|_| !is_late && version > self.pods_version) {
                    gone.absent = Some(version);
                }
                if !is_late {
                    self.learn(pod, version);
                }
            }
            Event::BudgetPods(budget, pods, version) => self.budget_pods(&budget, pods, version),
            Event::Heard(kinds) => kinds.iter().for_each(|kind| self.ages.heard(kind, self.now)),
            Event::Doubted(kind) => self.ages.doubt(&kind),
            Event::Forgotten(kind) => self.ages.forget(&kind),
            Event::Time => {}
        }
        self.remember(&before, listed.as_ref());
    }

    fn apply(&mut self, input: Input) {
        match input {
            Input::Pod(pod) => {
                let version = pod.version;
                self.see(pod, version);
                self.shown_up_to(version);
            }
            Input::PodGone(uid, version) => {
                self.pods.remove(&uid);
                self.shown_up_to(version);
            }
            Input::PodsAt(version) => self.shown_up_to(version),
            Input::Budget(budget) => {
                let known = self.budgets.get(&budget.key);
                if known.is_none_or(|known| known.uid != budget.uid || budget.version >= known.version) {
                    self.heard.insert(budget.key.clone());
                    self.budgets.insert(budget.key.clone(), budget);
                }
            }
            Input::BudgetGone(key) => drop(self.budgets.remove(&key)),
            Input::Controller(controller) => {
                self.kinds.insert(controller.kind.clone());
                self.controllers.insert(controller.uid.clone(), controller);
            }
            Input::ControllerGone(uid) => drop(self.controllers.remove(&uid)),
            Input::PodGroup(key, fact) => set(&mut self.pod_groups, key, fact),
            Input::Workload(source, key, fact) => set(&mut self.workloads, (source, key), fact),
            Input::Namespace(name, fact) => set(&mut self.namespaces, name, fact),
            Input::Node(name, fact) => set(&mut self.nodes, name, fact),
            Input::Agent(name, fact) => set(&mut self.agents, name, fact),
            Input::NativeBudget(key, fact) => set(&mut self.natives, key, fact),
        }
    }

    fn sync(&mut self, snapshot: Snapshot) {
        match snapshot {
            Snapshot::Pods(pods, version) => {
                let listed: BTreeSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
                self.pods.retain(|uid, seen| listed.contains(uid) || seen.pod.version > version);
                pods.into_iter().for_each(|pod| self.see(pod, version));
                self.shown_up_to(version);
            }
            Snapshot::Budgets(kind, budgets) => {
                let listed: BTreeSet<BudgetKey> = budgets.iter().map(|budget| budget.key.clone()).collect();
                self.budgets.retain(|key, _| key.kind != kind || listed.contains(key));
                budgets.into_iter().for_each(|budget| self.apply(Input::Budget(budget)));
            }
            Snapshot::Controllers(kind, list) => {
                self.kinds.insert(kind.clone());
                self.controllers.retain(|_, controller| controller.kind != kind);
                list.into_iter().for_each(|controller| self.apply(Input::Controller(controller)));
            }
            Snapshot::PodGroups(list) => self.pod_groups = list.into_iter().collect(),
            Snapshot::Workloads(source, list) => {
                self.workloads.retain(|(other, _), _| *other != source);
                self.workloads.extend(list.into_iter().map(|(key, workload)| ((source, key), workload)));
            }
            Snapshot::Namespaces(list) => self.namespaces = list.into_iter().collect(),
            Snapshot::Nodes(list) => self.nodes = list.into_iter().collect(),
            Snapshot::Agents(list) => self.agents = list.into_iter().collect(),
            Snapshot::NativeBudgets(list) => self.natives = list.into_iter().collect(),
        }
    }

    /// A state that is older than the known one is ignored. A pod that a later list does not contain stays absent,
    /// unless it was relabeled before that list was made.
    fn see(&mut self, mut pod: Pod, as_of: Version) {
        let known = self.pods.get(&pod.uid);
        // A pod that succeeds after its deletion has not finished its work.
        let done = known.is_some_and(|seen| seen.pod.phase == Phase::Succeeded);
        if pod.terminating && pod.phase == Phase::Succeeded && !done {
            pod.phase = Phase::Failed;
        }
        if known.is_some_and(|seen| pod.version <= seen.pod.version) {
            return;
        }
        let absent = known
            .filter(|seen| seen.pod.labels == pod.labels)
            .and_then(|seen| seen.absent)
            .filter(|missed| pod.version <= *missed);
        // A newer list of its budget's pods did not contain it either.
        let missed = self.looks.iter().filter(|(_, (.., version))| *version > as_of).filter(|(key, look)| {
            let budget = self.budgets.get(*key);
            budget.is_some_and(|budget| self.coverage(budget) == look.0 && self.covers(budget, &pod))
        });
        let absent = missed.map(|(_, (.., version))| *version).max().max(absent);
        self.pods.insert(pod.uid.clone(), Seen { pod, absent });
    }

    fn learn(&mut self, pod: Pod, version: Version) {
        if let Some(seen) = self.pods.get_mut(&pod.uid) {
            seen.absent = seen.absent.filter(|missed| *missed >= version);
        }
        if self.pods.contains_key(&pod.uid) || version > self.pods_version {
            self.see(pod, version);
        }
    }

    fn coverage(&self, budget: &Budget) -> quorate_engine::Coverage {
        quorate_engine::Coverage::of(&budget.uid, budget.spec.as_ref().unwrap_or(&self.rules(budget).0))
    }

    /// A pod that the watch still shows when it has reached the version of a list is not gone.
    pub(crate) fn shown_up_to(&mut self, version: Version) {
        self.pods_version = self.pods_version.max(version);
        self.looks.retain(|_, (_, looked)| *looked > self.pods_version);
        for seen in self.pods.values_mut() {
            seen.absent = seen.absent.filter(|missed| *missed > self.pods_version);
        }
    }

    fn budget_pods(&mut self, key: &BudgetKey, pods: Vec<Pod>, version: Version) {
        let listed: BTreeSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
        let unlisted: Vec<Uid> = self
            .budgets
            .get(key)
            .map(|budget| self.covered(budget))
            .unwrap_or_default()
            .into_iter()
            .filter(|uid| !listed.contains(uid) && self.pods[uid].pod.version <= version)
            .filter(|_| version > self.pods_version)
            .collect();
        pods.into_iter().for_each(|pod| self.learn(pod, version));
        for uid in unlisted {
            let seen = self.pods.get_mut(&uid).unwrap();
            seen.absent = Some(version);
        }
        if let Some(budget) = self.budgets.get(key).filter(|_| version > self.pods_version) {
            let coverage = self.coverage(budget);
            let same = self.looks.get(key).filter(|look| look.0 == coverage);
            let newest = same.map_or(version, |look| version.max(look.1));
            self.looks.insert(key.clone(), (coverage, newest));
        }
    }

    /// The rules in force, and whether they are a downgrade of the spec.
    pub(crate) fn rules(&self, budget: &Budget) -> (Rules, bool) {
        match &budget.spec {
            Ok(rules) if !self.gates.multi_pod_pdbs && rules.units != Units::Pods => {
                (Rules { units: Units::Pods, expected: None, ..rules.clone() }, true)
            }
            Ok(rules) => (rules.clone(), false),
            Err(broken) => {
                let rules = Rules {
                    covers: broken.covers.clone(),
                    min_available: None,
                    max_unavailable: None,
                    units: Units::Pods,
                    expected: None,
                    unhealthy: UnhealthyPolicy::IfHealthyBudget,
                    operations: broken.operations,
                    observe: false,
                    health: HealthRule::Ready,
                    waivable: false,
                };
                (rules, false)
            }
        }
    }

    /// The native budgets that cover a pod.
    pub(crate) fn native_budgets_of(&self, pod: &Pod) -> Vec<&NativeBudget> {
        let over = |(key, native): &(&ObjectKey, &NativeBudget)| {
            key.namespace == pod.key.namespace && native.selector.matches(&pod.labels)
        };
        self.natives.iter().filter(over).map(|(_, native)| native).collect()
    }

    pub(crate) fn operations(&self, budget: &Budget) -> Operations {
        self.rules(budget).0.operations
    }

    pub(crate) fn covered(&self, budget: &Budget) -> Vec<Uid> {
        let seen = self.pods.values().filter(|seen| self.covers(budget, &seen.pod));
        seen.map(|seen| seen.pod.uid.clone()).collect()
    }

    pub(crate) fn covers(&self, budget: &Budget, pod: &Pod) -> bool {
        budget.key.object.namespace == pod.key.namespace
            && match self.rules(budget).0.covers {
                Covers::Selector(selector) => selector.matches(&pod.labels),
                Covers::Target(kind, name) => self.belongs_to(pod, &kind, &name),
            }
    }

    /// Whether it is not known which workload a pod belongs to: one of the first four owners in its chain is unknown,
    /// although its kind is watched.
    pub(crate) fn has_unknown_owner(&self, pod: &Pod) -> bool {
        let mut owner = pod.controller();
        for _ in 0..4 {
            let Some(named) = owner else { return false };
            let Some(known) = self.controllers.get(&named.uid) else {
                return self.kinds.contains(&named.kind);
            };
            owner = known.owner.as_ref();
        }
        false
    }

    /// Whether a pod belongs to a workload: by its owner chain, or by the label of a LeaderWorkerSet.
    fn belongs_to(&self, pod: &Pod, kind: &GroupKind, name: &Text) -> bool {
        if &*kind.kind == "LeaderWorkerSet" && pod.labels.get(&format!("{LWS}/name")) == Some(&**name) {
            return true;
        }
        let mut next = pod.controller().cloned();
        for _ in 0..5 {
            let Some(owner) = next else { return false };
            if owner.kind == *kind && owner.name == *name {
                return true;
            }
            next = self.controllers.get(&owner.uid).and_then(|controller| controller.owner.clone());
        }
        false
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
