//! Pods and budgets that come, change and go, and what goes wrong.

use quorate_engine::basics::{Uid, Version};
use quorate_engine::claims::Ledger;
use quorate_engine::facts::{Budget, Operation, Phase, Pod};
use rand::Rng;

use super::cluster::{Cluster, Happening, Turn, budget_key};
use super::plan::Plan;
use super::replicas::Node;
use super::requests::RequestState;
use super::truth::Account;

impl Cluster {
    /// The first pods, budgets and processes.
    pub(crate) fn populate(&mut self) {
        for app in self.plan.apps.clone() {
            for place in 0..app.pods {
                let version = self.next_revision();
                let mut pod = app.pod(place, &format!("{}-{place}", app.name), version);
                (pod.phase, pod.ready) = (Phase::Running, true);
                self.create_pod(pod);
            }
        }
        for _ in 0..self.plan.replicas {
            let skew = self.rng.random_range(-30_000..30_000);
            self.nodes.push(Node::new(skew));
        }
        for node in 0..self.plan.replicas {
            self.start(node);
        }
        for slot in 0..self.plan.slots {
            self.plan_in(1..30_000, Happening::MakeBudget(slot));
        }
        self.plan_in(1..10, Happening::Audit);
        self.plan_in(2_000..3_000, Happening::SendRequests);
        self.plan_in(5_000..6_000, Happening::Trouble);
    }

    /// A pod is deleted.
    pub(crate) fn terminate(&mut self, uid: &Uid, cause: Option<Operation>) {
        if self.pods.get(uid).is_none_or(|pod| pod.terminating) {
            return;
        }
        self.change_pod(uid, cause, |pod| pod.terminating = true);
        let slow = self.chance(50);
        self.plan_in(if slow { 5_000..60_000 } else { 50..2_000 }, Happening::Pod(uid.clone(), Turn::Gone));
        if self.chance(300) {
            self.plan_in(1..2_000, Happening::Pod(uid.clone(), Turn::Obey));
        }
    }

    /// A pod gets another image. Its kubelet restarts it later.
    pub(crate) fn update(&mut self, uid: &Uid, image: u64) {
        self.change_pod(uid, Some(Operation::Update), |pod| pod.containers[0].spec_image = image);
        self.plan_in(50..8_000, Happening::Pod(uid.clone(), Turn::Restart));
    }

    pub(crate) fn turn(&mut self, uid: &Uid, turn: Turn) {
        match turn {
            Turn::Ready => {
                self.tallies.count("pod healed");
                self.change_pod(uid, None, |pod| {
                    if !pod.phase.is_terminal() {
                        (pod.phase, pod.ready) = (Phase::Running, true);
                    }
                });
            }
            Turn::Restart => {
                let id = self.revision + 1;
                self.change_pod(uid, None, |pod| {
                    let container = &mut pod.containers[0];
                    if container.image != container.spec_image {
                        (container.image, container.id) = (container.spec_image, id);
                    }
                });
            }
            Turn::Collected => self.terminate(uid, None),
            // Its containers end without an error, because of the signal: that looks like success.
            Turn::Obey => {
                if self.pods.get(uid).is_some_and(|pod| !pod.phase.is_terminal()) {
                    self.tallies.count("pod obeyed");
                    self.change_pod(uid, None, |pod| (pod.phase, pod.ready) = (Phase::Succeeded, false));
                }
            }
            Turn::Gone => {
                let Some(pod) = self.pods.get(uid).cloned() else { return };
                self.remove_pod(uid);
                let app = pod.labels.get("app").and_then(|app| app[1..].parse().ok()).unwrap_or(0);
                self.plan_in(1..1_000, Happening::Replace(app, Box::new(pod)));
            }
        }
    }

    /// A workload makes a pod for the place of one that is gone.
    pub(crate) fn replace(&mut self, app: usize, old: Pod) {
        let version = self.next_revision();
        let name = match self.plan.apps[app].keeps_names {
            true => old.key.name.to_string(),
            false => format!("a{app}-x{}", version.0),
        };
        let mut pod = self.plan.apps[app].pod(0, &name, version);
        (pod.labels, pod.link) = (old.labels, old.link);
        let uid = pod.uid.clone();
        self.create_pod(pod);
        let slow = self.chance(50);
        self.plan_in(if slow { 5_000..30_000 } else { 50..2_000 }, Happening::Pod(uid, Turn::Ready));
    }

    /// Something happens without a request.
    pub(crate) fn trouble(&mut self) {
        if self.calm {
            return;
        }
        self.plan_in(50..500, Happening::Trouble);
        let some_pod = self.pick(self.pods.len());
        let Some(uid) = self.pods.keys().nth(some_pod).cloned() else { return };
        let running = self.running();
        match self.rng.random_range(0..100) {
            0..40 => self.break_pod(&uid),
            40..46 => self.finish_pod(&uid),
            46..50 if running.len() > 1 => {
                let node = running[self.pick(running.len())].node;
                if self.chance(30) {
                    self.crash(node);
                }
            }
            50..54 if !running.is_empty() => {
                let node = running[self.pick(running.len())].node;
                if self.chance(30) && !self.nodes[node].cut_off {
                    self.cut_off(node);
                }
            }
            54..62 if !running.is_empty() => {
                let node = running[self.pick(running.len())].node;
                let of_pods = self.chance(600);
                if !self.nodes[node].cut_off {
                    self.cut_watch(node, of_pods);
                }
            }
            62..65 => self.pass_lease(),
            65..85 => self.trouble_with_budgets(),
            _ => {}
        }
    }

