//! What may happen next, and what it does.

use super::*;

impl World {
    /// Everything that may happen next.
    pub(crate) fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        let mut actions = Vec::new();
        for (request, journey) in self.requests.iter().enumerate() {
            match &journey.stage {
                Stage::Planned => {
                    let at = scenario.requests[request].2;
                    let running = self
                        .nodes
                        .iter()
                        .enumerate()
                        .filter(|(index, _)| at == Ask::Any || at == Ask::At(*index))
                        .filter(|(_, node)| node.replica.is_some());
                    actions.extend(running.map(|(node, _)| Action::Send(request, node)));
                }
                Stage::Asked(node) => {
                    if self.mishaps.timeouts > 0 || self.nodes[*node].replica.is_none() {
                        actions.push(Action::Timeout(request));
                    }
                }
                Stage::Admitted(_) => {
                    actions.push(Action::Execute(request));
                    if self.mishaps.refusals > 0 {
                        actions.push(Action::Refuse(request));
                    }
                }
                Stage::Over => {}
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.replica.is_none() {
                continue;
            }
            if !node.pods.is_empty() {
                actions.push(Action::ShowPod(index));
            }
            if !node.budgets.is_empty() {
                actions.push(Action::ShowBudget(index));
            }
            for (id, wire) in &node.calls {
                match wire {
                    Wire::Sent(_) => actions.push(Action::Perform(index, *id)),
                    Wire::Answered(_) => {
                        actions.push(Action::Deliver(index, *id));
                        if self.mishaps.lost > 0 {
                            actions.push(Action::Lose(index, *id));
                        }
                    }
                }
            }
            if self.mishaps.crashes > 0 && index + 1 == self.nodes.len() {
                actions.push(Action::Crash(index));
            }
            if self.mishaps.relists > 0 && !node.pods.is_empty() {
                actions.push(Action::Relist(index));
            }
        }
        for (uid, pod) in &self.pods {
            // Where nobody takes its place, a pod that is gone is one that is terminating, to everybody.
            if pod.terminating && scenario.successors {
                actions.push(Action::Finish(uid.clone()));
            }
            if pod.containers.iter().any(|c| c.image != c.asked_image) {
                actions.push(Action::Restart(uid.clone()));
            }
        }
        actions.extend(
            self.store
                .iter()
                .filter(|deed| self.is_possible(&scenario.deeds[**deed]))
                .map(|deed| Action::Do(*deed)),
        );
        for (index, node) in self.nodes.iter().enumerate() {
            let closed = self.budgets.values().any(|budget| !self.is_open(budget));
            if node.replica.is_some() && node.holder && closed && node.calls.is_empty() {
                actions.push(Action::Tick(index));
            }
        }
        // Nothing is under way for long.
        let old =
            self.requests.iter().any(|j| j.aged && matches!(j.stage, Stage::Asked(_) | Stage::Admitted(_)));
        if self.mishaps.time > 0 && !old {
            actions.push(Action::TimePasses);
        }
        actions
    }

    pub(super) fn is_possible(&self, deed: &Deed) -> bool {
        match deed {
            Deed::Heal(name) => self.pod_named(name).is_some_and(|pod| !pod.ready && !pod.terminating),
            Deed::Create(name, _) => self.pod_named(name).is_none(),
            Deed::MakeBudget(name, _) => !self.budgets.contains_key(&budget_key(name)),
            Deed::ChangeBudget(name, _) | Deed::DeleteBudget(name) => {
                self.budgets.contains_key(&budget_key(name))
            }
            Deed::Start(node) => self.nodes[*node].replica.is_none(),
            Deed::Holder(node, holder) => self.nodes[*node].holder != *holder,
        }
    }

    /// Lets one thing happen.
    pub(crate) fn act(&mut self, action: &Action, scenario: &Scenario) {
        let before = self.nodes.clone();
        self.happen(action, scenario);
        for (index, was) in before.iter().enumerate() {
            if Arc::ptr_eq(was, &self.nodes[index]) {
                continue;
            }
            if let Some(version) = self.node(index).skip_known_budgets() {
                self.step(index, Event::BudgetsAt(version));
            }
            let digest = self.nodes[index].digest();
            self.node(index).digest = digest;
        }
        self.keep_floors();
    }

