//! The API server: what it stores, what it shows, and what it does with calls.

use super::*;
use crate::plain;

/// An annotation from which these rules are read.
pub(super) fn annotated(rules: &Rules) -> RuleAnnotations {
    RuleAnnotations { any: true, values: [(Text::from("rules"), Some(format!("{rules:?}").into()))].into() }
}

impl World {
    pub(super) fn new_budget(&mut self, name: &str, uid: Uid, rules: Rules) -> Budget {
        Budget {
            key: budget_key(name),
            uid,
            generation: 1,
            version: self.counts.next_budget(),
            annotations: if self.annotated.is_some() { annotated(&rules) } else { Default::default() },
            is_twin: false,
            spec: Ok(rules),
            ledger: Default::default(),
            gone: Box::default(),
            memory: quorate_engine::facts::Memory::default(),
        }
    }

    pub(super) fn create_pod(&mut self, name: &str, uid: Uid, phase: Phase, ready: bool) {
        let version = self.counts.next_pod();
        let group = name.chars().next().map(String::from).unwrap_or_default();
        let pod = Pod {
            labels: Labels::new([("app", "web"), ("name", name), ("group", &group)]),
            phase,
            ready,
            containers: [plain::container(version)].into(),
            owners: self.scale.map(|_| scale::owner()).into_iter().collect(),
            ..plain::pod(ObjectKey::new(NAMESPACE, name), uid, version)
        };
        self.put_pod(pod);
    }

    fn put_pod(&mut self, pod: Pod) {
        let uid = pod.uid.clone();
        let pod = Part::new(pod);
        for node in self.running() {
            node.pods.change(|pods| pods.push_back(News::Pod(pod.clone())));
        }
        self.pods.change(|pods| pods.insert(uid, pod));
    }

    pub(super) fn change_pod(&mut self, uid: &Uid, change: impl FnOnce(&mut Pod)) {
        let Some(pod) = self.pods.get(uid) else { return };
        let mut pod = Pod::clone(pod);
        change(&mut pod);
        pod.version = self.counts.next_pod();
        self.put_pod(pod);
    }

    pub(super) fn remove_pod(&mut self, uid: &Uid) {
        let version = self.counts.next_pod();
        self.pods.change(|pods| pods.remove(uid));
        for node in self.running() {
            node.pods.change(|pods| pods.push_back(News::PodGone(uid.clone(), version)));
        }
    }

    pub(super) fn put_budget(&mut self, budget: Budget) -> Part<Budget> {
        let budget = Part::new(budget);
        for node in self.running() {
            node.budgets.change(|budgets| budgets.push_back(News::Budget(budget.clone())));
        }
        self.budgets.change(|budgets| budgets.insert(budget.key.clone(), budget.clone()));
        budget
    }

    pub(super) fn remove_budget(&mut self, key: &BudgetKey) {
        let version = self.counts.next_budget();
        self.budgets.change(|budgets| budgets.remove(key));
        self.steady.change(|steady| steady.remove(key));
        self.floors.change(|floors| floors.drop(key));
        for node in self.running() {
            node.budgets.change(|budgets| budgets.push_back(News::BudgetGone(key.clone(), version)));
        }
    }

    /// The version of a consistent list of pods.
    pub(crate) fn pods_version(&self) -> Version {
        self.counts.pods()
    }

    pub(crate) fn pod_named(&self, name: &str) -> Option<&Part<Pod>> {
        self.pods.values().find(|pod| &*pod.key.name == name)
    }

    /// Starts a replica as the server does.
    pub(super) fn start(&mut self, index: usize, scenario: &Scenario) {
        self.join(index, scenario);
        self.serve(index, scenario);
    }

