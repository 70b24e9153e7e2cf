//! What the API server stores, shows to watches, and does with calls.

use std::time::Duration;

use quorate_engine::basics::{ObjectKey, Uid, Version};
use quorate_engine::facts::{Budget, BudgetKey, Covers, Input, Operation, Pod, Rules};
use quorate_engine::ledger::{Call, CallId, LedgerPatch, PodRead, Reply, WriteOutcome};
use quorate_engine::selector::Selector;

use super::cluster::{Cluster, Happening, Process};
use super::truth::{Deed, is_open};

/// A call arrives within this time, or never.
pub(crate) const ARRIVES: Duration = Duration::from_secs(15);

/// A call on its way to the API server.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    call: Call,
    /// How far the sender's pod watch had come.
    seen: Version,
    /// The selector that the sender knew.
    selector: Option<Selector>,
    /// No caller waits for the answer any more.
    given_up: bool,
}

impl Cluster {
    pub(crate) fn create_pod(&mut self, pod: Pod) {
        self.truth.pod_made(&pod);
        self.by_name.insert(pod.key.name.clone(), pod.uid.clone());
        self.show_pod(pod.version, &Input::Pod(pod.clone()));
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Changes a pod, by itself or because of something that was admitted.
    pub(crate) fn change_pod(&mut self, uid: &Uid, cause: Option<Operation>, change: impl FnOnce(&mut Pod)) {
        let Some(old) = self.pods.get(uid).cloned() else { return };
        let mut pod = old.clone();
        change(&mut pod);
        if pod == old {
            return;
        }
        pod.version = self.next_revision();
        self.log(|| {
            format!("pod {uid}: ready {} terminating {} {:?}", pod.ready, pod.terminating, pod.phase)
        });
        self.truth.pod_changed(&old, &pod, cause);
        self.show_pod(pod.version, &Input::Pod(pod.clone()));
        self.pods.insert(uid.clone(), pod);
    }

    pub(crate) fn remove_pod(&mut self, uid: &Uid) {
        let Some(pod) = self.pods.remove(uid) else { return };
        let version = self.next_revision();
        self.log(|| format!("pod {uid} is gone"));
        self.by_name.remove(&pod.key.name);
        self.truth.pod_gone(uid, version);
        self.show_pod(version, &Input::PodGone(uid.clone(), version));
    }

    /// Stores a budget that a user wrote.
    pub(crate) fn put_budget(&mut self, budget: Budget) {
        self.truth.budget_written(&budget, &self.plan, self.pods.values());
        self.show_budget(budget.version, &Input::Budget(budget.clone()));
        self.budgets.insert(budget.key.clone(), budget);
    }

    pub(crate) fn remove_budget(&mut self, key: &BudgetKey) {
        if self.budgets.remove(key).is_some() {
            let version = self.next_revision();
            self.truth.budget_gone(key);
            self.show_budget(version, &Input::BudgetGone(key.clone()));
        }
    }

    /// Sends a call on its way.
    pub(crate) fn send(&mut self, process: Process, id: CallId, call: Call) {
        self.log(|| format!("{process:?} sends {id}: {call:?}"));
        let node = &self.nodes[process.node];
        let known = |key: &BudgetKey| node.replica.as_ref().and_then(|replica| replica.engine().budget(key));
        let selector = match &call {
            Call::ListPods(key) => known(key).and_then(|budget| match &budget.spec {
                Ok(Rules { covers: Covers::Selector(selector), .. }) => Some(selector.clone()),
                _ => None,
            }),
            _ => None,
        };
        let sent = Sent { call, seen: node.seen, selector, given_up: false };
        self.nodes[process.node].calls.insert((process.life, id), sent);
        let troubled = !self.calm;
        if troubled && (self.nodes[process.node].cut_off || self.chance(4)) {
            // No answer in time. Whether the call arrives, and when, is not known.
            self.plan_in(1_000..5_000, Happening::Reply(process, id, Box::new(Reply::Lost)));
            if self.chance(500) {
                self.plan_in(1..ARRIVES.as_millis() as u64, Happening::Perform(process, id));
            }
        } else if troubled && self.chance(5) {
            self.plan_in(1..10, Happening::Reply(process, id, Box::new(Reply::Lost)));
        } else {
            let slow = troubled && self.chance(10);
            let delay = if slow { 100..4_000 } else { 1..10 };
            self.plan_in(delay, Happening::Perform(process, id));
        }
    }

    /// A call has arrived.
    pub(crate) fn perform(&mut self, process: Process, id: CallId) {
        // What a process sent before it died is carried out all the same.
        let dead = !self.is_alive(process);
        let key = (process.life, id);
        let Some(sent) = self.nodes[process.node].calls.get(&key).cloned() else { return };
        if sent.given_up && matches!(sent.call, Call::Patch(_)) {
            self.tallies.count("late write");
        }
        let reply = match &sent.call {
            Call::Patch(patch) => Reply::Written(self.patch(process, patch, sent.seen)),
            Call::GetBudget(key) => Reply::Budget(self.budgets.get(key).cloned().map(Box::new)),
            Call::GetPod(key) => Reply::Pod(self.read_pod(key)),
            Call::ListPods(_) => {
                let listed = |pod: &&Pod| sent.selector.as_ref().is_some_and(|s| s.matches(&pod.labels));
                let pods = self.pods.values().filter(listed).cloned().collect();
                Reply::Pods(pods, Version(self.revision))
            }
            Call::GetController(..) => unreachable!("no budget here names a workload"),
            Call::PodsVersion => Reply::PodsVersion(Version(self.revision)),
            Call::ListReplicas => Reply::Replicas(self.members()),
        };
        if sent.given_up || dead {
            self.nodes[process.node].calls.remove(&key);
            return;
        }
        if !self.calm && self.chance(8) {
            self.tallies.count("lost reply");
            self.plan_in(1_000..5_000, Happening::Reply(process, id, Box::new(Reply::Lost)));
        } else {
            self.plan_in(1..10, Happening::Reply(process, id, Box::new(reply)));
        }
    }

    /// A call has come back. One that is lost may yet arrive.
    pub(crate) fn reply(&mut self, process: Process, id: CallId, reply: Reply) {
        if !self.is_alive(process) {
            return;
        }
        if reply == Reply::Lost {
            if let Some(sent) = self.nodes[process.node].calls.get_mut(&(process.life, id)) {
                sent.given_up = true;
            }
        } else {
            self.nodes[process.node].calls.remove(&(process.life, id));
        }
        self.step(process, quorate_engine::ledger::Event::Reply(id, reply));
    }

    fn read_pod(&self, key: &ObjectKey) -> PodRead {
        match self.by_name.get(&key.name).and_then(|uid| self.pods.get(uid)) {
            Some(pod) => PodRead::There(Box::new(pod.clone())),
            None => PodRead::Gone,
        }
    }

    fn patch(&mut self, process: Process, patch: &LedgerPatch, seen: Version) -> WriteOutcome {
        let Some(mut budget) = self.budgets.get(&patch.budget).cloned() else { return WriteOutcome::Gone };
        let was_open = is_open(&budget);
        let before = budget.ledger.clone();
        if !patch.apply(&mut budget) {
            self.tallies.count("write refused");
            return WriteOutcome::Refused;
        }
        budget.version = self.next_revision();
        if !was_open && is_open(&budget) {
            self.tallies.count("budget opened");
        }
        let mut pods = Vec::new();
        for (uid, claim) in &budget.ledger.claims {
            let old = before.claims.get(uid).map(|claim| &claim.tokens);
            for (token, what) in &claim.tokens {
                if old.is_none_or(|old| !old.contains_key(token)) {
                    pods.push((uid.clone(), what.operation, asked_at(&what.by)));
                    self.note_token(&budget.uid, token, what);
                }
            }
        }
        let name = Self::process_name(process.node, process.life);
        let free = !pods.is_empty();
        let deed = Deed { process: &name, seen, pods };
        self.log(|| format!("{name} wrote {} {:?}", budget.key, deed.pods));
        match self.truth.ledger_written(&budget, &self.pods, &deed) {
            Ok(true) => self.tallies.count("charged"),
            Ok(false) if free => self.tallies.count("free pass"),
            Ok(false) => {}
            Err(why) => {
                self.report_difference(process, &budget);
                self.fail(why);
            }
        }
        self.show_budget(budget.version, &Input::Budget(budget.clone()));
        self.budgets.insert(budget.key.clone(), budget.clone());
        WriteOutcome::Done(Box::new(budget))
    }
}

impl Cluster {
    /// Reports which pods a process counts otherwise than they are, once something went wrong.
    fn report_difference(&mut self, process: Process, budget: &Budget) {
        let Some(account) = self.truth.accounts.get(&budget.key) else { return };
        let counting = account.counting();
        let Some(replica) = self.nodes[process.node].replica.as_ref() else { return };
        let held =
            |uid: &Uid| replica.engine().budget(&budget.key).is_some_and(|known| known.ledger.holds(uid));
        let seen: std::collections::BTreeSet<Uid> = replica
            .engine()
            .covered(&budget.key)
            .into_iter()
            .filter(|pod| pod.ready && !pod.terminating && !pod.phase.is_terminal() && !held(&pod.uid))
            .map(|pod| pod.uid.clone())
            .collect();
        let different: Vec<Uid> = counting.symmetric_difference(&seen).cloned().collect();
        let lines: Vec<String> = different
            .iter()
            .map(|uid| format!("  {uid}: seen {} there {:?}", seen.contains(uid), self.pods.get(uid)))
            .collect();
        let rules = format!("{:?}", budget.spec);
        self.log(|| format!("{process:?} sees otherwise in {rules}:\n{}", lines.join("\n")));
    }
}

/// The revision at which a request was made; its caller's name tells.
fn asked_at(user: &str) -> Version {
    Version(user.rsplit_once('@').and_then(|(_, at)| at.parse().ok()).unwrap_or(0))
}
