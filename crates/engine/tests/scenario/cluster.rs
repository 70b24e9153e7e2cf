//! The cluster that a scenario tells of: it keeps every object, so that a command need only say what changes.

use std::collections::BTreeMap;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Version};
use quorate_engine::claims::{Claim, Ledger, Target, Token};
use quorate_engine::facts::{
    Agent, Broken, Budget, BudgetKey, Controller, Counts, Covers, Front, HealthRule, Input, Link, Namespace,
    NativeBudget, Node, Operation, Operations, Owner, Phase, Pod, PodGroup, Probe, Rules, UnhealthyPolicy,
    Units, Workload, WorkloadGroup, WorkloadSource,
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

    /// Takes a command that changes something.
    pub(crate) fn tell(&mut self, verb: &str, words: &mut Words) -> Result<(), String> {
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
            "restart" => self.restart(),
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
                let fact =
                    Namespace { terminating: words.flag("terminating"), excluded: words.flag("excluded") };
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
            "look" => {
                let budget = self.budget_key(&words.next()?)?;
                let pods =
                    words.rest().iter().filter_map(|name| self.pods.get(&key(name)).cloned()).collect();
                let version = self.next_version();
                self.engine.look(&budget, pods, version, self.now);
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

    /// A process that ends and begins anew: it knows what the API server knows, and no more.
    fn restart(&mut self) {
        for budget in self.budgets.values_mut() {
            let status = self.engine.status(&budget.key, self.now).unwrap();
            budget.gone = status
                .groups
                .iter()
                .filter_map(|group| Some((group.name.clone(), group.gone_since?)))
                .collect();
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
        for controller in self.controllers.values() {
            engine.apply(Input::Controller(controller.clone()), self.now);
        }
        let groups = self.pod_groups.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        engine.sync(Snapshot::PodGroups(groups), self.now);
        for ((source, name), workload) in &self.workloads {
            engine.apply(Input::Workload(*source, name.clone(), Some(workload.clone())), self.now);
        }
        engine.sync(Snapshot::Budgets(self.budgets.values().cloned().collect()), self.now);
        engine.sync(Snapshot::Pods(self.pods.values().cloned().collect(), Version(self.version)), self.now);
        self.engine = engine;
    }

    fn pod(&mut self, words: &mut Words) -> Result<(), String> {
        let name = key(&words.next()?);
        let version = self.next_version();
        let known = self.pods.get(&name).filter(|_| !words.flag("new"));
        let fresh = || Pod {
            key: name.clone(),
            uid: format!("{}-{}", name.name, version.0).into(),
            version,
            labels: Labels::default(),
            node: None,
            phase: Phase::Pending,
            terminating: false,
            ready: false,
            ready_since: None,
            consistent: true,
            probe: None,
            owners: Box::default(),
            link: None,
            group_size: None,
            containers: Box::default(),
        };
        let mut pod = known.cloned().unwrap_or_else(fresh);
        pod.version = version;
        self.describe(&mut pod, words)?;
        let labels = words.labels();
        let kept = pod.labels.iter().map(|(k, v)| (k.clone(), v.clone()));
        let given = labels.into_iter().map(|(k, v)| (k.into(), v.into()));
        let unlabelled: Vec<Text> = words.rest().into_iter().map(Text::from).collect();
        let all: Vec<(Text, Text)> = kept
            .chain(given)
            .filter(|(key, _)| !unlabelled.iter().any(|gone| gone.strip_suffix('-') == Some(&**key)))
            .collect();
        pod.labels = Labels::new(all);
        self.pods.insert(name, pod.clone());
        self.apply(Input::Pod(pod));
        Ok(())
    }

    /// What a `pod` command says beside labels.
    fn describe(&mut self, pod: &mut Pod, words: &mut Words) -> Result<(), String> {
        let phases = [
            ("pending", Phase::Pending),
            ("running", Phase::Running),
            ("succeeded", Phase::Succeeded),
            ("failed", Phase::Failed),
            ("unknown", Phase::Unknown),
        ];
        let was_ready = pod.ready;
        for (word, phase) in phases {
            if words.flag(word) {
                pod.phase = phase;
                pod.ready &= phase == Phase::Running;
            }
        }
        for (word, ready) in [("ready", true), ("unready", false)] {
            if words.flag(word) {
                pod.phase = Phase::Running;
                pod.ready = ready;
            }
        }
        if was_ready != pod.ready || pod.ready_since.is_none() {
            pod.ready_since = Some(self.now);
        }
        pod.terminating |= words.flag("terminating");
        pod.consistent = !words.flag("updating");
        if let Some(node) = words.take("node") {
            pod.node = Some(node.into());
        }
        if let Some(size) = words.number("size")? {
            pod.group_size = Some(size);
        }
        if let Some(group) = words.take("lws") {
            let (set, index) = group.split_once('/').ok_or("lws is set/index")?;
            let kept = pod.labels.iter().cloned().collect::<Vec<_>>();
            let more = [("name", set), ("group-index", index)];
            let more = more.map(|(key, value)| (Text::from(format!("{LWS}/{key}")), Text::from(value)));
            pod.labels = Labels::new(kept.into_iter().chain(more));
        }
        if let Some(link) = words.take("in") {
            pod.link = Some(parse_link(&link)?);
        }
        for (word, controller) in [("owner", true), ("also-owner", false)] {
            while let Some(owner) = words.take(word) {
                let owner = Owner { controller, ..parse_owner(&owner)? };
                pod.owners = pod.owners.iter().cloned().chain([owner]).collect();
            }
        }
        if let Some(says) = words.take("probe") {
            let now = self.now;
            let since = |was: Option<bool>, is| match &pod.probe {
                Some(probe) if was == is => probe.since,
                _ => Some(now),
            };
            let was = pod.probe.as_ref().and_then(|probe| probe.disruptable);
            let disruptable = match says.as_str() {
                "yes" => Some(true),
                "no" => Some(false),
                "silent" | "malformed" => None,
                other => return Err(format!("what is probe={other}?")),
            };
            let back = |text: Option<String>| -> Result<Option<Time>, String> {
                text.map(|ago| Ok(Time(now.0 - words::span(&ago)?.as_millis() as i64))).transpose()
            };
            pod.probe = Some(Probe {
                malformed: (says == "malformed").then(|| "httpGet.port: 99999 is above 65535".into()),
                disruptable,
                message: words.take("saying").map(Into::into),
                probed: if words.flag("unprobed") { None } else { back(words.take("probed"))?.or(Some(now)) },
                since: since(was, disruptable),
                started: back(words.take("started"))?,
            });
        }
        Ok(())
    }

    fn budget(&mut self, words: &mut Words) -> Result<(), String> {
        let front = if words.flag("pub") { Front::PodUnavailableBudget } else { Front::DisruptionBudget };
        let key = BudgetKey { object: key(&words.next()?), front };
        let by_pub = front == Front::PodUnavailableBudget;
        let covers = match (words.take("select"), words.take("target")) {
            (Some(selector), None) => Covers::Selector(words::selector(&selector)?),
            (None, Some(target)) => {
                let (kind, name) = words::kind_and_name(&target)?;
                Covers::Target(kind, name.into())
            }
            (None, None) => Covers::Selector(words::selector(&format!("app={}", key.object.name))?),
            _ => return Err("select or target, not both".to_owned()),
        };
        let min_ready = words.number("min-ready")?;
        let units = match (words.take("scope"), words.take("groups-by"), words.take("group-owner")) {
            (None, None, None) => Units::Pods,
            (Some(scope), None, None) if scope == "Workload" => Units::Workload,
            (None, Some(label), None) => {
                let label = if label == "group-index" || label == "group-key" {
                    format!("{LWS}/{label}")
                } else {
                    label
                };
                Units::Label { key: label.into(), min_ready }
            }
            (None, None, Some(kind)) => Units::Owner { kind: words::kind_of(&kind), min_ready },
            other => return Err(format!("what are the units? {other:?}")),
        };
        let operations = match words.take("ops") {
            None if by_pub => Operations::of(&[Operation::Evict, Operation::Delete, Operation::Update]),
            None => Operations::of(&[Operation::Evict]),
            Some(list) => Operations::of(&list.split(',').map(operation).collect::<Result<Vec<_>, _>>()?),
        };
        let unhealthy = match words.take("unhealthy").as_deref() {
            None if !by_pub => UnhealthyPolicy::IfHealthyBudget,
            Some("IfHealthyBudget") => UnhealthyPolicy::IfHealthyBudget,
            None | Some("AlwaysAllow") => UnhealthyPolicy::AlwaysAllow,
            Some(other) => return Err(format!("what is unhealthy={other}?")),
        };
        let rules = Rules {
            covers: covers.clone(),
            min_available: words.quantity("min")?,
            max_unavailable: words.quantity("max")?,
            units,
            expected: words.number("expected")?,
            unhealthy,
            operations,
            observe: words.flag("observe"),
            health: if by_pub { HealthRule::Strict } else { HealthRule::Ready },
        };
        let version = self.next_version();
        let known = self.budgets.get(&key).filter(|_| !words.flag("new"));
        let uid =
            known.map_or_else(|| format!("{}-{}", key.object.name, version.0).into(), |b| b.uid.clone());
        let mut ledger = known.map(|budget| budget.ledger.clone()).unwrap_or_default();
        if known.is_none() && !words.flag("closed") {
            ledger.enforced = Some(quorate_engine::coverage(&uid, &rules));
        }
        if let Some(protocol) = words.number("protocol")? {
            ledger.protocol = Some(protocol);
        }
        let generation = known.map_or(1, |budget| budget.generation + 1);
        let spec = match words.take("invalid") {
            Some(why) => Err(Broken { why: why.into(), covers, operations }),
            None => Ok(rules),
        };
        let gone = known.map(|budget| budget.gone.clone()).unwrap_or_default();
        let budget = Budget { key: key.clone(), uid, generation, version, spec, ledger, gone };
        self.budgets.insert(key, budget.clone());
        self.apply(Input::Budget(budget));
        Ok(())
    }

    pub(crate) fn budget_key(&self, name: &str) -> Result<BudgetKey, String> {
        let object = key(name);
        let found = self.budgets.keys().find(|key| key.object == object);
        found.cloned().ok_or(format!("no budget {name}"))
    }

    pub(crate) fn edit_ledger(&mut self, key: &BudgetKey, edit: impl FnOnce(&mut Ledger, u64)) {
        let version = self.next_version();
        let budget = self.budgets.get_mut(key).unwrap();
        let coverage = budget.spec.as_ref().map_or(0, |rules| quorate_engine::coverage(&budget.uid, rules));
        edit(&mut budget.ledger, coverage);
        budget.ledger.number += 1;
        budget.version = version;
        let budget = budget.clone();
        self.apply(Input::Budget(budget));
    }

    fn claim(&mut self, words: &mut Words) -> Result<(), String> {
        let budget = self.budget_key(&words.next()?)?;
        let pod = words.next()?;
        let uid = self.pods.get(&key(&pod)).ok_or("no such pod")?.uid.clone();
        if let Some(count) = words.number("others")? {
            let at = self.now;
            self.edit_ledger(&budget, |ledger, _| {
                for n in 0..count {
                    let token = Token {
                        operation: Operation::Evict,
                        by: "bob".into(),
                        at,
                        target: Target::default(),
                    };
                    let tokens = BTreeMap::from([(format!("other-{n}").into(), token)]);
                    let claim = Claim { pod: format!("other-{n}").into(), group: None, tokens };
                    ledger.claims.insert(format!("uid-{n}").into(), claim);
                }
            });
        }
        let operation = words.take("op").map_or(Ok(Operation::Evict), |op| operation(&op))?;
        let token = words.take("token").unwrap_or_else(|| format!("t{}", self.version));
        let by = words.take("by").unwrap_or("alice".to_owned());
        self.add_claim(&budget, &uid, &pod, &token, operation, &by);
        Ok(())
    }

    pub(crate) fn add_claim(
        &mut self,
        budget: &BudgetKey,
        uid: &Text,
        pod: &str,
        token: &str,
        operation: Operation,
        by: &str,
    ) {
        let at = self.now;
        self.edit_ledger(budget, |ledger, _| {
            let fresh = || Claim { pod: pod.into(), group: None, tokens: BTreeMap::new() };
            let claim = ledger.claims.entry(uid.clone()).or_insert_with(fresh);
            claim
                .tokens
                .insert(token.into(), Token { operation, by: by.into(), at, target: Target::default() });
        });
    }

    /// What the lease holder does: claims whose effect is seen in the pods go.
    fn settle(&mut self) {
        let alive: Vec<Text> =
            self.pods.values().filter(|pod| !pod.terminating).map(|pod| pod.uid.clone()).collect();
        for key in self.budgets.keys().cloned().collect::<Vec<_>>() {
            self.edit_ledger(&key, |ledger, _| ledger.claims.retain(|uid, _| alive.contains(uid)));
        }
    }

    fn controller(&mut self, words: &mut Words) -> Result<(), String> {
        let text = words.next()?;
        if words.flag("gone") {
            let controller = self.controllers.remove(&text).ok_or("no such controller")?;
            self.apply(Input::ControllerGone(controller.uid));
            return Ok(());
        }
        let owner = parse_owner(&text)?;
        let replicas = match words.next()?.as_str() {
            "no-scale" => None,
            number => Some(number.parse().map_err(|_| format!("no number: {number}"))?),
        };
        let is_lws = &*owner.kind.kind == "LeaderWorkerSet";
        let size = words.number("size")?;
        let counts = match is_lws || words.flag("counts-groups") {
            true => Counts::Groups { size, falls_whole: is_lws && words.take("restart").is_none() },
            false => Counts::Pods,
        };
        let controller = Controller {
            key: ObjectKey::new(words.take("namespace").unwrap_or("default".to_owned()), owner.name),
            uid: owner.uid,
            kind: owner.kind,
            replicas,
            counts,
            owner: words.take("owner").map(|owner| parse_owner(&owner)).transpose()?,
            deleting: words.flag("deleting"),
            recreate: words.flag("recreate"),
        };
        self.controllers.insert(text, controller.clone());
        self.apply(Input::Controller(controller));
        Ok(())
    }

    fn pod_group(&mut self, words: &mut Words) -> Result<(), String> {
        let name = key(&words.next()?);
        let fact = match words.flag("gone") {
            true => None,
            false => Some(PodGroup {
                min_count: words.number("min")?.unwrap_or(1),
                falls_whole: words.flag("whole"),
                template: words
                    .take("template")
                    .map(|text| text.split_once('/').map(|(w, t)| (w.into(), t.into())).ok_or(text.clone()))
                    .transpose()?,
                controller: words.take("owner").map(|owner| parse_owner(&owner)).transpose()?,
            }),
        };
        set(&mut self.pod_groups, &name, fact.clone());
        self.apply(Input::PodGroup(name, fact));
        Ok(())
    }

    fn workload(&mut self, words: &mut Words) -> Result<(), String> {
        let source = if words.flag("upstream") { WorkloadSource::Upstream } else { WorkloadSource::Own };
        let name = key(&words.next()?);
        let id = (source, name.clone());
        if words.flag("gone") {
            self.workloads.remove(&id);
            self.apply(Input::Workload(source, name, None));
            return Ok(());
        }
        let group = WorkloadGroup {
            name: words.next()?.into(),
            min_count: words.number("min")?.unwrap_or(1),
            replicas: words.number("replicas")?,
        };
        let known = self.workloads.get(&id).map(|workload| workload.groups.to_vec()).unwrap_or_default();
        let others = known.into_iter().filter(|other| other.name != group.name);
        let workload = Workload { groups: others.chain([group.clone()]).collect() };
        self.workloads.insert(id, workload.clone());
        self.apply(Input::Workload(source, name, Some(workload)));
        Ok(())
    }

    /// An agent that starts, or renews its lease.
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

pub(crate) fn operation(text: &str) -> Result<Operation, String> {
    match text {
        "Evict" => Ok(Operation::Evict),
        "Delete" => Ok(Operation::Delete),
        "Update" => Ok(Operation::Update),
        "Resize" => Ok(Operation::Resize),
        other => Err(format!("what is {other}?")),
    }
}

/// `Kind/name`; the UID is the name, unless `Kind/name@uid` says otherwise.
fn parse_owner(text: &str) -> Result<Owner, String> {
    let (text, uid) = text.split_once('@').unwrap_or((text, ""));
    let (kind, name) = words::kind_and_name(text)?;
    let uid = if uid.is_empty() { format!("{}-{name}", kind.kind) } else { uid.to_owned() };
    Ok(Owner { uid: uid.into(), kind, name: name.into(), controller: true })
}

/// `podgroup:name`, `workload/group/replica`, or `upstream:workload/group/replica`.
fn parse_link(text: &str) -> Result<Link, String> {
    if let Some(name) = text.strip_prefix("podgroup:") {
        return Ok(Link::PodGroup(name.into()));
    }
    let (source, text) = match text.strip_prefix("upstream:") {
        Some(text) => (WorkloadSource::Upstream, text),
        None => (WorkloadSource::Own, text),
    };
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [workload, group] => Ok((*workload, *group, "")),
        [workload, group, replica] => Ok((*workload, *group, *replica)),
        _ => Err(format!("no group: {text}")),
    }
    .map(|(workload, group, replica)| Link::Replica {
        source,
        workload: workload.into(),
        group: group.into(),
        replica: replica.into(),
    })
}
