//! The API server: what it stores, what it shows, and what it does with calls.

use super::*;

impl World {
    pub(super) fn new_budget(&mut self, name: &str, rules: Rules) -> Budget {
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

    pub(super) fn create_pod(&mut self, name: &str, phase: Phase, ready: bool) {
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

    pub(super) fn put_pod(&mut self, pod: &Pod) {
        self.pods.insert(pod.uid.clone(), pod.clone());
        for node in self.running() {
            node.pods.push_back(Input::Pod(pod.clone()));
        }
    }

    pub(super) fn change_pod(&mut self, uid: &Uid, change: impl FnOnce(&mut Pod)) {
        let version = self.next_revision();
        if let Some(mut pod) = self.pods.get(uid).cloned() {
            change(&mut pod);
            pod.version = version;
            self.put_pod(&pod);
        }
    }

    pub(super) fn remove_pod(&mut self, uid: &Uid) {
        let version = self.next_revision();
        self.pods.remove(uid);
        for node in self.running() {
            node.pods.push_back(Input::PodGone(uid.clone(), version));
        }
    }

    pub(super) fn put_budget(&mut self, budget: &Budget) {
        self.budgets.insert(budget.key.clone(), budget.clone());
        for node in self.running() {
            node.budgets.push_back((budget.version, Input::Budget(budget.clone())));
        }
    }

    pub(crate) fn pod_named(&self, name: &str) -> Option<&Pod> {
        self.pods.values().find(|pod| &*pod.key.name == name)
    }

    /// Starts a replica as the server does: Lease, consistent lists, then it serves.
    pub(super) fn start(&mut self, index: usize, scenario: &Scenario) {
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
    pub(super) fn step(&mut self, index: usize, event: Event) {
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

    pub(super) fn answered(&mut self, index: usize, request: usize, verdict: &Verdict) {
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

    /// What the API server does with a call.
    pub(super) fn perform(&mut self, node: usize, call: &Call) -> Reply {
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
    pub(super) fn execute(&mut self, request: usize, scenario: &Scenario) {
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
}