    /// Starts a replica that does not serve yet: its Lease, then consistent lists.
    pub(super) fn join(&mut self, index: usize, scenario: &Scenario) {
        let node = &mut self.nodes[index];
        node.incarnation += 1;
        let name = node.process();
        let settings = Settings {
            patience: Duration::ZERO,
            without: scenario.without.clone(),
            // Waiting is no state of its own: it only hides what comes after it.
            settle_delay: Duration::ZERO,
            batch_pause: Duration::ZERO,
            list_pause: Duration::ZERO,
            opens_unguarded: true,
            ..Settings::new(name.clone())
        };
        node.mind = Some(Part::new(Mind::new(settings)));
        node.cut_off();
        node.serving = false;
        let member = ReplicaLease {
            name: name.clone(),
            acknowledged: Acknowledged::default(),
            serves: false,
            admitted: Vec::new(),
        };
        self.leases.change(|leases| leases.insert(name, Lease { member, vanished: None }));
        if let Some(scale) = self.scale {
            self.deliver(index, &News::Set(Part::new(scale.set())));
        }
        let pods = News::Pods(self.pods.values().cloned().collect(), self.counts.pods());
        self.deliver(index, &pods);
        self.list_budgets(index);
    }

    /// A replica begins to serve: its Lease says so, then it lists the budgets once more.
    pub(super) fn serve(&mut self, index: usize, scenario: &Scenario) {
        let node = &mut self.nodes[index];
        node.serving = true;
        let (name, leader) = (node.process(), node.leader);
        self.leases.change(|leases| {
            if let Some(lease) = leases.get_mut(&name) {
                lease.member.serves = true;
            }
        });
        if !scenario.without.contains(&ProtocolRule::ListOnceServing) {
            self.list_budgets(index);
        }
        self.deliver(index, &News::Serving);
        self.deliver(index, &News::Leader(leader));
    }

    fn list_budgets(&mut self, index: usize) {
        self.nodes[index].budgets = Part::new(VecDeque::new());
        let budgets = News::Budgets(self.budgets.values().cloned().collect());
        self.deliver(index, &budgets);
        self.deliver(index, &News::BudgetsAt(self.counts.budgets()));
    }

    /// A replica ends in order: it has given its last answer, and its Lease says what it admitted.
    pub(super) fn end(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let name = node.process();
        let Some(mind) = node.mind.take() else { return };
        node.cut_off();
        let (admitted, clock) = (mind.replica.admitted_recently(), self.clock);
        self.leases.change(|leases| {
            if let Some(lease) = leases.get_mut(&name) {
                (lease.member.serves, lease.member.admitted) = (false, admitted);
                lease.vanished = Some(clock);
            }
        });
    }

    /// Tells a replica something, and puts what it wants on the wire.
    pub(super) fn deliver(&mut self, index: usize, news: &News) {
        let node = &mut self.nodes[index];
        let Some(mind) = &mut node.mind else { return };
        let outputs = self.habits.hear(mind, news, self.clock);
        for output in outputs.iter() {
            match output {
                Output::Call(_, call) => {
                    let sent = Sent { call: call.clone(), selector: self.asked_for(index, call) };
                    let sent = Wire::Sent(Part::new(sent));
                    self.nodes[index].calls.change(|calls| calls.push(sent));
                }
                Output::Acknowledge(version) => {
                    let name = self.nodes[index].process();
                    self.leases.change(|leases| {
                        if let Some(lease) = leases.get_mut(&name) {
                            lease.member.acknowledged = *version;
                        }
                    });
                }
                Output::Answer(id, decision) => self.answered(index, *id as usize, decision),
                Output::Note(_) => {}
            }
        }
    }

    pub(super) fn answered(&mut self, index: usize, request: usize, decision: &Decision) {
        // An API server that gave up does not hear the answer any more.
        if self.requests[request].stage != RequestState::Asked(index) {
            return;
        }
        let uid = match decision {
            // Only evictions are pinned to what the answer says.
            Decision::Allow(allow) => match self.requests[request].meant.as_ref().or_else(|| allow.pin()) {
                Some(uid) => Some(uid.clone()),
                None => self.pod_named(&self.requests[request].pod).map(|pod| pod.uid.clone()),
            },
            Decision::Deny(_) => None,
        };
        match uid {
            Some(uid) => {
                self.request(request, |journey| journey.stage = RequestState::Admitted(uid));
                self.note_admitted(request);
            }
            None => self.over(request),
        }
    }

    /// Which pods a list is of, as its sender knows the budget now.
    fn asked_for(&self, node: usize, call: &Call) -> Option<Selector> {
        let Call::ListPods(key) = call else { return None };
        match &self.nodes[node].mind.as_ref()?.replica.engine().budget(key)?.spec {
            Ok(Rules { covers: Covers::Selector(selector), .. }) => Some(selector.clone()),
            _ => None,
        }
    }

