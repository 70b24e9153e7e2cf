//! The cluster of a scenario. It stores every object, so that a command only states what changes.
//!
//! This module runs the commands; `pod`, `budget` and `workload` parse the larger ones.

mod budget;
mod pod;
mod workload;

use std::collections::BTreeMap;

use quorate_engine::basics::{GroupKind, ObjectKey, Text, Time, Version};
use quorate_engine::facts::{
    Agent, Budget, BudgetKey, BudgetKind, Controller, Input, Namespace, NativeBudget, Node, Owner, Pod,
    PodGroup, Workload, WorkloadSource,
};
use quorate_engine::{Engine, Gates, Snapshot};

use super::words::{self, Words};

const LWS: &str = "leaderworkerset.sigs.k8s.io";

pub(crate) struct Cluster {
    pub(crate) engine: Engine,
    pub(crate) now: Time,
    gates: Gates,
    version: u64,
    pub(crate) pods: BTreeMap<ObjectKey, Pod>,
    pub(crate) budgets: BTreeMap<BudgetKey, Budget>,
    controllers: BTreeMap<String, Controller>,
    pod_groups: BTreeMap<ObjectKey, PodGroup>,
    workloads: BTreeMap<(WorkloadSource, ObjectKey), Workload>,
    namespaces: BTreeMap<Text, Namespace>,
    nodes: BTreeMap<Text, Node>,
    agents: BTreeMap<Text, Agent>,
}

