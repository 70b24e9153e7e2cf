//! The events that a step delivers to an engine, and what it changes in the cluster, delivered or not.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_engine::Snapshot;
use quorate_engine::basics::{ObjectKey, Text, Time, Uid, Version};
use quorate_engine::claims::{Claim, Ledger, Target, Token};
use quorate_engine::facts::{
    Agent, Broken, Budget, Covers, Input, Namespace, NativeBudget, Node, Pod, PodGroup, Workload,
    WorkloadGroup, WorkloadSource,
};
use quorate_engine::selector::Selector;

use super::Drive;
use super::cast::{
    aged_kind, budget_key, controller, edit_pod, new_pod, owner, pod_key, pod_owner, rules, uid,
};
use crate::history::step::{KINDS, NAMES, PodEdit, Step};
use crate::oracle::Event;

impl Drive {
    /// The events that a step delivers to an engine.
    pub(super) fn events(&mut self, step: &Step) -> Vec<Event> {
        match step {
            Step::Pod(name, edit) => {
                let mut events = self.bury();
                events.push(Event::Apply(Input::Pod(self.change(*name, edit))));
                events
            }
            Step::Unseen(name, edit) => {
                self.change(*name, edit);
                Vec::new()
            }
            Step::Deliver(name) => {
                let mut events = self.bury();
                events
                    .extend(self.pods.get(&pod_key(*name)).map(|pod| Event::Apply(Input::Pod(pod.clone()))));
                events
            }
            Step::Learn(name) => {
                self.pods.get(&pod_key(*name)).map(|pod| Event::Learn(pod.clone())).into_iter().collect()
            }
            Step::Late(name, learn) => {
                let found = self.older.iter().rev().find(|pod| pod.key == pod_key(*name)).cloned();
                match found {
                    Some(pod) if *learn => vec![Event::Learn(pod)],
                    Some(pod) if self.unburied.contains(&pod.uid) => Vec::new(),
                    Some(pod) if self.oracle.pods.contains_key(&pod.uid) => {
                        let mut events = self.bury();
                        events.push(Event::Apply(Input::Pod(pod)));
                        events
                    }
                    _ => Vec::new(),
                }
            }
            Step::Gone(name) => {
                let mut events = self.bury();
                if let Some(pod) = self.pods.remove(&pod_key(*name)) {
                    let version = self.next_version();
                    events.push(Event::Apply(Input::PodGone(pod.uid, version)));
                }
                events
            }
            Step::Vanish(at) => {
                let uid = pod_owner(*at).map(|owner| owner.uid);
                let of_it = |pod: &Pod| pod.controller().map(|owner| &owner.uid) == uid.as_ref();
                let names: Vec<u8> =
                    (0..NAMES).filter(|name| self.pods.get(&pod_key(*name)).is_some_and(of_it)).collect();
                names.into_iter().flat_map(|name| self.events(&Step::Gone(name))).collect()
            }
            Step::Successor(name, learn) => {
                let key = pod_key(*name);
                let Some(old) = self.pods.get(&key).cloned() else { return Vec::new() };
                let version = self.next_version();
                let pod = Pod { uid: uid(&key, version), version, terminating: false, ..old.clone() };
                self.older.push(old.clone());
                self.pods.insert(key, pod.clone());
                if *learn {
                    self.unburied.push(old.uid);
                    return vec![Event::Learn(pod)];
                }
                let mut events = self.bury();
                events.push(Event::Apply(Input::PodGone(old.uid, version)));
                events.push(Event::Apply(Input::Pod(pod)));
                events
            }
            Step::Relist(mask) => {
                for name in 0..NAMES {
                    if mask & (1 << name) != 0 {
                        self.pods.remove(&pod_key(name));
                    }
                }
                self.unburied.clear();
                let version = self.next_version();
                vec![Event::Sync(Snapshot::Pods(self.pods.values().cloned().collect(), version))]
            }
            Step::BudgetPods(slot) => {
                let Some(budget) = self.known_budget(*slot) else { return Vec::new() };
                let version = self.next_version();
                let pods =
                    self.pods.values().filter(|pod| self.oracle.covers(&budget, pod)).cloned().collect();
                vec![Event::BudgetPods(budget.key, pods, version)]
            }
            Step::Time(by) => {
                self.now = Time(self.now.0 + by);
                vec![Event::Time]
            }
            Step::Heard(mask) => {
                let kinds = (0..KINDS).filter(|at| mask & (1 << at) != 0).map(aged_kind);
                vec![Event::Heard(kinds.collect())]
            }
            Step::Doubted(at) => vec![Event::Doubted(aged_kind(*at))],
            Step::Forgotten(at) => vec![Event::Forgotten(aged_kind(*at))],
            Step::Restart => vec![Event::Time],
            Step::Budget(..)
            | Step::Numbers(..)
            | Step::NewBudget(_)
            | Step::Vanished(..)
            | Step::BudgetGone(_)
            | Step::Broken(..)
            | Step::Open(_)
            | Step::Claim(..)
            | Step::Unclaim(..)
            | Step::Protocol(..) => self.budget_events(step),
            other => self.world_events(other),
        }
    }