    /// What the API server does with a call.
    pub(super) fn perform(&mut self, sent: &Sent) -> Reply {
        match &sent.call {
            Call::Patch(patch) => {
                let Some(stored) = self.budgets.get(&patch.budget) else {
                    return Reply::Written(WriteOutcome::Gone);
                };
                let mut budget = Budget::clone(stored);
                let was_open = self.is_open(&budget);
                if !patch.apply(&mut budget) {
                    return Reply::Written(WriteOutcome::Refused);
                }
                budget.version = self.counts.next_budget();
                let opened = !was_open && self.is_open(&budget);
                let budget = self.put_budget(budget);
                if opened {
                    self.note_open(&budget.key);
                }
                Reply::Written(WriteOutcome::Done(Box::new(Budget::clone(&budget))))
            }
            Call::GetBudget(key) => {
                Reply::Budget(self.budgets.get(key).map(|budget| Box::new(Budget::clone(budget))))
            }
            Call::GetPod(key) => match self.pod_named(&key.name) {
                Some(pod) => Reply::Pod(PodRead::There(Box::new(Pod::clone(pod)))),
                None => Reply::Pod(PodRead::Gone),
            },
            Call::GetController(..) => unreachable!("no budget here names a workload"),
            Call::ListPods(_) => {
                let selected = |pod: &&Part<Pod>| {
                    sent.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
                };
                let pods = self.pods.values().filter(selected).map(|pod| Pod::clone(pod)).collect();
                Reply::Pods(pods, self.counts.pods())
            }
            Call::PodsVersion => Reply::PodsVersion(self.counts.pods()),
            Call::ListReplicas => {
                let listed =
                    self.leases.values().filter(|lease| lease.vanished.is_none() || !self.omits_vanished);
                Reply::Replicas(listed.map(|lease| lease.member.clone()).collect())
            }
        }
    }

    pub(crate) fn is_open(&self, budget: &Budget) -> bool {
        if self.always_open {
            return budget.ledger.enforced.is_some();
        }
        let coverage =
            budget.spec.as_ref().ok().map(|rules| quorate_engine::Coverage::of(&budget.uid, rules));
        let since = self.steady.get(&budget.key).copied().unwrap_or_default();
        let opened = budget.ledger.enforced_generation.unwrap_or_default();
        budget.ledger.enforced == coverage && (opened >= since || self.any_generation)
    }

    /// The API server carries out what was admitted.
    pub(super) fn execute(&mut self, request: usize, scenario: &Scenario) {
        let journey = self.requests[request].clone();
        let RequestState::Admitted(uid) = journey.stage else { return };
        let by_name = self.pod_named(&journey.pod).map(|pod| pod.uid.clone());
        let pinned = journey.operation != Operation::Evict || !scenario.without.contains(&ProtocolRule::Pin);
        let struck = if pinned { self.pods.contains_key(&uid).then_some(uid) } else { by_name };
        if let Some(uid) = struck.filter(|uid| self.pods.get(uid).is_some_and(|pod| !pod.terminating)) {
            match journey.operation {
                Operation::Evict | Operation::Delete => self.change_pod(&uid, |pod| pod.terminating = true),
                // The pod has been changed since: a conflict.
                Operation::Update | Operation::Resize | Operation::Relabel
                    if journey.base != self.pods.get(&uid).map(|pod| pod.version) => {}
                Operation::Update | Operation::Resize | Operation::Relabel => {
                    self.change_pod(&uid, |pod| match journey.change {
                        Change::Image(image) => pod.containers[0].spec_image = image,
                        Change::Gate => pod.announced = true,
                        Change::Label(key, value) => pod.labels = relabelled(&pod.labels, key, value),
                    });
                }
            }
        }
        self.over(request);
    }
}

/// The labels with another value for one of them.
pub(crate) fn relabelled(labels: &Labels, key: &str, value: &str) -> Labels {
    let others = ["app", "name", "group"].into_iter().filter(|other| *other != key);
    let others = others.filter_map(|other| Some((other, labels.get(other)?)));
    Labels::new(others.chain([(key, value)]))
}