pub(crate) fn key(name: &str) -> ObjectKey {
    match name.split_once('/') {
        Some((namespace, name)) => ObjectKey::new(namespace, name),
        None => ObjectKey::new("default", name),
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            engine: Engine::new(Gates::default()),
            now: Time(0),
            gates: Gates::default(),
            version: 0,
            pods: BTreeMap::new(),
            budgets: BTreeMap::new(),
            controllers: BTreeMap::new(),
            pod_groups: BTreeMap::new(),
            workloads: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            nodes: BTreeMap::new(),
            agents: BTreeMap::new(),
        }
    }

    /// Runs a command that changes the cluster.
    pub(crate) fn run(&mut self, verb: &str, words: &mut Words) -> Result<(), String> {
        match verb {
            "time" => {
                let span = words.next()?;
                self.now = self.now.after(words::span(span.trim_start_matches('+'))?);
                self.engine.advance(self.now);
            }
            "gates" => {
                self.gates.multi_pod_pdbs = words.take("MultiPodPDBs").is_none_or(|on| on == "true");
                self.gates.disruption_probe = words.take("DisruptionProbe").is_none_or(|on| on == "true");
                self.engine = Engine::new(self.gates);
            }
            "restart" => {
                let unread = words.take("without").map(|kind| words::kind_of(&kind));
                self.restart(unread.as_ref());
            }
            // Discovery finds that the cluster does not serve the kind.
            "unserved" => {
                let kind = words::kind_of(&words.next()?);
                self.controllers.retain(|_, controller| controller.kind != kind);
                self.engine.sync(Snapshot::Controllers(kind, Vec::new()), self.now);
            }
            "pod" => self.pod(words)?,
            "gone" => {
                let pod = self.pods.remove(&key(&words.next()?)).ok_or("no such pod")?;
                let version = self.next_version();
                self.apply(Input::PodGone(pod.uid, version));
            }
            "budget" => self.budget(words)?,
            "unbudget" => {
                let key = self.budget_key(&words.next()?)?;
                self.budgets.remove(&key);
                self.apply(Input::BudgetGone(key));
            }
            "open" => {
                let key = self.budget_key(&words.next()?)?;
                self.edit_ledger(&key, |ledger, coverage| ledger.enforced = Some(coverage));
            }
            "claim" => self.claim(words)?,
            "withdraw" => {
                let (key, token) = (self.budget_key(&words.next()?)?, words.next()?);
                self.edit_ledger(&key, |ledger, _| {
                    ledger.claims.values_mut().for_each(|claim| claim.tokens.retain(|id, _| **id != *token));
                    ledger.claims.retain(|_, claim| !claim.tokens.is_empty());
                });
            }
            "settle" => self.settle(),
            "controller" => self.controller(words)?,
            "podgroup" => self.pod_group(words)?,
            "workload" => self.workload(words)?,
            "namespace" => {
                let name: Text = words.next()?.into();
                let fact = Namespace {
                    terminating: words.flag("terminating"),
                    excluded: words.flag("excluded"),
                    guarded: true,
                };
                let fact = (!words.flag("gone")).then_some(fact);
                set(&mut self.namespaces, &name, fact.clone());
                self.apply(Input::Namespace(name, fact));
            }
            "node" => {
                let name: Text = words.next()?.into();
                let fact = match words.next()?.as_str() {
                    "ready" => Some(Node { ready: true }),
                    "unready" => Some(Node { ready: false }),
                    "gone" => None,
                    other => return Err(format!("what is {other}?")),
                };
                set(&mut self.nodes, &name, fact.clone());
                self.apply(Input::Node(name, fact));
            }
            "agent" => self.agent(words)?,
            "native" => {
                let name = key(&words.next()?);
                let healthy = words.take("healthy").unwrap_or("0/0".to_owned());
                let (has, needs) = healthy.split_once('/').ok_or("healthy is has/needs")?;
                let fact = NativeBudget {
                    selector: words::selector(&words.take("select").unwrap_or("all".to_owned()))?,
                    allowed: i64::from(words.number("allowed")?.unwrap_or(0)),
                    current: !words.flag("outdated"),
                    expected: i64::from(words.number("expected")?.unwrap_or(0)),
                    always_allow_unready: words.flag("AlwaysAllow"),
                    healthy: (
                        has.parse().map_err(|_| healthy.clone())?,
                        needs.parse().map_err(|_| healthy.clone())?,
                    ),
                };
                let fact = (!words.flag("gone")).then_some(fact);
                self.apply(Input::NativeBudget(name, fact));
            }
            // The watches of these kinds receive something.
            "heard" => {
                let kinds = words.rest();
                kinds.iter().for_each(|kind| self.engine.heard(&words::kind_of(kind), self.now));
            }
            // Discovery omits the kind, and it cannot be read.
            "doubted" => self.engine.doubt(&words::kind_of(&words.next()?)),
            "forgotten" => self.engine.forget(&words::kind_of(&words.next()?)),
            "look" => {
                let budget = self.budget_key(&words.next()?)?;
                let ahead = words.take("ahead").map(|by| by.parse::<u64>().map_err(|e| e.to_string()));
                let pods =
                    words.rest().iter().filter_map(|name| self.pods.get(&key(name)).cloned()).collect();
                // With `ahead`, the list is newer than the next events of a lagging watch.
                let version = match ahead.transpose()? {
                    Some(by) => Version(self.version + by),
                    None => self.next_version(),
                };
                self.engine.apply_pod_list(&budget, pods, version, self.now);
            }
            "relist" => {
                let shown: Vec<_> = words.rest().iter().map(|name| key(name)).collect();
                self.pods.retain(|key, _| shown.contains(key));
                let version = self.next_version();
                let pods = self.pods.values().cloned().collect();
                self.engine.sync(Snapshot::Pods(pods, version), self.now);
            }
            other => return Err(format!("what is {other}?")),
        }
        Ok(())
    }

    fn apply(&mut self, input: Input) {
        self.engine.apply(input, self.now);
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    /// Restarts the process. The new one knows only what the API server stores, and cannot read one kind, if stated.
    fn restart(&mut self, unread: Option<&GroupKind>) {
        for budget in self.budgets.values_mut() {
            let status = self.engine.status(&budget.key, self.now).unwrap();
            budget.gone = status
                .groups
                .iter()
                .filter_map(|group| Some((group.name.clone(), group.gone_since?)))
                .collect();
            budget.memory = status.memory;
        }
        let mut engine = Engine::new(self.gates);
        let pairs = |n: &BTreeMap<Text, Namespace>| n.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        engine.sync(Snapshot::Namespaces(pairs(&self.namespaces)), self.now);
        engine.sync(
            Snapshot::Nodes(self.nodes.iter().map(|(k, v)| (k.clone(), v.clone())).collect()),
            self.now,
        );
        engine.sync(
            Snapshot::Agents(self.agents.iter().map(|(k, v)| (k.clone(), v.clone())).collect()),
            self.now,
        );
        let read = |controller: &&Controller| Some(&controller.kind) != unread;
        for controller in self.controllers.values().filter(read) {
            engine.apply(Input::Controller(controller.clone()), self.now);
        }
        let groups = self.pod_groups.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        engine.sync(Snapshot::PodGroups(groups), self.now);
        for ((source, name), workload) in &self.workloads {
            engine.apply(Input::Workload(*source, name.clone(), Some(workload.clone())), self.now);
        }
        for kind in BudgetKind::ALL {
            let alike = self.budgets.values().filter(|budget| budget.key.kind == kind);
            engine.sync(Snapshot::Budgets(kind, alike.cloned().collect()), self.now);
        }
        engine.sync(Snapshot::Pods(self.pods.values().cloned().collect(), Version(self.version)), self.now);
        self.engine = engine;
    }

    /// Starts an agent, or renews its lease.
    fn agent(&mut self, words: &mut Words) -> Result<(), String> {
        let node: Text = words.next()?.into();
        let fact = match words.flag("gone") {
            true => None,
            false => {
                let known = self.agents.get(&node).filter(|_| !words.flag("restarts"));
                Some(Agent {
                    started: known.map_or(self.now, |agent| agent.started),
                    renewed: self.now,
                    holds: words::span(&words.take("holds").unwrap_or("40s".to_owned()))?,
                })
            }
        };
        set(&mut self.agents, &node, fact.clone());
        self.apply(Input::Agent(node, fact));
        Ok(())
    }
}

fn set<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    };
}

/// `Kind/name`, or `Kind/name@uid`. The default UID is kind and name.
fn parse_owner(text: &str) -> Result<Owner, String> {
    let (text, uid) = text.split_once('@').unwrap_or((text, ""));
    let (kind, name) = words::kind_and_name(text)?;
    let uid = if uid.is_empty() { format!("{}-{name}", kind.kind) } else { uid.to_owned() };
    Ok(Owner { uid: uid.into(), kind, name: name.into(), controller: true })
}