    fn break_pod(&mut self, uid: &Uid) {
        if self.pods.get(uid).is_none_or(|pod| !pod.ready || pod.terminating) {
            return;
        }
        self.tallies.count("pod broke");
        self.change_pod(uid, None, |pod| pod.ready = false);
        let slow = self.chance(200);
        self.plan_in(if slow { 5_000..60_000 } else { 10..1_000 }, Happening::Pod(uid.clone(), Turn::Ready));
    }

    /// A pod comes to its end by itself, well or badly, and is collected later.
    fn finish_pod(&mut self, uid: &Uid) {
        let Some(pod) = self.pods.get(uid) else { return };
        let app = pod.labels.get("app").and_then(|app| app[1..].parse::<usize>().ok()).unwrap_or(0);
        if !self.plan.apps[app].finishes || pod.terminating || pod.phase != Phase::Running {
            return;
        }
        self.tallies.count("pod finished");
        let phase = if self.chance(500) { Phase::Succeeded } else { Phase::Failed };
        self.change_pod(uid, None, |pod| (pod.phase, pod.ready) = (phase, false));
        self.plan_in(1_000..30_000, Happening::Pod(uid.clone(), Turn::Collected));
    }

    fn trouble_with_budgets(&mut self) {
        let slot = self.pick(self.plan.slots);
        let key = budget_key(slot);
        let Some(budget) = self.budgets.get(&key).cloned() else { return };
        let Ok(rules) = budget.spec.clone() else { return };
        let changed = match self.rng.random_range(0..60) {
            0 => {
                self.tallies.count("budget deleted");
                self.log(|| format!("{key} is deleted"));
                self.remove_budget(&key);
                self.plan_in(1..5_000, Happening::MakeBudget(slot));
                return;
            }
            1 => {
                self.tallies.count("budget rewritten");
                self.plan.rules(&mut self.rng)
            }
            2..8 => {
                self.tallies.count("budget tightened");
                Plan::nudge(&rules, true)
            }
            8..14 => {
                self.tallies.count("budget widened");
                Plan::nudge(&rules, false)
            }
            _ => return,
        };
        self.log(|| format!("{key} becomes {changed:?}"));
        let version = self.next_revision();
        self.put_budget(Budget { spec: Ok(changed), generation: budget.generation + 1, version, ..budget });
    }

    pub(crate) fn make_budget(&mut self, slot: usize) {
        if self.budgets.contains_key(&budget_key(slot)) {
            return;
        }
        self.tallies.count("budget made");
        let rules = self.plan.rules(&mut self.rng);
        let version = self.next_revision();
        self.log(|| format!("b{slot} is made: {rules:?}"));
        self.put_budget(Budget {
            key: budget_key(slot),
            uid: format!("b{slot}@{}", version.0).into(),
            generation: 1,
            version,
            spec: Ok(rules),
            ledger: Ledger::default(),
            gone: Box::default(),
            annotations: Default::default(),
            is_twin: false,
            memory: quorate_engine::facts::Memory::default(),
        });
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
        for process in self.running() {
            self.reconnect(process);
        }
        let unready: Vec<Uid> =
            self.pods.values().filter(|pod| !pod.ready).map(|pod| pod.uid.clone()).collect();
        for uid in unready {
            self.plan_in(1..1_000, Happening::Pod(uid, Turn::Ready));
        }
    }

    /// After everything has come to rest: nothing is left over, every budget is open and counted rightly by everybody,
    /// and what there is room for may go.
    pub(crate) fn check_rest(&mut self) {
        for budget in self.budgets.values() {
            if !budget.ledger.claims.is_empty() {
                let left = format!("{} still has the claims {:?}", budget.key, budget.ledger.claims);
                return self.fail(left);
            }
            if !super::truth::is_open(budget) {
                let closed = format!("{} never opened", budget.key);
                return self.fail(closed);
            }
        }
        self.check_counts();
        self.check_room();
    }

    fn check_counts(&mut self) {
        for process in self.running() {
            let clock = self.clock(process.node);
            for (key, account) in &self.truth.accounts {
                let Some(replica) = &mut self.nodes[process.node].replica else { continue };
                let Some(status) = replica.status(key, clock) else {
                    self.failure.get_or_insert(format!("{process:?} does not know {key}"));
                    continue;
                };
                let (seen, there) = (status.units.current, account.healthy().units);
                if seen != there {
                    self.failure.get_or_insert(format!("{process:?} counts {seen} in {key}, not {there}"));
                }
            }
        }
    }

    /// Every pod is asked for once, by a dry run: the answer is the same, and nothing changes.
    fn check_room(&mut self) {
        let running = self.running();
        let pods: Vec<Pod> = self.pods.values().cloned().collect();
        for (at, pod) in pods.iter().enumerate() {
            let asked = |account: &&Account| {
                account.rules.operations.contains(Operation::Evict) && !account.rules.observe
            };
            let accounts = self.truth.accounts.values().filter(asked);
            let may = accounts.filter_map(|account| account.lets_go(&pod.uid)).all(|may| may);
            let process = running[at % running.len()];
            let id = self.send_request(process, pod, Operation::Evict, true);
            self.until_answered(id);
            let allowed = match self.requests.remove(&id).map(|journey| journey.stage) {
                Some(RequestState::Over(allowed)) => allowed,
                other => return self.fail(format!("{id} was not answered: {other:?}")),
            };
            if self.failure.is_none() && allowed != may {
                let version = Version(self.revision);
                return self
                    .fail(format!("evict {} at {version:?}: {allowed}, and should be {may}", pod.uid));
            }
        }
    }
}
