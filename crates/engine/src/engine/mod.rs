//! The engine: facts in, decisions and status out.
//!
//! What each event updates:
//!
//! | event | updated |
//! |---|---|
//! | pod | the budgets that cover it |
//! | node, agent | the pods with probes on that node |
//! | controller | its pods and the budgets that cover them; the budgets of its namespace that count groups |
//! | PodGroup, Workload | the budgets of its namespace that count groups |
//! | claims of a budget | the claimed pods |
//! | rules of a budget | the pods of its namespace |

mod budgets;
mod dependencies;
mod index;
mod lists;
mod namespaces;
mod owners;
mod pod_list;
mod pods;
mod preview;
mod queries;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::ages::Ages;
use crate::basics::{GroupKind, ObjectKey, Text, Time, Uid, Version};
use crate::claims::Ledger;
use crate::cluster_state::ClusterState;
use crate::coverage::Coverage;
use crate::facts::{
    Agent, Budget, BudgetKey, BudgetKind, Controller, Input, Namespace, NativeBudget, Node, Operation,
    Operations, Pod, PodGroup, Rules, Workload, WorkloadSource,
};
use crate::ledger::{LeftOut, ProtocolRule};
use crate::pool::Pool;
use crate::selector::NO_SELECTORS;
use crate::tally::{PodCounts, Tally, UnitSlot};

use index::PodIndex;
use namespaces::NamespaceIndex;
use pod_list::{ControllerPods, ListPositions};
pub(crate) use pods::{may_be_available, why_unavailable};

/// Feature gates, named after the proposals that define them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// Budgets may count groups. If disabled, they count pods.
    pub multi_pod_pdbs: bool,
    /// Disruption probes count. If disabled, only Ready counts.
    pub disruption_probe: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self { multi_pod_pdbs: true, disruption_probe: true }
    }
}

/// What an input changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Budgets whose status may have changed.
    pub budgets: BTreeSet<BudgetKey>,
}

/// A complete list of one kind of object. Known objects that are not in the list are gone.
#[derive(Clone, Debug)]
pub enum Snapshot {
    /// All pods, as of a version.
    Pods(Vec<Pod>, Version),
    /// All budgets of one kind.
    Budgets(BudgetKind, Vec<Budget>),
    /// All controllers of one kind.
    Controllers(GroupKind, Vec<Controller>),
    /// All PodGroups.
    PodGroups(Vec<(ObjectKey, PodGroup)>),
    /// All Workloads of one API.
    Workloads(WorkloadSource, Vec<(ObjectKey, Workload)>),
    /// All namespaces.
    Namespaces(Vec<(Text, Namespace)>),
    /// All nodes.
    Nodes(Vec<(Text, Node)>),
    /// All agents.
    Agents(Vec<(Text, Agent)>),
    /// All native budgets.
    NativeBudgets(Vec<(ObjectKey, NativeBudget)>),
}

#[derive(Clone, Debug)]
pub(crate) struct PodRecord {
    pub(crate) fact: Pod,
    /// A list that should contain the pod does not: the pod is gone, or it left the budget whose pods were listed.
    pub(crate) absent: bool,
    /// The pod was read in a state that the watch has not shown yet.
    pub(crate) ahead: bool,
    positions: ListPositions,
    pub(crate) members: SmallVec<[Membership; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    pub(crate) budget: u32,
    pub(crate) slot: UnitSlot,
    pub(crate) counts: PodCounts,
}

#[derive(Clone, Debug)]
pub(crate) struct BudgetRecord {
    /// The budget as it was last observed.
    pub(crate) fact: Budget,
    /// The ledger as a write in flight leaves it. Decisions count it instead of the observed one.
    draft: Option<Ledger>,
    /// The size of the claims in the ledger that counts.
    pub(crate) claim_bytes: usize,
    /// The rules in force. If the gate is disabled, a budget that counts groups counts pods instead. An invalid budget
    /// counts nothing and keeps its coverage.
    pub(crate) rules: Rules,
    pub(crate) downgraded: bool,
    pub(crate) coverage: Coverage,
    /// The first generation since which the budget is known to have had this coverage without interruption. A
    /// generation that was not observed may have had another coverage.
    pub(crate) steady_since: i64,
    pub(crate) tally: Tally,
    /// The budget is in [`Engine::dirty`].
    is_dirty: bool,
}

impl BudgetRecord {
    /// The ledger that counts: the draft of a write in flight, else the observed one.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.draft.as_ref().unwrap_or(&self.fact.ledger)
    }

