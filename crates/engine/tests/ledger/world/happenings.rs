//! What may happen next, and what it does.

use quorate_engine::claims::Ledger;
use quorate_engine::request::Placement;

use super::apiserver::{annotated, relabelled};
use super::*;

impl World {
    /// Everything that may happen next.
    pub(crate) fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        if let Some(node) = self.spent(scenario) {
            return vec![Action::ShowPod(node)];
        }
        let mut actions = Vec::new();
        for (request, journey) in self.requests.iter().enumerate() {
            match &journey.stage {
                RequestState::Planned => {
                    let at = scenario.requests[request].2;
                    let running = self
                        .nodes
                        .iter()
                        .enumerate()
                        .filter(|(index, _)| at == At::Any || at == At::At(*index))
                        .filter(|(_, node)| node.mind.is_some());
                    actions.extend(running.map(|(node, _)| Action::Send(request, node)));
                }
                RequestState::Asked(node) => {
                    if self.mishaps.timeouts > 0 || self.nodes[*node].mind.is_none() {
                        actions.push(Action::Timeout(request));
                    }
                }
                RequestState::Admitted(_) => {
                    actions.push(Action::Execute(request));
                    if self.mishaps.refusals > 0 {
                        actions.push(Action::Refuse(request));
                    }
                }
                RequestState::Over => {}
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.mind.is_none() {
                continue;
            }
            if !node.pods.is_empty() {
                actions.push(Action::ShowPod(index));
            }
            if !node.budgets.is_empty() {
                actions.push(Action::ShowBudget(index));
            }
            if !node.sets.is_empty() {
                actions.push(Action::ShowSet(index));
            }
            for (place, wire) in node.calls.iter().enumerate() {
                match wire {
                    Wire::Sent(_) => actions.push(Action::Perform(index, place)),
                    Wire::Answered(_) => {
                        actions.push(Action::Deliver(index, place));
                        if self.mishaps.lost > 0 {
                            actions.push(Action::Lose(index, place));
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
        for (uid, pod) in self.pods.iter() {
            // Where no pod takes its place, a terminating pod counts as gone for all replicas.
            if pod.terminating && scenario.then != Then::Stays {
                actions.push(Action::Finish(uid.clone()));
            }
            if pod.containers.iter().any(|c| c.image != shown_image(c)) {
                actions.push(Action::Restart(uid.clone()));
            } else if pod.announced {
                actions.push(Action::Reopen(uid.clone()));
            }
            if pod.announced && pod.ready {
                actions.push(Action::Unready(uid.clone()));
            }
        }
        actions.extend(
            self.store
                .iter()
                .take(if scenario.in_order { 1 } else { usize::MAX })
                .filter(|deed| self.is_possible(&scenario.deeds[**deed]))
                .map(|deed| Action::Do(*deed)),
        );
        for (index, node) in self.nodes.iter().enumerate() {
            let closed = self.budgets.values().any(|budget| !self.is_open(budget));
            if node.mind.is_some() && node.leader && closed && node.calls.is_empty() {
                actions.push(Action::Tick(index));
            }
        }
        // Nothing is under way for long.
        let old = self
            .requests
            .iter()
            .any(|j| j.aged && matches!(j.stage, RequestState::Asked(_) | RequestState::Admitted(_)));
        if self.mishaps.time > 0 && !old {
            actions.push(Action::TimePasses);
        }
        actions
    }

    /// A replica that is shown a pod, and to which that makes no difference any more: it does not lead and gets no
    /// request, now or later. It can only take the news, and every other action finds the same world before and after;
    /// so it takes the news at once. (Where pods are never replaced, a replica also checks whether it still knows a pod
    /// before it writes its token into a new budget.)
    fn spent(&self, scenario: &Scenario) -> Option<usize> {
        if self.counts.together || scenario.mishaps.timeouts > 0 {
            return None;
        }
        let may_hold = |index: usize| {
            let mut deeds = self.store.iter().map(|deed| &scenario.deeds[*deed]);
            self.nodes[index].leader
                || deeds.any(|deed| matches!(deed, Deed::Leader(node, true) if *node == index))
        };
        let is_stored = |index: usize| {
            self.requests.iter().zip(&scenario.requests).any(|(journey, (_, _, at))| match journey.stage {
                RequestState::Planned => *at == At::Any || *at == At::At(index),
                RequestState::Asked(node) => node == index,
                RequestState::Admitted(_) | RequestState::Over => false,
            })
        };
        (0..self.nodes.len()).find(|index| {
            let node = &self.nodes[*index];
            node.mind.is_some() && !node.pods.is_empty() && !may_hold(*index) && !is_stored(*index)
        })
    }

    pub(super) fn is_possible(&self, deed: &Deed) -> bool {
        match deed {
            Deed::Heal(name) => self.pod_named(name).is_some_and(|pod| !pod.ready && !pod.terminating),
            Deed::Create(name, _) => self.pod_named(name).is_none(),
            Deed::Replace(name) | Deed::Lose(name) => self.pod_named(name).is_some(),
            Deed::MakeBudget(name, _) => !self.budgets.contains_key(&budget_key(name)),
            Deed::ChangeBudget(name, _)
            | Deed::Annotate(name, _)
            | Deed::DeleteBudget(name)
            | Deed::SettleAhead(name, _) => self.budgets.contains_key(&budget_key(name)),
            Deed::Rescale(_) => self.scale.is_some(),
            Deed::Start(node) | Deed::Join(node) => self.nodes[*node].mind.is_none(),
            Deed::Serve(node) => self.nodes[*node].mind.is_some() && !self.nodes[*node].serving,
            Deed::End(node) => {
                let asked = |journey: &Journey| journey.stage == RequestState::Asked(*node);
                self.nodes[*node].mind.is_some() && !self.requests.iter().any(asked)
            }
            Deed::Leader(node, leader) => self.nodes[*node].leader != *leader,
        }
    }

    /// Lets one thing happen.
    pub(crate) fn act(&mut self, action: &Action, scenario: &Scenario) {
        self.happen(action, scenario);
        for index in 0..self.nodes.len() {
            let mut shown = None;
            while let Some(version) = self.nodes[index].knows_next_budget() {
                self.nodes[index].budgets.change(VecDeque::pop_front);
                shown = Some(version);
            }
            if let Some(version) = shown {
                self.deliver(index, &News::BudgetsAt(version));
            }
        }
        self.keep_floors();
    }

    fn happen(&mut self, action: &Action, scenario: &Scenario) {
        match action {
            Action::Send(request, node) => self.send(*request, *node, scenario),
            Action::ShowPod(node) => {
                if let Some(news) = self.nodes[*node].pods.change(VecDeque::pop_front) {
                    self.deliver(*node, &news);
                }
            }
            Action::ShowBudget(node) => {
                if let Some(news) = self.nodes[*node].budgets.change(VecDeque::pop_front) {
                    self.deliver(*node, &news);
                }
            }
            Action::ShowSet(node) => {
                if let Some(news) = self.nodes[*node].sets.change(VecDeque::pop_front) {
                    self.deliver(*node, &news);
                }
            }
            Action::Perform(node, place) => {
                if let Wire::Sent(sent) = self.nodes[*node].calls[*place].clone() {
                    let reply = Wire::Answered(Part::new(self.perform(&sent)));
                    self.nodes[*node].calls.change(|calls| calls[*place] = reply);
                }
            }
            Action::Deliver(node, place) => {
                if let Wire::Answered(reply) = self.nodes[*node].calls.change(|calls| calls.remove(*place)) {
                    self.deliver(*node, &News::Reply(*place, reply));
                }
            }
            Action::Lose(node, place) => {
                self.mishaps.lost -= 1;
                self.nodes[*node].calls.change(|calls| calls.remove(*place));
                self.deliver(*node, &News::Reply(*place, Part::new(Reply::Lost)));
            }
            Action::Execute(request) => self.execute(*request, scenario),
            Action::Refuse(request) => {
                self.mishaps.refusals -= 1;
                self.over(*request);
            }
            Action::Finish(uid) => {
                let name = self.pods.get(uid).map(|pod| pod.key.name.clone());
                self.remove_pod(uid);
                if let (Some(name), true) = (name, scenario.then == Then::ComesBack) {
                    self.create_pod(&name, format!("{uid}'").into(), Phase::Running, true);
                }
            }
            Action::Restart(uid) => {
                self.change_pod(uid, |pod| {
                    for container in &mut pod.containers {
                        container.image = shown_image(container);
                        container.id += 1;
                    }
                });
            }
            Action::Unready(uid) => self.change_pod(uid, |pod| pod.ready = false),
            Action::Reopen(uid) => self.change_pod(uid, |pod| {
                pod.announced = false;
                pod.ready = true;
            }),
            Action::Do(deed) => {
                self.store.change(|store| store.remove(deed));
                self.do_deed(*deed, scenario);
            }
            Action::Crash(node) => {
                self.mishaps.crashes -= 1;
                self.crash(*node);
            }
            Action::Relist(node) => {
                self.mishaps.relists -= 1;
                self.nodes[*node].pods = Part::new(VecDeque::new());
                let pods = self.pods.values().cloned().collect();
                self.deliver(*node, &News::Pods(pods, self.counts.pods()));
            }
            Action::Timeout(request) => {
                if matches!(self.requests[*request].stage, RequestState::Asked(node) if self.nodes[node].mind.is_some())
                {
                    self.mishaps.timeouts -= 1;
                }
                self.over(*request);
            }
            Action::Tick(node) => self.deliver(*node, &News::Tick),
            Action::TimePasses => self.pass_time(),
        }
    }

    pub(super) fn send(&mut self, request: usize, node: usize, scenario: &Scenario) {
        let journey = &self.requests[request];
        // A delete or an update carries the very object; an eviction knows a name.
        let object = self.pod_named(&journey.pod).map(|pod| Pod::clone(pod));
        if object.is_none() && journey.operation != Operation::Evict {
            self.over(request);
            return;
        }
        let target = match (journey.operation, &object, journey.change) {
            (Operation::Update, Some(pod), Change::Image(image)) => Target {
                base: Some(pod.version),
                containers: [ContainerChange {
                    name: "main".into(),
                    replaces: Some(pod.containers[0].id),
                    image: Some(image),
                    resources: None,
                }]
                .into(),
                ..Target::default()
            },
            (Operation::Update, Some(pod), Change::Gate) => {
                Target { base: Some(pod.version), ..Target::default() }
            }
            (Operation::Relabel, Some(pod), _) => Target { base: Some(pod.version), ..Target::default() },
            _ => Target::default(),
        };
        let placement = match (journey.operation, &object, journey.change) {
            (Operation::Relabel, Some(pod), Change::Label(key, value)) => {
                Some(Box::new(Placement { labels: relabelled(&pod.labels, key, value), ..pod.into() }))
            }
            _ => None,
        };
        let evicts = journey.operation == Operation::Evict;
        let precondition = object.as_ref().filter(|_| evicts && scenario.insists).map(|pod| pod.uid.clone());
        let object = object.filter(|_| !evicts);
        let meant = object.as_ref().map(|object| object.uid.clone()).or(precondition.clone());
        let base = object.as_ref().map(|object| object.version);
        if let Some(pod) = object.as_ref().filter(|_| !journey.operation.removes()) {
            // Nothing changes, so no webhook is called.
            if journey.change.is_done(pod) {
                self.over(request);
                return;
            }
            if journey.change == Change::Gate
                && scenario.without.contains(&ProtocolRule::AnnouncementsDecided)
            {
                let uid = pod.uid.clone();
                self.change_pod(&uid, |pod| pod.announced = true);
                self.over(request);
                return;
            }
        }
        let asked = Request {
            operation: journey.operation,
            pod: ObjectKey::new(NAMESPACE, journey.pod.clone()),
            object: object.as_ref().map(Into::into),
            precondition,
            caller: Caller::named("alice"),
            dry_run: false,
            target,
            placement,
        };
        self.request(request, |journey| {
            journey.stage = RequestState::Asked(node);
            journey.meant = meant;
            journey.base = base;
        });
        self.note_sent(request);
        let deadline = self.clock.after(DEADLINE);
        self.deliver(node, &News::Request(request as u64, Part::new(asked), deadline));
    }

    fn do_deed(&mut self, deed: usize, scenario: &Scenario) {
        match &scenario.deeds[deed] {
            Deed::Heal(name) => {
                if let Some(uid) = self.pod_named(name).map(|pod| pod.uid.clone()) {
                    self.change_pod(&uid, |pod| {
                        pod.ready = true;
                        pod.phase = Phase::Running;
                    });
                }
            }
            Deed::Create(name, ready) => {
                self.create_pod(name, Uid::from(*name), Phase::Running, *ready);
            }
            Deed::Replace(name) => {
                if let Some(uid) = self.pod_named(name).map(|pod| pod.uid.clone()) {
                    self.remove_pod(&uid);
                    self.create_pod(name, format!("{uid}'").into(), Phase::Running, true);
                }
            }
            Deed::Lose(name) => {
                if let Some(uid) = self.pod_named(name).map(|pod| pod.uid.clone()) {
                    self.remove_pod(&uid);
                    self.note_lost();
                }
            }
            Deed::MakeBudget(name, rules) => {
                let budget = self.new_budget(name, format!("{name}.{deed}").into(), rules.clone());
                self.put_budget(budget);
            }
            Deed::ChangeBudget(name, rules) => {
                let Some(stored) = self.budgets.get(&budget_key(name)) else { return };
                let mut budget = Budget::clone(stored);
                let before =
                    budget.spec.as_ref().map(|rules| quorate_engine::Coverage::of(&budget.uid, rules));
                budget.generation += 1;
                if before != Ok(quorate_engine::Coverage::of(&budget.uid, rules)) {
                    self.steady.change(|steady| steady.insert(budget.key.clone(), budget.generation));
                }
                budget.spec = Ok(rules.clone());
                budget.version = self.counts.next_budget();
                self.put_budget(budget);
                self.note_change(&budget_key(name));
            }
            Deed::Annotate(name, rules) => {
                let Some(stored) = self.budgets.get(&budget_key(name)) else { return };
                let mut budget = Budget::clone(stored);
                self.annotated = self.annotated.map(|changes| changes + 1);
                budget.annotations = annotated(rules);
                budget.spec = Ok(rules.clone());
                budget.version = self.counts.next_budget();
                self.put_budget(budget);
                self.note_change(&budget_key(name));
            }
            Deed::DeleteBudget(name) => self.remove_budget(&budget_key(name)),
            Deed::Rescale(replicas) => self.rescale(*replicas),
            Deed::Start(node) => self.start(*node, scenario),
            Deed::Join(node) => self.join(*node, scenario),
            Deed::Serve(node) => self.serve(*node, scenario),
            Deed::End(node) => self.end(*node),
            Deed::Leader(node, leader) => {
                self.nodes[*node].leader = *leader;
                self.deliver(*node, &News::Leader(*leader));
            }
            Deed::SettleAhead(name, ahead) => {
                let Some(stored) = self.budgets.get(&budget_key(name)) else { return };
                let mut budget = Budget::clone(stored);
                budget.ledger.settled = Version(self.counts.pods().0 + ahead);
                budget.version = self.counts.next_budget();
                self.put_budget(budget);
            }
        }
    }

    fn crash(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let name = node.process();
        node.mind = None;
        // What was sent and performed stays; what was not is as if it had never been sent.
        node.cut_off();
        let clock = self.clock;
        self.leases.change(|leases| {
            if let Some(lease) = leases.get_mut(&name) {
                lease.vanished = Some(clock);
            }
        });
    }

    /// Enough time for every bound of the protocol to pass.
    fn pass_time(&mut self) {
        self.mishaps.time -= 1;
        self.clock = self.clock.after(A_WHILE);
        let clock = self.clock;
        self.leases.change(|leases| {
            leases.retain(|_, lease| lease.vanished.is_none_or(|at| clock < at.after(2 * A_WHILE)));
        });
        self.requests.change(|requests| {
            for journey in requests {
                journey.aged = matches!(journey.stage, RequestState::Asked(_) | RequestState::Admitted(_));
            }
        });
        self.age_scale();
        for index in 0..self.nodes.len() {
            // A watch that has nothing to show says how far it has come.
            if self.nodes[index].pods.is_empty() {
                self.deliver(index, &News::PodsAt(self.counts.pods()));
            }
            self.deliver(index, &News::Tick);
        }
    }

    /// Lets everything that is under way end, and then enough time pass, several times. The leader has then had every
    /// chance to clean up.
    pub(crate) fn run_out(&mut self, scenario: &Scenario) {
        for _ in 0..5 {
            self.mishaps = Mishaps { time: 1, ..Mishaps::default() };
            self.pass_time();
            while let Some(action) = self.actions(scenario).into_iter().find(|action| {
                matches!(
                    action,
                    Action::ShowPod(_)
                        | Action::ShowBudget(_)
                        | Action::ShowSet(_)
                        | Action::Perform(..)
                        | Action::Deliver(..)
                )
            }) {
                self.act(&action, scenario);
            }
        }
    }

    /// What an action is, for a reader.
    pub(crate) fn describe(&self, action: &Action) -> String {
        let what = match action {
            Action::Perform(node, place) | Action::Deliver(node, place) | Action::Lose(node, place) => {
                match &self.nodes[*node].calls[*place] {
                    Wire::Sent(sent) => short(&sent.call),
                    Wire::Answered(reply) => match &**reply {
                        Reply::Written(WriteOutcome::Done(budget)) => {
                            format!("wrote {}", short_budget(budget))
                        }
                        Reply::Budget(Some(budget)) => short_budget(budget),
                        Reply::Pods(_, version) => format!("pods at {}", version.0),
                        other => format!("{other:?}"),
                    },
                }
            }
            Action::Do(_) | Action::Send(..) | Action::TimePasses => {
                let stages: Vec<_> = self.requests.iter().map(|journey| &journey.stage).collect();
                format!("with {stages:?}")
            }
            _ => String::new(),
        };
        format!("  {action:?} {what}")
    }

    /// Nothing is under way anywhere.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_quiet = |node: &Node| {
            node.pods.is_empty() && node.budgets.is_empty() && node.sets.is_empty() && node.calls.is_empty()
        };
        self.nodes.iter().all(is_quiet)
            && self.requests.iter().all(|journey| journey.stage == RequestState::Over)
            && self
                .pods
                .values()
                .all(|pod| !pod.announced && pod.containers.iter().all(|c| c.image == shown_image(c)))
    }
}

impl Change {
    fn is_done(self, pod: &Pod) -> bool {
        match self {
            Self::Image(image) => pod.containers[0].spec_image == image,
            Self::Gate => pod.announced,
            Self::Label(key, value) => pod.labels.get(key) == Some(value),
        }
    }
}

fn short(call: &Call) -> String {
    match call {
        Call::Patch(patch) => format!("write {}: {:?}", patch.budget.object.name, patch.steps),
        other => format!("{other:?}"),
    }
}

fn short_budget(budget: &Budget) -> String {
    let held: Vec<_> = budget.ledger.claims.iter().map(|(uid, claim)| (uid, claim.tokens.keys())).collect();
    let Ledger { number, settled, enforced, .. } = &budget.ledger;
    format!(
        "{} at {}: number {number}, settled {}, {held:?}, open {}",
        budget.uid,
        budget.version.0,
        settled.0,
        enforced.is_some()
    )
}
