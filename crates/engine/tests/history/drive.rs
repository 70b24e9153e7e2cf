//! Drives engine and oracle through the same history, and compares them.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Text, Time, Uid, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{Claim, Ledger, Target, Token};
use quorate_engine::facts::{
    Agent, Broken, Budget, BudgetKey, Controller, Counts, Covers, Front, HealthRule, Input, Link, Namespace,
    Node, Operation, Operations, Owner, Phase, Pod, PodGroup, Probe, Rules, UnhealthyPolicy, Units, Workload,
    WorkloadGroup, WorkloadSource,
};
use quorate_engine::request::Request;
use quorate_engine::selector::{Ask, Requirement, Selector};
use quorate_engine::{Changes, Engine, Gates, Snapshot};

use super::step::{BUDGETS, BudgetSpec, ControllerEdit, NAMES, PodEdit, Step};
use crate::oracle::{Answer, Event, LWS, Oracle, StatusView};

pub(crate) struct Drive {
    engine: Engine,
    oracle: Oracle,
    now: Time,
    version: u64,
    /// The cluster as it is, whether anybody has seen it or not.
    pods: BTreeMap<ObjectKey, Pod>,
    older: Vec<Pod>,
    /// Predecessors that are gone while the watch has not said so.
    unburied: Vec<(ObjectKey, Uid)>,
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
            let changes = self.tell(&event);
            self.compare(step)?;
            for (key, status) in self.statuses() {
                let same = before.get(&key) == Some(&status);
                if !same && !changes.budgets.contains(&key) {
                    return Err(format!("{step:?}: the status of {key} changed and nobody was told"));
                }
            }
            self.sleep(&changes)?;
        }
        if matches!(step, Step::Restart) {
            self.restart()?;
        }
        Ok(())
    }

    fn tell(&mut self, event: &Event) -> Changes {
        self.oracle.tell(event.clone(), self.now);
        match event.clone() {
            Event::Apply(input) => self.engine.apply(input, self.now),
            Event::Sync(snapshot) => self.engine.sync(snapshot, self.now),
            Event::Learn(pod) => self.engine.learn(pod, self.now),
            Event::Look(budget, pods, version) => self.engine.look(&budget, pods, version, self.now),
            Event::Time => self.engine.advance(self.now),
        }
    }

    fn statuses(&mut self) -> BTreeMap<BudgetKey, quorate_engine::status::Status> {
        let keys: Vec<BudgetKey> = self.oracle.budgets.keys().cloned().collect();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.engine.status(&key, self.now)?))).collect()
    }

    /// Nothing happens by itself before the engine asked to be woken.
    fn sleep(&mut self, changes: &Changes) -> Result<(), String> {
        let late = changes.wake.map_or(Time(self.now.0 + 86_400_000), |wake| Time(wake.0 - 1));
        let mut sleeper = self.engine.clone();
        for (key, status) in self.statuses() {
            let later = sleeper.status(&key, late).map(|status| StatusView::of(&status));
            if later != Some(StatusView::of(&status)) {
                return Err(format!("{key} changed by itself before {late:?}"));
            }
        }
        Ok(())
    }

    fn compare(&mut self, step: &Step) -> Result<(), String> {
        check(&mut self.engine, &self.oracle, self.now).map_err(|what| format!("after {step:?}: {what}"))
    }

    /// An engine that is fed the present facts at once says the same, and goes on in the place of the first.
    fn restart(&mut self) -> Result<(), String> {
        if self.oracle.pods.values().any(|seen| seen.absent.is_some()) {
            return Ok(());
        }
        let mut fresh = Engine::new(self.oracle.gates);
        let oracle = &self.oracle;
        let mut budgets: Vec<Budget> = oracle.budgets.values().cloned().collect();
        for budget in &mut budgets {
            budget.gone = oracle.gone[&budget.key].clone().into_iter().collect();
        }
        let pods = oracle.pods.values().map(|seen| seen.pod.clone()).collect();
        // A clock that went back stays where it was for the oracle, so it does for the new engine.
        let (now, version) = (self.oracle.now, self.oracle.pods_version);
        // Pods first and budgets last, the other way round than in most histories.
        fresh.sync(Snapshot::Pods(pods, version), now);
        for controller in oracle.controllers.values() {
            fresh.apply(Input::Controller(controller.clone()), now);
        }
        fresh.sync(Snapshot::PodGroups(oracle.pod_groups.clone().into_iter().collect()), now);
        for source in [WorkloadSource::Own, WorkloadSource::Upstream] {
            let alike = oracle.workloads.iter().filter(|((s, _), _)| *s == source);
            let list = alike.map(|((_, key), workload)| (key.clone(), workload.clone())).collect();
            fresh.sync(Snapshot::Workloads(source, list), now);
        }
        fresh.sync(Snapshot::Namespaces(oracle.namespaces.clone().into_iter().collect()), now);
        fresh.sync(Snapshot::Nodes(oracle.nodes.clone().into_iter().collect()), now);
        fresh.sync(Snapshot::Agents(oracle.agents.clone().into_iter().collect()), now);
        fresh.sync(Snapshot::Budgets(budgets), now);
        check(&mut fresh, &self.oracle, now).map_err(|what| format!("a fresh engine: {what}"))?;
        self.engine = fresh;
        Ok(())
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
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

    /// What a step shows to an engine.
    fn events(&mut self, step: &Step) -> Vec<Event> {
        match step {
            Step::Pod(name, edit) => {
                let mut events = self.bury(*name);
                events.push(Event::Apply(Input::Pod(self.change(*name, edit))));
                events
            }
            Step::Unseen(name, edit) => {
                self.change(*name, edit);
                Vec::new()
            }
            Step::Deliver(name) => {
                let mut events = self.bury(*name);
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
                    Some(pod) if self.oracle.pods.contains_key(&pod.uid) => {
                        vec![Event::Apply(Input::Pod(pod))]
                    }
                    _ => Vec::new(),
                }
            }
            Step::Gone(name) => {
                let mut events = self.bury(*name);
                if let Some(pod) = self.pods.remove(&pod_key(*name)) {
                    let version = self.next_version();
                    events.push(Event::Apply(Input::PodGone(pod.uid, version)));
                }
                events
            }
            Step::Successor(name, learn) => {
                let key = pod_key(*name);
                let Some(old) = self.pods.get(&key).cloned() else { return Vec::new() };
                let version = self.next_version();
                let pod = Pod { uid: uid(&key, version), version, terminating: false, ..old.clone() };
                self.older.push(old.clone());
                self.pods.insert(key.clone(), pod.clone());
                if *learn {
                    self.unburied.push((key, old.uid));
                    return vec![Event::Learn(pod)];
                }
                let mut events = self.bury(*name);
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
            Step::Look(slot) => {
                let Some(budget) = self.known_budget(*slot) else { return Vec::new() };
                let version = self.next_version();
                let pods =
                    self.pods.values().filter(|pod| self.oracle.covers(&budget, pod)).cloned().collect();
                vec![Event::Look(budget.key, pods, version)]
            }
            Step::Time(by) => {
                self.now = Time(self.now.0 + by);
                vec![Event::Time]
            }
            Step::Restart => vec![Event::Time],
            Step::Budget(..)
            | Step::Numbers(..)
            | Step::NewBudget(_)
            | Step::BudgetGone(_)
            | Step::Broken(..)
            | Step::Open(_)
            | Step::Claim(..)
            | Step::Unclaim(..)
            | Step::Protocol(..) => self.budget_events(step),
            other => self.world_events(other),
        }
    }

    /// The watch says first that the predecessors of a name are gone.
    fn bury(&mut self, name: u8) -> Vec<Event> {
        let key = pod_key(name);
        let (gone, rest) = std::mem::take(&mut self.unburied).into_iter().partition(|(k, _)| *k == key);
        self.unburied = rest;
        let version = Version(self.version);
        let gone: Vec<(ObjectKey, Uid)> = gone;
        gone.into_iter().map(|(_, uid)| Event::Apply(Input::PodGone(uid, version))).collect()
    }

    fn budget_events(&mut self, step: &Step) -> Vec<Event> {
        match step {
            Step::Budget(slot, spec) => {
                let key = budget_key(*slot);
                let version = self.next_version();
                let rules = rules(spec, key.front);
                let known = self.known_budget(*slot);
                let uid: Uid =
                    known.as_ref().map_or_else(|| format!("uid-{}", version.0).into(), |b| b.uid.clone());
                let mut ledger = known.as_ref().map(|budget| budget.ledger.clone()).unwrap_or_default();
                if spec.open {
                    ledger.enforced = Some(quorate_engine::coverage(&uid, &rules));
                }
                let budget = Budget {
                    key,
                    uid,
                    generation: 1,
                    version,
                    spec: Ok(rules),
                    ledger,
                    gone: Box::default(),
                };
                vec![Event::Apply(Input::Budget(budget))]
            }
            Step::Numbers(slot, min, max) => self.edit_budget(*slot, |budget| {
                if let Ok(rules) = &mut budget.spec {
                    (rules.min_available, rules.max_unavailable) = (*min, *max);
                }
            }),
            Step::NewBudget(slot) => {
                let uid = format!("again-{}", self.version);
                let now = self.now;
                self.edit_budget(*slot, |budget| {
                    budget.uid = uid.into();
                    budget.ledger = Ledger::default();
                    budget.gone =
                        [("0".into(), Time(now.0 - 60_000)), ("x/1".into(), Time(now.0 - 899_000))].into();
                    if let Ok(rules) = &budget.spec {
                        budget.ledger.enforced = Some(quorate_engine::coverage(&budget.uid, rules));
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
                    budget.ledger.enforced = Some(quorate_engine::coverage(&budget.uid, rules));
                }
            }),
            Step::Claim(slot, name, operation) => {
                let Some(pod) = self.pods.get(&pod_key(*name)).cloned() else { return Vec::new() };
                let (at, token) = (self.now, format!("t{}", self.version));
                self.edit_budget(*slot, |budget| {
                    let fresh = || Claim { pod: pod.key.name.clone(), group: None, tokens: BTreeMap::new() };
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
            Step::PodGroup(at, fact) => {
                let fact = fact.as_ref().map(|(min_count, falls_whole, template, owned)| PodGroup {
                    min_count: *min_count,
                    falls_whole: *falls_whole,
                    template: (*template > 0).then(|| (format!("w{template}").into(), "t".into())),
                    controller: (*owned > 0).then(|| owner(5 + owned)),
                });
                Input::PodGroup(ObjectKey::new("ns", format!("pg{at}")), fact)
            }
            Step::Workload(at, groups) => {
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
                });
                Input::Workload(source, ObjectKey::new("ns", format!("w{}", at / 2)), fact)
            }
            Step::Namespace(terminating, excluded) => {
                let fact = Namespace { terminating: *terminating, excluded: *excluded };
                Input::Namespace("ns".into(), (*terminating || *excluded).then_some(fact))
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

/// Compares everything that can be asked.
fn check(engine: &mut Engine, oracle: &Oracle, now: Time) -> Result<(), String> {
    for key in oracle.budgets.keys() {
        let status = engine.status(key, now).ok_or(format!("{key} is not known"))?;
        if status.conditions.iter().any(|condition| condition.message.is_empty()) {
            return Err(format!("{key} has an empty message"));
        }
        let (said, expected) = (StatusView::of(&status), oracle.status(key));
        if said != expected {
            return Err(format!(
                "status of {key:?}\n  engine {said:?}\n  oracle {expected:?}\n{:?}",
                oracle.budgets[key].spec
            ));
        }
    }
    for uid in oracle.pods.keys() {
        let expected: Vec<BudgetKey> = oracle.covering(uid).iter().map(|budget| budget.key.clone()).collect();
        if engine.covering(uid) != expected {
            return Err(format!("covering {uid}: {:?}, expected {expected:?}", engine.covering(uid)));
        }
    }
    let before: Vec<_> = oracle.budgets.keys().map(|key| engine.status(key, now)).collect();
    for request in requests(oracle) {
        let said = engine.decide(&request, now);
        let expected = oracle.decide(&request);
        if Answer::of(&said) != expected {
            return Err(format!("{request:?}\n  engine {said:?}\n  oracle {expected:?}"));
        }
        if let quorate_engine::verdict::Verdict::Deny(blocks) = &said {
            let text = quorate_engine::sentence::refusal(blocks, now);
            if text.is_empty() || text.chars().count() > quorate_engine::sentence::MAX_LENGTH {
                return Err(format!("a refusal of {} characters: {text}", text.len()));
            }
        }
    }
    let after: Vec<_> = oracle.budgets.keys().map(|key| engine.status(key, now)).collect();
    if before == after { Ok(()) } else { Err("deciding changed a status".to_owned()) }
}

/// Every pod, every operation, a few callers.
fn requests(oracle: &Oracle) -> Vec<Request> {
    const SYSTEM: &str = "system:serviceaccount:kube-system:";
    let mut requests = Vec::new();
    let mut ask = |pod: &ObjectKey, operation, user: &str, object: Option<&Pod>, names_uid, precondition| {
        requests.push(Request {
            operation,
            pod: pod.clone(),
            object: object.cloned(),
            precondition,
            caller: Caller { names_uid, ..Caller::named(user) },
            dry_run: false,
            target: Target::default(),
        });
    };
    for name in 0..NAMES {
        ask(&pod_key(name), Operation::Evict, "alice", None, false, None);
        ask(&pod_key(name), Operation::Evict, "alice", None, false, Some("another".into()));
        ask(&pod_key(name), Operation::Evict, "system:kube-scheduler", None, false, None);
    }
    for seen in oracle.pods.values() {
        let pod = &seen.pod;
        for operation in [Operation::Delete, Operation::Update, Operation::Resize] {
            ask(&pod.key, operation, "alice", Some(pod), false, None);
        }
        let controllers = ["replicaset-controller", "statefulset-controller", "generic-garbage-collector"];
        for user in controllers {
            ask(&pod.key, Operation::Delete, &format!("{SYSTEM}{user}"), Some(pod), false, None);
        }
        let lws = "system:serviceaccount:lws-system:lws-controller-manager";
        ask(&pod.key, Operation::Delete, lws, Some(pod), false, None);
        for names_uid in [false, true] {
            ask(&pod.key, Operation::Delete, "system:kube-controller-manager", Some(pod), names_uid, None);
        }
    }
    requests
}

fn pod_key(name: u8) -> ObjectKey {
    ObjectKey::new(if name + 1 == NAMES { "other" } else { "ns" }, format!("p{name}"))
}

fn budget_key(slot: u8) -> BudgetKey {
    let (name, front) = match slot + 1 == BUDGETS {
        true => (0, Front::PodUnavailableBudget),
        false => (slot, Front::DisruptionBudget),
    };
    BudgetKey { object: ObjectKey::new("ns", format!("b{name}")), front }
}

fn uid(key: &ObjectKey, version: Version) -> Uid {
    format!("{}-{}", key.name, version.0).into()
}

fn new_pod(key: ObjectKey, version: Version) -> Pod {
    Pod {
        uid: uid(&key, version),
        key,
        version,
        labels: Labels::new([("app", "a")]),
        node: Some("n0".into()),
        phase: Phase::Running,
        terminating: false,
        ready: true,
        ready_since: None,
        consistent: true,
        probe: None,
        owners: Box::default(),
        link: None,
        group_size: None,
        containers: Box::default(),
    }
}

/// The cast of controllers: two ReplicaSets of one Deployment, a StatefulSet, a ReplicaSet of nobody, one of a kind
/// that has no scale, the Deployment, what may own it, and two LeaderWorkerSets.
fn owner(at: u8) -> Owner {
    let (group, kind, name) = match at {
        0 => ("apps", "ReplicaSet", "rs0"),
        1 => ("apps", "ReplicaSet", "rs1"),
        2 => ("apps", "StatefulSet", "sts"),
        3 => ("apps", "ReplicaSet", "lone"),
        4 => ("example.com", "Thing", "thing"),
        5 => ("apps", "Deployment", "dep"),
        6 => ("example.com", "App", "app"),
        7 => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "x"),
        _ => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "y"),
    };
    Owner {
        uid: format!("uid-{name}").into(),
        kind: GroupKind::new(group, kind),
        name: name.into(),
        controller: true,
    }
}

fn controller(at: u8, replicas: Option<u32>, edit: &ControllerEdit) -> Controller {
    let Owner { uid, kind, name, .. } = owner(at);
    let above = match at {
        0 | 1 => Some(5),
        2 => Some(7),
        5 => Some(6),
        _ => None,
    };
    let counts = match at {
        7 | 8 => Counts::Groups { size: edit.size, falls_whole: edit.falls_whole },
        6 => Counts::Groups { size: None, falls_whole: false },
        _ => Counts::Pods,
    };
    Controller {
        key: ObjectKey::new("ns", name),
        uid,
        kind,
        replicas: replicas.filter(|_| at != 4),
        counts,
        owner: above.filter(|_| edit.owned).map(owner),
        deleting: edit.deleting,
        recreate: edit.recreate && at == 5,
    }
}

fn edit_pod(pod: &mut Pod, edit: &PodEdit, now: Time) {
    let mut labels: BTreeMap<Text, Text> = pod.labels.iter().cloned().collect();
    let mut owners: Vec<Owner> = pod.owners.to_vec();
    match edit {
        PodEdit::App(app) => drop(labels.insert("app".into(), ["a", "b"][*app as usize].into())),
        PodEdit::Shard(shard) => match shard {
            Some(shard) => drop(labels.insert("shard".into(), format!("{shard}").into())),
            None => drop(labels.remove("shard")),
        },
        PodEdit::Lws(group, size) => {
            labels.retain(|key, _| !key.starts_with(LWS));
            pod.group_size = *size;
            if let Some((set, index)) = group {
                let set = ["x", "y"][*set as usize];
                labels.insert(format!("{LWS}/name").into(), set.into());
                labels.insert(format!("{LWS}/group-index").into(), format!("{index}").into());
                labels.insert(format!("{LWS}/group-key").into(), format!("{set}{index}").into());
            }
        }
        PodEdit::Owner(at) => {
            owners.retain(|owner| !owner.controller);
            if *at < 5 {
                owners.insert(0, owner(*at));
            }
        }
        PodEdit::GroupOwner(group) => {
            owners.retain(|owner| owner.controller);
            if let Some((name, again)) = group {
                let uid = format!("job-{name}-{again}").into();
                let kind = GroupKind::new("batch.example.com", "JobGroup");
                owners.push(Owner { uid, kind, name: format!("job-{name}").into(), controller: false });
            }
        }
        PodEdit::Link(kind, a, b) => {
            let replica = |source| Link::Replica {
                source,
                workload: format!("w{}", a % 2).into(),
                group: format!("g{}", a / 2).into(),
                replica: if *b == 2 { "".into() } else { format!("{b}").into() },
            };
            pod.link = match kind {
                0 => None,
                1 => Some(Link::PodGroup(format!("pg{a}").into())),
                2 => Some(replica(WorkloadSource::Own)),
                _ => Some(replica(WorkloadSource::Upstream)),
            };
        }
        PodEdit::Phase(phase, ready) => (pod.phase, pod.ready) = (*phase, *ready),
        PodEdit::Terminating => pod.terminating = true,
        PodEdit::Consistent(consistent) => pod.consistent = *consistent,
        PodEdit::Node(node) => pod.node = node.map(|node| format!("n{node}").into()),
        PodEdit::Probe(kind) => {
            let probe = |disruptable, probed: Option<i64>, started: Option<i64>| Probe {
                malformed: None,
                disruptable,
                message: None,
                probed: probed.map(|at| Time(now.0 + at)),
                since: Some(now),
                started: started.map(|at| Time(now.0 + at)),
            };
            pod.probe = match kind {
                0 => None,
                1 => Some(probe(Some(true), Some(0), None)),
                2 => Some(probe(Some(true), Some(0), Some(0))),
                3 => Some(probe(Some(true), Some(-1), Some(0))),
                4 => Some(probe(Some(false), Some(0), None)),
                5 => Some(probe(None, None, None)),
                _ => Some(Probe { malformed: Some("no sense".into()), ..probe(Some(true), Some(0), None) }),
            };
        }
    }
    pod.labels = Labels::new(labels);
    pod.owners = owners.into();
}

fn rules(spec: &BudgetSpec, front: Front) -> Rules {
    let one = |key: &str, ask: Ask| Covers::Selector(Selector([Requirement { key: key.into(), ask }].into()));
    let target = |at: u8| Covers::Target(owner(at).kind, owner(at).name);
    let covers = match spec.covers {
        0 | 1 => Covers::Selector(Selector::labels([("app", "a")])),
        2 => one("app", Ask::In(["a".into(), "b".into()].into())),
        3 => one("shard", Ask::Exists),
        4 => one("app", Ask::NotIn(["b".into()].into())),
        5 => one("shard", Ask::Absent),
        6 => target(5),
        7 => target(7),
        8 => target(6),
        _ => Covers::Selector(Selector::default()),
    };
    let label = |key: String| Units::Label { key: key.into(), min_ready: spec.min_ready };
    let units = match spec.units {
        0 | 1 => Units::Pods,
        2 => Units::Workload,
        3 => label("shard".to_owned()),
        4 => label(format!("{LWS}/group-index")),
        5 => label(format!("{LWS}/group-key")),
        _ => {
            Units::Owner { kind: GroupKind::new("batch.example.com", "JobGroup"), min_ready: spec.min_ready }
        }
    };
    let operations: &[Operation] = match spec.operations {
        0 => &[Operation::Evict],
        1 => &[Operation::Evict, Operation::Delete],
        2 => &[Operation::Evict, Operation::Delete, Operation::Update],
        _ => &[Operation::Evict, Operation::Delete, Operation::Update, Operation::Resize],
    };
    Rules {
        covers,
        min_available: spec.min,
        max_unavailable: spec.max,
        units,
        expected: spec.expected,
        unhealthy: match spec.always_allow {
            true => UnhealthyPolicy::AlwaysAllow,
            false => UnhealthyPolicy::IfHealthyBudget,
        },
        operations: Operations::of(operations),
        observe: spec.observe,
        health: match spec.strict || front == Front::PodUnavailableBudget {
            true => HealthRule::Strict,
            false => HealthRule::Ready,
        },
    }
}