    /// Whether every replica knows what the budget covers. If the coverage was another one since the budget was opened,
    /// a replica may have admitted requests under that one, although the present coverage is the old one again.
    pub(crate) fn is_open(&self) -> bool {
        let ledger = self.ledger();
        let steady = ledger.enforced_generation.is_none_or(|opened| opened >= self.steady_since);
        ledger.enforced == Some(self.coverage) && steady
    }

    /// Whether the budget decides an operation.
    ///
    /// If it was opened for other rules, the generation may not show whether those are back in between: its operations are
    /// an annotation. Until it is opened for the present ones, it may decide any operation. But it decides relabels only if
    /// it was opened for them: they must not wait for anything else.
    pub(crate) fn decides(&self, operation: Operation, reopens_for_all: bool) -> bool {
        if self.rules.operations.contains(operation) {
            return true;
        }
        let by_annotation = !self.fact.annotations.values.is_empty() && self.fact.spec.is_ok();
        let opened = self.ledger().enforced.filter(|opened| *opened != self.coverage);
        match opened.filter(|_| by_annotation && reopens_for_all) {
            None => false,
            Some(opened) => operation != Operation::Relabel || self.was_opened_for(opened, operation),
        }
    }

    /// Whether a coverage is that of the present rules with other operations, and this one is among them.
    fn was_opened_for(&self, opened: Coverage, operation: Operation) -> bool {
        let with = |operations| Rules { operations, ..self.rules.clone() };
        Operations::with(operation)
            .any(|operations| Coverage::of(&self.fact.uid, &with(operations)) == opened)
    }
}

/// Knows pods and budgets, and decides which pods may be disrupted.
#[derive(Clone, Debug)]
pub struct Engine {
    gates: Gates,
    pub(crate) pods: Slab<PodRecord>,
    index: PodIndex,
    by_controller: FxHashMap<Uid, ControllerPods>,
    /// Pods with probes, by node. No other pods depend on their node.
    probed: FxHashMap<Text, BTreeSet<u32>>,
    pub(crate) budgets: Slab<BudgetRecord>,
    by_key: FxHashMap<BudgetKey, u32>,
    namespaces: FxHashMap<Text, NamespaceIndex>,
    /// The last edition of any namespace's selectors.
    editions: u64,
    pub(crate) cluster: ClusterState,
    /// The age of each kind, except pods.
    pub(crate) ages: Ages,
    pool: Pool,
    pub(crate) now: Time,
    pods_version: Version,
    /// Pods that a list did not contain, with the version of that list. Kept until the watch has reached that version.
    absences: BTreeMap<Uid, Version>,
    /// The pods that were read in a state that the watch has not shown yet.
    ahead: BTreeSet<Uid>,
    /// The newest list of a budget's pods that the watch has not reached yet: the coverage of the budget, and the
    /// version.
    pod_lists: BTreeMap<BudgetKey, (Coverage, Version)>,
    /// Rules of the protocol that are left out, to show that each is needed.
    left_out: LeftOut,
    /// Budgets that may have changed since [`Engine::changes`] was last called, each once.
    dirty: Vec<u32>,
    /// Times at which something changes without an input.
    alarms: BTreeSet<(Time, Alarm)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// The agent of this node may have become stale.
    Agent(Text),
    /// Vanished groups of this budget may have expired.
    Gone(BudgetKey),
}