    pub(super) fn happen(&mut self, action: &Action, scenario: &Scenario) {
        match action {
            Action::Send(request, node) => self.send(*request, *node),
            Action::ShowPod(node) => {
                if let Some(input) = self.node(*node).pods.pop_front() {
                    self.step(*node, Event::Fact(Box::new(input)));
                }
            }
            Action::ShowBudget(node) => {
                if let Some((version, input)) = self.node(*node).budgets.pop_front() {
                    self.step(*node, Event::Fact(Box::new(input)));
                    self.step(*node, Event::BudgetsAt(version));
                }
            }
            Action::Perform(node, id) => {
                if let Some(Wire::Sent(call)) = self.nodes[*node].calls.get(id).cloned() {
                    let reply = self.perform(*node, &call);
                    self.node(*node).calls.insert(*id, Wire::Answered(reply));
                }
            }
            Action::Deliver(node, id) => {
                if let Some(Wire::Answered(reply)) = self.node(*node).calls.remove(id) {
                    self.step(*node, Event::Reply(*id, reply));
                }
            }
            Action::Lose(node, id) => {
                self.mishaps.lost -= 1;
                self.node(*node).calls.remove(id);
                self.step(*node, Event::Reply(*id, Reply::Lost));
            }
            Action::Execute(request) => self.execute(*request, scenario),
            Action::Refuse(request) => {
                self.mishaps.refusals -= 1;
                self.requests[*request].stage = Stage::Over;
            }
            Action::Finish(uid) => {
                let name = self.pods.get(uid).map(|pod| pod.key.name.clone());
                self.remove_pod(uid);
                if let (Some(name), true) = (name, scenario.successors) {
                    self.create_pod(&name, Phase::Running, true);
                }
            }
            Action::Restart(uid) => {
                let id = self.revision + 1;
                self.change_pod(uid, |pod| {
                    for container in &mut pod.containers {
                        container.image = container.asked_image;
                        container.id = id;
                    }
                });
            }
            Action::Do(deed) => {
                self.store.remove(deed);
                self.do_deed(&scenario.deeds[*deed].clone(), scenario);
            }
            Action::Crash(node) => {
                self.mishaps.crashes -= 1;
                self.crash(*node);
            }
            Action::Relist(node) => {
                self.mishaps.relists -= 1;
                self.node(*node).pods.clear();
                let pods = self.pods.values().cloned().collect();
                self.step(*node, Event::List(Snapshot::Pods(pods, Version(self.revision))));
            }
            Action::Timeout(request) => {
                if matches!(self.requests[*request].stage, Stage::Asked(node) if self.nodes[node].replica.is_some())
                {
                    self.mishaps.timeouts -= 1;
                }
                self.requests[*request].stage = Stage::Over;
            }
            Action::Tick(node) => self.step(*node, Event::Tick),
            Action::TimePasses => self.pass_time(),
        }
    }

    pub(super) fn send(&mut self, request: usize, node: usize) {
        let journey = &self.requests[request];
        // A delete or an update carries the very object; an eviction knows a name.
        let object = self.pod_named(&journey.pod).cloned();
        if object.is_none() && journey.operation != Operation::Evict {
            self.requests[request].stage = Stage::Over;
            return;
        }
        let target = match (journey.operation, &object) {
            (Operation::Update, Some(pod)) => Target(
                [ContainerChange {
                    name: "main".into(),
                    replaces: Some(pod.containers[0].id),
                    image: Some(2),
                    resources: None,
                }]
                .into(),
            ),
            _ => Target::default(),
        };
        let asked = Request {
            operation: journey.operation,
            pod: ObjectKey::new(NAMESPACE, journey.pod.clone()),
            object: object.filter(|_| journey.operation != Operation::Evict),
            precondition: None,
            caller: Caller::named("alice"),
            dry_run: false,
            target,
        };
        self.requests[request].stage = Stage::Asked(node);
        self.note_sent(request);
        let deadline = self.clock.after(DEADLINE);
        self.step(node, Event::Ask { id: request as u64, request: Box::new(asked), deadline });
    }

