//! Applies the same history to the engine and the oracle, and compares them.
//!
//! | module | content |
//! |---|---|
//! | `events` | the events that a step delivers to an engine |
//! | `check` | what must be equal afterwards |
//! | `cast` | the pods, controllers and budgets of the histories |

mod cast;
mod check;
mod events;

use std::collections::BTreeMap;

use quorate_engine::basics::{ObjectKey, Time, Uid, Version};
use quorate_engine::facts::{Budget, BudgetKey, BudgetKind, Phase, Pod, WorkloadSource};
use quorate_engine::{Changes, Engine, Gates, Snapshot};

use super::step::Step;
use crate::oracle::{Event, Oracle};
use check::check;

pub(crate) struct Drive {
    engine: Engine,
    oracle: Oracle,
    now: Time,
    version: u64,
    /// The actual state of the cluster, whether or not a watch has delivered it.
    pods: BTreeMap<ObjectKey, Pod>,
    older: Vec<Pod>,
    /// Replaced pods whose deletion the watch has not delivered yet.
    unburied: Vec<Uid>,
}

impl Drive {
    pub(crate) fn new(multi_pod_pdbs: bool, disruption_probe: bool) -> Self {
        let gates = Gates { multi_pod_pdbs, disruption_probe };
        Self {
            engine: Engine::new(gates),
            oracle: Oracle::new(gates),
            now: Time(10_000_000),
            version: 0,
            pods: BTreeMap::new(),
            older: Vec::new(),
            unburied: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, step: &Step) -> Result<(), String> {
        for event in self.events(step) {
            let before = self.statuses();
            let changes = self.step(&event);
            self.compare(step)?;
            for (key, status) in self.statuses() {
                let same = before.get(&key) == Some(&status);
                if !same && !changes.budgets.contains(&key) {
                    return Err(format!("{step:?}: the status of {key} changed and was not reported"));
                }
            }
        }
        if matches!(step, Step::Restart) {
            self.restart()?;
        }
        Ok(())
    }

    fn step(&mut self, event: &Event) -> Changes {
        self.oracle.step(event.clone(), self.now);
        match event.clone() {
            Event::Apply(input) => self.engine.apply(input, self.now),
            Event::Sync(snapshot) => self.engine.sync(snapshot, self.now),
            Event::Learn(pod) => self.engine.learn(pod, self.now),
            Event::BudgetPods(budget, pods, version) => {
                self.engine.apply_pod_list(&budget, pods, version, self.now)
            }
            Event::Heard(kinds) => {
                kinds.iter().for_each(|kind| self.engine.heard(kind, self.oracle.now));
                self.engine.advance(self.now)
            }
            Event::Doubted(kind) => {
                self.engine.doubt(&kind);
                self.engine.advance(self.now)
            }
            Event::Forgotten(kind) => {
                self.engine.forget(&kind);
                self.engine.advance(self.now)
            }
            Event::Time => self.engine.advance(self.now),
        }
    }

    fn statuses(&mut self) -> BTreeMap<BudgetKey, quorate_engine::status::Status> {
        let keys: Vec<BudgetKey> = self.oracle.budgets.keys().cloned().collect();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.engine.status(&key, self.now)?))).collect()
    }

    fn compare(&mut self, step: &Step) -> Result<(), String> {
        check(&mut self.engine, &self.oracle, self.now).map_err(|what| format!("after {step:?}: {what}"))
    }

    /// A new engine with the present facts must agree with the oracle. It then replaces the first one.
    fn restart(&mut self) -> Result<(), String> {
        // The present facts do not show which pods are gone, or which had succeeded before they were deleted.
        let is_memory = |pod: &Pod| pod.terminating && pod.phase == Phase::Succeeded;
        if self.oracle.pods.values().any(|seen| seen.absent.is_some() || is_memory(&seen.pod)) {
            return Ok(());
        }
        // Nor which pods a group has lost.
        if self.oracle.lost.values().flat_map(BTreeMap::values).any(|lost| *lost > 0) {
            return Ok(());
        }
        self.oracle.looks.clear();
        // A list shows every pod, those that were read before the watch showed them too.
        let listed = self.oracle.pods.values().map(|seen| seen.pod.version).max();
        listed.into_iter().for_each(|version| self.oracle.shown_up_to(version));
        let mut fresh = Engine::new(self.oracle.gates);
        let oracle = &self.oracle;
        let mut budgets: Vec<Budget> = oracle.budgets.values().cloned().collect();
        for budget in &mut budgets {
            budget.gone = oracle.gone[&budget.key].clone().into_iter().collect();
            budget.memory = self.engine.status(&budget.key, self.now).ok_or("not known")?.memory;
        }
        let pods = oracle.pods.values().map(|seen| seen.pod.clone()).collect();
        // The oracle keeps the latest time when the clock goes back, so the new engine must start with it.
        let (now, version) = (self.oracle.now, self.oracle.pods_version);
        // Pods first and budgets last, in contrast to most histories.
        fresh.sync(Snapshot::Pods(pods, version), now);
        for kind in &oracle.kinds {
            let of_kind = oracle.controllers.values().filter(|controller| controller.kind == *kind);
            fresh.sync(Snapshot::Controllers(kind.clone(), of_kind.cloned().collect()), now);
        }
        fresh.sync(Snapshot::PodGroups(oracle.pod_groups.clone().into_iter().collect()), now);
        for source in [WorkloadSource::Own, WorkloadSource::Upstream] {
            let alike = oracle.workloads.iter().filter(|((s, _), _)| *s == source);
            let list = alike.map(|((_, key), workload)| (key.clone(), workload.clone())).collect();
            fresh.sync(Snapshot::Workloads(source, list), now);
        }
        fresh.sync(Snapshot::Namespaces(oracle.namespaces.clone().into_iter().collect()), now);
        fresh.sync(Snapshot::NativeBudgets(oracle.natives.clone().into_iter().collect()), now);
        fresh.sync(Snapshot::Nodes(oracle.nodes.clone().into_iter().collect()), now);
        fresh.sync(Snapshot::Agents(oracle.agents.clone().into_iter().collect()), now);
        for kind in BudgetKind::ALL {
            let alike = budgets.iter().filter(|budget| budget.key.kind == kind).cloned().collect();
            fresh.sync(Snapshot::Budgets(kind, alike), now);
        }
        for (kind, (at, doubted)) in &oracle.ages.heard {
            fresh.heard(kind, *at);
            if *doubted {
                fresh.doubt(kind);
            }
        }
        check(&mut fresh, &self.oracle, now).map_err(|what| format!("a fresh engine: {what}"))?;
        self.engine = fresh;
        Ok(())
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }
}