impl Engine {
    /// An empty engine.
    pub fn new(gates: Gates) -> Self {
        Self {
            gates,
            pods: Slab::new(),
            index: PodIndex::default(),
            by_controller: FxHashMap::default(),
            probed: FxHashMap::default(),
            budgets: Slab::new(),
            by_key: FxHashMap::default(),
            namespaces: FxHashMap::default(),
            editions: NO_SELECTORS,
            cluster: ClusterState::new(gates.disruption_probe),
            ages: Ages::default(),
            pool: Pool::default(),
            now: Time(i64::MIN),
            pods_version: Version(0),
            absences: BTreeMap::new(),
            ahead: BTreeSet::new(),
            pod_lists: BTreeMap::new(),
            left_out: LeftOut::default(),
            dirty: Vec::new(),
            alarms: BTreeSet::new(),
        }
    }

    /// Applies one change.
    pub fn apply(&mut self, input: Input, now: Time) -> Changes {
        self.pass_time(now);
        self.take(input);
        self.changes()
    }

    /// Applies a complete list. Known objects that are not in the list are gone.
    pub fn sync(&mut self, snapshot: Snapshot, now: Time) -> Changes {
        self.pass_time(now);
        self.take_snapshot(snapshot);
        self.changes()
    }

    /// Advances the time.
    pub fn advance(&mut self, now: Time) -> Changes {
        self.pass_time(now);
        self.changes()
    }

    /// Everything that happened to a kind up to this time is known. Pods are not among these kinds.
    pub fn heard(&mut self, kind: &GroupKind, at: Time) {
        self.ages.heard(kind, at);
    }

    /// The API server seems not to serve a kind any more.
    pub fn doubt(&mut self, kind: &GroupKind) {
        self.ages.doubt(kind);
    }

    /// A kind is not watched any more.
    pub fn forget(&mut self, kind: &GroupKind) {
        self.ages.forget(kind);
    }

    /// Sets how long a kind is fresh.
    pub fn set_age_limit(&mut self, fresh_for: Duration) {
        self.ages.set_limit(fresh_for);
    }

    /// Leaves these rules out.
    pub(crate) fn leave_out(&mut self, rules: LeftOut) {
        self.left_out = rules;
    }

    /// Whether a rule of the protocol is left out. In a program none is.
    pub(crate) fn is_without(&self, rule: ProtocolRule) -> bool {
        self.left_out.contains(rule)
    }

    /// Advances the time before a decision. Changes that follow from this are reported with the next input.
    pub(crate) fn advance_quietly(&mut self, now: Time) {
        self.pass_time(now);
    }

    pub(super) fn changes(&mut self) -> Changes {
        let mut budgets = BTreeSet::new();
        for id in self.dirty.drain(..) {
            let record = &mut self.budgets[id as usize];
            record.is_dirty = false;
            record.tally.end_event();
            record.tally.trim_done(&record.rules, &record.fact.key.object.namespace, &self.cluster);
            budgets.insert(record.fact.key.clone());
        }
        Changes { budgets }
    }