    fn change(&mut self, name: u8, edit: &PodEdit) -> Pod {
        let key = pod_key(name);
        let version = self.next_version();
        let fresh = || new_pod(key.clone(), version);
        let mut pod = self.pods.get(&key).cloned().unwrap_or_else(fresh);
        self.older.push(pod.clone());
        pod.version = version;
        edit_pod(&mut pod, edit, self.now);
        self.pods.insert(key, pod.clone());
        pod
    }

    fn known_budget(&self, slot: u8) -> Option<Budget> {
        self.oracle.budgets.get(&budget_key(slot)).cloned()
    }

    fn edit_budget(&mut self, slot: u8, edit: impl FnOnce(&mut Budget)) -> Vec<Event> {
        let Some(mut budget) = self.known_budget(slot) else { return Vec::new() };
        budget.version = self.next_version();
        edit(&mut budget);
        vec![Event::Apply(Input::Budget(budget))]
    }

    /// A watch is in order: before anything else it delivers the deletion of pods that were replaced.
    fn bury(&mut self) -> Vec<Event> {
        let version = Version(self.version);
        let gone = std::mem::take(&mut self.unburied).into_iter();
        gone.map(|uid| Event::Apply(Input::PodGone(uid, version))).collect()
    }

    fn budget_events(&mut self, step: &Step) -> Vec<Event> {
        match step {
            Step::Budget(slot, spec) => {
                let key = budget_key(*slot);
                let version = self.next_version();
                let rules = rules(spec, key.kind);
                let known = self.known_budget(*slot);
                let uid: Uid =
                    known.as_ref().map_or_else(|| format!("uid-{}", version.0).into(), |b| b.uid.clone());
                let mut ledger = known.as_ref().map(|budget| budget.ledger.clone()).unwrap_or_default();
                if spec.open {
                    ledger.enforced = Some(quorate_engine::Coverage::of(&uid, &rules));
                }
                let budget = Budget {
                    key,
                    uid,
                    generation: 1,
                    version,
                    spec: Ok(rules),
                    ledger,
                    gone: Box::default(),
                    annotations: Default::default(),
                    is_twin: *slot == 1,
                    memory: quorate_engine::facts::Memory::default(),
                };
                vec![Event::Apply(Input::Budget(budget))]
            }
            Step::Numbers(slot, min, max) => self.edit_budget(*slot, |budget| {
                if let Ok(rules) = &mut budget.spec {
                    (rules.min_available, rules.max_unavailable) = (*min, *max);
                }
            }),
            Step::Vanished(slot, ago) => {
                let since = Time(self.now.0 - ago * 1000);
                let names = ["0", "1", "x/1", "g1", "w/a/0"];
                self.edit_budget(*slot, |budget| {
                    budget.gone = names.map(|name| (name.into(), since)).into();
                })
            }
            Step::NewBudget(slot) => {
                let uid = format!("again-{}", self.version);
                let now = self.now;
                self.edit_budget(*slot, |budget| {
                    budget.uid = uid.into();
                    budget.ledger = Ledger::default();
                    budget.gone =
                        [("0".into(), Time(now.0 - 60_000)), ("x/1".into(), Time(now.0 - 899_000))].into();
                    if let Ok(rules) = &budget.spec {
                        budget.ledger.enforced = Some(quorate_engine::Coverage::of(&budget.uid, rules));
                    }
                })
            }
            Step::BudgetGone(slot) => vec![Event::Apply(Input::BudgetGone(budget_key(*slot)))],
            Step::Broken(slot, all) => self.edit_budget(*slot, |budget| {
                if let Ok(rules) = &budget.spec {
                    let all = Covers::Selector(Selector::default());
                    let covers = if *slot == 0 || !matches!(rules.covers, Covers::Selector(_)) {
                        all
                    } else {
                        rules.covers.clone()
                    };
                    budget.spec =
                        Err(Broken { why: "no sense".into(), covers, operations: rules.operations });
                }
                budget.generation += i64::from(*all);
            }),
            Step::Open(slot) => self.edit_budget(*slot, |budget| {
                if let Ok(rules) = &budget.spec {
                    budget.ledger.enforced = Some(quorate_engine::Coverage::of(&budget.uid, rules));
                }
            }),
            Step::Claim(slot, name, operation) => {
                let Some(pod) = self.pods.get(&pod_key(*name)).cloned() else { return Vec::new() };
                let (at, token) = (self.now, format!("t{}", self.version));
                self.edit_budget(*slot, |budget| {
                    let fresh = || Claim { pod: pod.key.name.clone(), tokens: BTreeMap::new() };
                    let claim = budget.ledger.claims.entry(pod.uid).or_insert_with(fresh);
                    let token_of =
                        Token { operation: *operation, by: "bob".into(), at, target: Target::default() };
                    claim.tokens.insert(token.into(), token_of);
                })
            }
            Step::Unclaim(slot, name) => {
                let key = pod_key(*name);
                self.edit_budget(*slot, |budget| {
                    budget.ledger.claims.retain(|_, claim| claim.pod != key.name);
                })
            }
            Step::Protocol(slot, protocol) => {
                self.edit_budget(*slot, |budget| budget.ledger.protocol = *protocol)
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn world_events(&mut self, step: &Step) -> Vec<Event> {
        let node_name = |at: &u8| Text::from(format!("n{at}"));
        let input = match step {
            Step::Controller(at, replicas, edit) => Input::Controller(controller(*at, *replicas, edit)),
            Step::ControllerGone(at) => Input::ControllerGone(owner(*at).uid),
            Step::RelistControllers(at) => {
                let kind = owner(*at).kind;
                let alike =
                    self.oracle.controllers.values().filter(|c| c.kind == kind && c.uid == owner(*at).uid);
                let list = alike.cloned().collect();
                return vec![Event::Sync(Snapshot::Controllers(kind, list))];
            }
            Step::PodGroup(at, fact, life) => {
                let fact = fact.as_ref().map(|(min_count, falls_whole, template, owned)| PodGroup {
                    min_count: *min_count,
                    falls_whole: *falls_whole,
                    template: (*template > 0).then(|| (format!("w{template}").into(), "t".into())),
                    controller: match owned {
                        0 => None,
                        1..4 => Some(owner(5 + owned)),
                        _ => Some(owner(10)),
                    },
                    uid: format!("uid-pg{at}-{}", life.again).into(),
                    deleting: life.deleting,
                });
                Input::PodGroup(ObjectKey::new("ns", format!("pg{at}")), fact)
            }
            Step::Workload(at, groups, life) => {
                let source = if at % 2 == 0 { WorkloadSource::Own } else { WorkloadSource::Upstream };
                let fact = groups.as_ref().map(|groups| Workload {
                    groups: groups
                        .iter()
                        .enumerate()
                        .map(|(n, (min_count, replicas))| WorkloadGroup {
                            name: format!("g{n}").into(),
                            min_count: *min_count,
                            replicas: *replicas,
                        })
                        .collect(),
                    uid: format!("uid-w{at}-{}", life.again).into(),
                    deleting: life.deleting,
                    owner: life.owned.then(|| owner(10)),
                });
                Input::Workload(source, ObjectKey::new("ns", format!("w{}", at / 2)), fact)
            }
            Step::Namespace(terminating, excluded) => {
                let fact = Namespace { terminating: *terminating, excluded: *excluded, guarded: true };
                Input::Namespace("ns".into(), (*terminating || *excluded).then_some(fact))
            }
            Step::Native(at, fact) => {
                let fact = fact.as_ref().map(|fact| NativeBudget {
                    selector: match fact.covers {
                        0 => Selector::labels([("app", "a")]),
                        1 => Selector::labels([("app", "b")]),
                        _ => Selector::default(),
                    },
                    allowed: fact.allowed,
                    current: fact.current,
                    always_allow_unready: fact.always_allow_unready,
                    healthy: fact.healthy,
                    expected: fact.expected,
                });
                Input::NativeBudget(ObjectKey::new("ns", format!("pdb{at}")), fact)
            }
            Step::RelistNatives => {
                let first = self.oracle.natives.iter().take(1);
                let list = first.map(|(key, fact)| (key.clone(), fact.clone())).collect();
                return vec![Event::Sync(Snapshot::NativeBudgets(list))];
            }
            Step::Node(at, ready) => Input::Node(node_name(at), ready.map(|ready| Node { ready })),
            Step::Agent(at, new) => {
                let node = node_name(at);
                let known = self.oracle.agents.get(&node).map(|agent| agent.started);
                let fact = new.map(|new| Agent {
                    started: known.filter(|_| !new).unwrap_or(self.now),
                    renewed: self.now,
                    holds: Duration::from_secs(40),
                });
                Input::Agent(node, fact)
            }
            other => unreachable!("{other:?}"),
        };
        vec![Event::Apply(input)]
    }
}