    pub(super) fn do_deed(&mut self, deed: &Deed, scenario: &Scenario) {
        match deed {
            Deed::Heal(name) => {
                if let Some(uid) = self.pod_named(name).map(|pod| pod.uid.clone()) {
                    self.change_pod(&uid, |pod| {
                        pod.ready = true;
                        pod.phase = Phase::Running;
                    });
                }
            }
            Deed::Create(name, ready) => self.create_pod(name, Phase::Running, *ready),
            Deed::MakeBudget(name, rules) => {
                let budget = self.new_budget(name, rules.clone());
                self.put_budget(&budget);
            }
            Deed::ChangeBudget(name, rules) => {
                let version = self.next_revision();
                if let Some(mut budget) = self.budgets.get(&budget_key(name)).cloned() {
                    budget.spec = Ok(rules.clone());
                    budget.generation += 1;
                    budget.version = version;
                    self.put_budget(&budget);
                    self.note_change(&budget_key(name));
                }
            }
            Deed::DeleteBudget(name) => {
                let version = self.next_revision();
                let key = budget_key(name);
                self.budgets.remove(&key);
                self.floors.drop(&key);
                for node in self.running() {
                    node.budgets.push_back((version, Input::BudgetGone(key.clone())));
                }
            }
            Deed::Start(node) => self.start(*node, scenario),
            Deed::Holder(node, holder) => {
                self.node(*node).holder = *holder;
                self.step(*node, Event::Holder(*holder));
            }
        }
    }

    pub(super) fn crash(&mut self, index: usize) {
        let node = self.node(index);
        let name = node.process();
        node.replica = None;
        node.pods.clear();
        node.budgets.clear();
        // What was sent and performed stays; what was not is as if it had never been sent.
        node.calls.clear();
        if let Some(lease) = self.leases.get_mut(&name) {
            lease.vanished = true;
            self.vanished.insert(name, self.clock);
        }
    }

    /// Enough time for every bound of the protocol to pass.
    pub(super) fn pass_time(&mut self) {
        self.mishaps.time -= 1;
        self.clock = self.clock.after(A_WHILE);
        let clock = self.clock;
        let vanished = &self.vanished;
        self.leases.retain(|name, _| vanished.get(name).is_none_or(|at| clock < at.after(2 * A_WHILE)));
        for journey in &mut self.requests {
            journey.aged = matches!(journey.stage, Stage::Asked(_) | Stage::Admitted(_));
        }
        for index in 0..self.nodes.len() {
            // A watch that has nothing to show says how far it has come.
            if self.nodes[index].pods.is_empty() {
                self.step(index, Event::Fact(Box::new(Input::PodsAt(Version(self.revision)))));
            }
            self.step(index, Event::Heard);
            self.step(index, Event::Tick);
        }
    }

    /// Lets everything that is under way come to its end, and then enough time pass, a few times over. Whoever holds
    /// the lease has then had every chance to tidy up.
    pub(crate) fn run_out(&mut self, scenario: &Scenario) {
        for _ in 0..5 {
            self.mishaps = Mishaps { time: 1, ..Mishaps::default() };
            self.pass_time();
            while let Some(action) = self.actions(scenario).into_iter().find(|action| {
                matches!(
                    action,
                    Action::ShowPod(_) | Action::ShowBudget(_) | Action::Perform(..) | Action::Deliver(..)
                )
            }) {
                self.act(&action, scenario);
            }
        }
    }

    /// Nothing is under way anywhere.
    pub(crate) fn is_quiet(&self) -> bool {
        self.nodes.iter().all(|node| node.pods.is_empty() && node.budgets.is_empty() && node.calls.is_empty())
            && self.requests.iter().all(|journey| journey.stage == Stage::Over)
            && self.pods.values().all(|pod| pod.containers.iter().all(|c| c.image == c.asked_image))
    }
}