    /// Marks that the status of a budget may have changed.
    fn touch(&mut self, id: u32) {
        let record = &mut self.budgets[id as usize];
        if !record.is_dirty {
            record.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// The time of the engine never goes back, even if the clock does: a stale agent stays stale until it renews.
    pub(super) fn pass_time(&mut self, now: Time) {
        self.now = self.now.max(now);
        while self.alarms.first().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, alarm)) = self.alarms.pop_first() else { break };
            match alarm {
                Alarm::Agent(node) => {
                    self.set_agent_alarm(&node);
                    self.refresh_node(&node);
                }
                Alarm::Gone(key) => {
                    if let Some(id) = self.by_key.get(&key).copied() {
                        let record = &mut self.budgets[id as usize];
                        if record.tally.forget_gone(self.now) {
                            self.touch(id);
                        }
                        self.set_gone_alarm(id);
                    }
                }
            }
        }
    }

    pub(super) fn set_agent_alarm(&mut self, node: &Text) {
        if let Some(at) = self.cluster.agent_expiry(node).filter(|at| *at > self.now) {
            self.alarms.insert((at, Alarm::Agent(node.clone())));
        }
    }

    pub(super) fn set_gone_alarm(&mut self, id: u32) {
        let record = &self.budgets[id as usize];
        if let Some(at) = record.tally.next_forgotten() {
            self.alarms.insert((at, Alarm::Gone(record.fact.key.clone())));
        }
    }

    pub(super) fn take(&mut self, input: Input) {
        match input {
            Input::Pod(pod) => {
                let version = pod.version;
                self.set_pod(pod, version);
                self.pods_at(version);
            }
            // A UID is never reused, so the known version does not matter.
            Input::PodGone(uid, version) => {
                self.remove_pod(&uid);
                self.pods_at(version);
            }
            Input::PodsAt(version) => self.pods_at(version),
            Input::Budget(budget) => self.set_budget(budget),
            Input::BudgetGone(key) => self.remove_budget(&key),
            Input::Controller(mut controller) => {
                let (uid, namespace) = (controller.uid.clone(), controller.key.namespace.clone());
                controller.templates.iter_mut().flatten().for_each(|labels| self.pool.share_labels(labels));
                let is_source = !ClusterState::is_part_of_deployment(&controller);
                if let Some(old) = self.cluster.set_controller(controller) {
                    let was_source =
                        old.as_ref().is_some_and(|old| !ClusterState::is_part_of_deployment(old));
                    let owner = self.cluster.controller(&uid).and_then(|new| new.owner.clone());
                    let owner_before = old.map(|old| old.owner);
                    let moved = owner_before.as_ref() != Some(&owner);
                    self.refresh_controller(&uid, &namespace, moved, is_source || was_source);
                    if moved {
                        // Whether an owner counts as a source depends on the controllers that it owns.
                        let owners = [owner, owner_before.flatten()].into_iter().flatten();
                        self.consider(&owners.map(|owner| owner.uid).collect::<Vec<_>>(), &namespace);
                    }
                }
            }
            Input::ControllerGone(uid) => {
                if let Some(old) = self.cluster.remove_controller(&uid) {
                    self.refresh_controller(&uid, &old.key.namespace, old.owner.is_some(), true);
                    if let Some(owner) = old.owner {
                        self.consider(&[owner.uid], &old.key.namespace);
                    }
                }
            }
            Input::PodGroup(key, group) => {
                if self.cluster.set_pod_group(&key, group) {
                    self.regroup_namespace(&key.namespace);
                }
            }
            Input::Workload(source, key, workload) => {
                let namespace = key.namespace.clone();
                if self.cluster.set_workload(source, key, workload) {
                    self.regroup_namespace(&namespace);
                }
            }
            Input::Namespace(name, namespace) => {
                let changed = self.cluster.namespaces.get(&name) != namespace.as_ref();
                match namespace {
                    Some(namespace) => self.cluster.namespaces.insert(name.clone(), namespace),
                    None => self.cluster.namespaces.remove(&name),
                };
                if changed {
                    let budgets = self.budgets_in(&name);
                    budgets.into_iter().for_each(|id| self.touch(id));
                }
            }
            Input::Node(name, node) => {
                if self.cluster.set_node(name.clone(), node) {
                    self.refresh_node(&name);
                }
            }
            Input::Agent(node, agent) => {
                if self.cluster.set_agent(node.clone(), agent, self.now) {
                    self.refresh_node(&node);
                }
                self.set_agent_alarm(&node);
            }
            Input::NativeBudget(key, budget) => {
                if self.cluster.set_native(&key, budget) {
                    let budgets = self.budgets_in(&key.namespace);
                    budgets.into_iter().for_each(|id| self.touch(id));
                }
            }
        }
    }
}
