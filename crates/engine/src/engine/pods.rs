//! Pods: taking them in, seating them in the budgets that cover them, and judging their health.

use rustc_hash::FxHashSet;
use slab::Slab;
use smallvec::SmallVec;

use crate::basics::{Text, Time, Uid, Version};
use crate::claims::Ledger;
use crate::cluster_state::ClusterState;
use crate::decision::Unhealthy;
use crate::engine::pod_list::{self, ListPositions};
use crate::engine::{BudgetRecord, Changes, ControllerPods, Engine, Membership, NamespaceIndex, PodRecord};
use crate::facts::{BudgetKey, Covers, HealthRule, Phase, Pod};
use crate::selector::Budgets;
use crate::tally::{PodCounts, UnitSlot};
use crate::units::{self, UnitKey};

impl Engine {
    /// Takes in a pod that was like this, and there, at that version.
    pub(super) fn set_pod(&mut self, mut pod: Pod, as_of: Version) {
        let known = self.pod_id(&pod.uid);
        if ends_as_told(&pod, known.map(|id| &self.pods[id as usize].fact)) {
            pod.phase = Phase::Failed;
        }
        let id = match known {
            Some(id) if pod.version <= self.pods[id as usize].fact.version => return,
            Some(id) => self.change_pod(id, pod),
            None => self.add_pod(pod),
        };
        self.recall_pod_lists(id, as_of);
    }

    /// Replaces what is known of a pod.
    fn change_pod(&mut self, id: u32, pod: Pod) -> u32 {
        let record = &mut self.pods[id as usize];
        let known = &record.fact;
        let same_labels = known.labels == pod.labels;
        // What a list did not show was gone by then, whatever it went through before; unless it left the budget.
        let missed = self.absences.get(&pod.uid).copied();
        let still_missed = missed.filter(|missed| same_labels && pod.version <= *missed);
        let same_place = same_labels
            && known.key == pod.key
            && known.owners == pod.owners
            && known.link == pod.link
            && known.group_size == pod.group_size
            && (known.node == pod.node || (known.probe.is_none() && pod.probe.is_none()))
            && known.probe.is_some() == pod.probe.is_some();
        if same_place {
            // Texts are shared already where they did not change.
            let old = std::mem::replace(&mut record.fact, pod);
            record.fact.key = old.key;
            record.fact.labels = old.labels;
            record.fact.owners = old.owners;
            record.fact.uid = old.uid;
            if record.fact.node == old.node {
                record.fact.node = old.node;
            }
            if record.fact.containers == old.containers {
                record.fact.containers = old.containers;
            }
            if record.absent && still_missed.is_none() {
                self.end_absence(id);
            }
            self.refresh_pod(id);
            return id;
        }
        self.remove_pod(&pod.uid);
        let id = self.add_pod(pod);
        if let Some(missed) = still_missed {
            self.begin_absence(id, missed);
        }
        id
    }

    /// A watch that lags may show a pod for the first time which a newer list of its budget's pods did not show: it was
    /// gone by then.
    fn recall_pod_lists(&mut self, id: u32, as_of: Version) {
        if self.pod_lists.is_empty() {
            return;
        }
        let record = &self.pods[id as usize];
        let pod_lists = record.members.iter().filter_map(|member| {
            let budget = &self.budgets[member.budget as usize];
            let (coverage, version) = *self.pod_lists.get(&budget.fact.key)?;
            (coverage == budget.coverage).then_some(version)
        });
        let missed = pod_lists.filter(|version| *version > as_of).max();
        if let Some(missed) = missed.max(self.absences.get(&record.fact.uid).copied()) {
            self.begin_absence(id, missed);
        }
    }

    /// A list did not show a pod that it should have shown.
    fn begin_absence(&mut self, id: u32, missed: Version) {
        let record = &mut self.pods[id as usize];
        record.absent = true;
        self.absences.insert(record.fact.uid.clone(), missed);
        self.refresh_pod(id);
    }

    fn end_absence(&mut self, id: u32) {
        let record = &mut self.pods[id as usize];
        record.absent = false;
        self.absences.remove(&record.fact.uid);
    }

    /// The watch has shown everything up to here. A pod that it still shows was not gone in a list that is older: that
    /// was a list of other pods, made before the budget came to cover this one.
    pub(super) fn pods_at(&mut self, version: Version) {
        self.pods_version = self.pods_version.max(version);
        let shown = self.pods_version;
        self.pod_lists.retain(|_, (_, looked)| *looked > shown);
        if self.absences.is_empty() {
            return;
        }
        let over: Vec<Uid> = self
            .absences
            .iter()
            .filter(|(_, missed)| **missed <= self.pods_version)
            .map(|(uid, _)| uid.clone())
            .collect();
        for id in over.iter().filter_map(|uid| self.pod_id(uid)).collect::<Vec<_>>() {
            self.end_absence(id);
            self.refresh_pod(id);
        }
    }

    fn add_pod(&mut self, mut pod: Pod) -> u32 {
        let group = pod.controller().and_then(|owner| self.by_controller.get_mut(&owner.uid));
        let known = self.pool.share_pod(&mut pod, group.as_deref().map(ControllerPods::owners));
        let mut positions = ListPositions::default();
        let id = self.pods.vacant_key() as u32;
        match group {
            Some(group) => group.enter(id, &mut positions),
            None => {
                if let Some(controller) = pod.controller() {
                    self.by_controller
                        .insert(controller.uid.clone(), ControllerPods::of(&pod, id, &mut positions));
                }
            }
        }
        let index = NamespaceIndex::find(&mut self.namespaces, &pod.key.namespace);
        pod.key.namespace = index.name.clone();
        pod_list::enter(&mut index.pods, id, positions.in_namespace());
        let selected = known.by(index.edition).unwrap_or_else(|| {
            let found = selected_by(index, &self.budgets, &pod);
            known.keep(index.edition, &found);
            found
        });
        self.pods.insert(PodRecord { fact: pod, absent: false, positions, members: SmallVec::new() });
        self.index.insert(&self.pods, id);
        let fact = &self.pods[id as usize].fact;
        if let (Some(node), true) = (&fact.node, fact.probe.is_some()) {
            self.probed.entry(node.clone()).or_default().insert(id);
        }
        self.add_to_selected(id, selected);
        id
    }

    pub(super) fn remove_pod(&mut self, uid: &str) {
        let Some(id) = self.pod_id(uid) else { return };
        self.remove_from_budgets(id);
        self.index.remove(&self.pods, id);
        let fact = &self.pods[id as usize].fact;
        let controller = fact.controller().map(|owner| owner.uid.clone());
        if let Some(index) = self.namespaces.get_mut(&fact.key.namespace) {
            pod_list::strike(&mut index.pods, &mut self.pods, id, ListPositions::in_namespace);
        }
        if let Some(controller) = controller {
            pod_list::strike_from(&mut self.by_controller, &mut self.pods, &controller, id);
        }
        let record = self.pods.remove(id as usize);
        if record.absent {
            self.absences.remove(&record.fact.uid);
        }
        if let Some(node) = &record.fact.node
            && let Some(pods) = self.probed.get_mut(node)
        {
            pods.remove(&id);
            if pods.is_empty() {
                self.probed.remove(node);
            }
        }
    }

    /// Finds the budgets that cover a pod and gives it a seat in each.
    pub(super) fn add_to_budgets(&mut self, id: u32) {
        let fact = &self.pods[id as usize].fact;
        let Some(index) = self.namespaces.get(&fact.key.namespace) else { return };
        let selected = selected_by(index, &self.budgets, fact);
        self.add_to_selected(id, selected);
    }

    /// Gives a pod a seat in each of the budgets that select it, and in those that name its workload.
    fn add_to_selected(&mut self, id: u32, selected: Budgets) {
        let fact = &self.pods[id as usize].fact;
        let Some(index) = self.namespaces.get(&fact.key.namespace) else { return };
        let mut covering = selected;
        if !index.targets.is_empty() {
            for workload in self.cluster.workloads_of(fact) {
                covering.extend(index.targets.get(&workload).into_iter().flatten().copied());
            }
            covering.sort_unstable();
            covering.dedup();
        }
        for budget in covering {
            self.slot(id, budget);
        }
    }

    pub(super) fn slot(&mut self, id: u32, budget: u32) {
        let record = &self.pods[id as usize];
        let home = &mut self.budgets[budget as usize];
        let rules = &home.rules;
        let place = units::place(rules, &record.fact);
        let healthy = place != UnitKey::Ungrouped
            && healthy(record, rules.health, &home.fact.ledger, &self.cluster, self.now);
        let counts = PodCounts::of(&record.fact, healthy);
        let slot = home.tally.join(rules, (id, place), &record.fact, counts, &self.cluster);
        self.pods[id as usize].members.push(Membership { budget, slot, counts });
        self.touch(budget);
    }

    pub(super) fn remove_from_budgets(&mut self, id: u32) {
        let members = std::mem::take(&mut self.pods[id as usize].members);
        for member in members {
            self.leave(id, member);
        }
    }

    fn leave(&mut self, id: u32, member: Membership) {
        let home = &mut self.budgets[member.budget as usize];
        let fact = &self.pods[id as usize].fact;
        home.tally.leave(&home.rules, id, fact, (member.slot, member.counts), &self.cluster, self.now);
        self.touch(member.budget);
        self.set_gone_alarm(member.budget);
    }

    /// Looks at a pod's health again, in each of its budgets.
    pub(super) fn refresh_pod(&mut self, id: u32) {
        for at in 0..self.pods[id as usize].members.len() {
            self.refresh_member(id, at);
        }
    }

    pub(super) fn refresh_member(&mut self, id: u32, at: usize) {
        let record = &self.pods[id as usize];
        let member = record.members[at];
        let home = &mut self.budgets[member.budget as usize];
        let rules = &home.rules;
        let healthy = member.slot != UnitSlot::Ungrouped
            && healthy(record, rules.health, &home.fact.ledger, &self.cluster, self.now);
        let counts = PodCounts::of(&record.fact, healthy);
        if counts != member.counts {
            home.tally.change(rules, id, &record.fact, (member.slot, member.counts), counts, &self.cluster);
            self.pods[id as usize].members[at].counts = counts;
            self.touch(member.budget);
        }
    }

    pub(super) fn refresh_node(&mut self, node: &Text) {
        let pods: Vec<u32> = self.probed.get(node).into_iter().flatten().copied().collect();
        for id in pods {
            self.refresh_pod(id);
        }
    }

    /// Takes in a pod that was read by itself, or that a request carried: as new as it is, and no newer.
    pub fn learn(&mut self, pod: Pod, now: Time) -> Changes {
        self.pass_time(now);
        let version = pod.version;
        self.learn_pod(pod, version);
        self.changes()
    }

    /// A pod that the watch does not know although it has come this far is gone by now: a reply that was under way
    /// must not bring it back.
    fn learn_pod(&mut self, pod: Pod, version: Version) {
        if self.absences.get(&pod.uid).is_some_and(|missed| *missed < version)
            && let Some(id) = self.pod_id(&pod.uid)
        {
            self.end_absence(id);
            self.refresh_pod(id);
        }
        if self.pod_id(&pod.uid).is_some() || version > self.pods_version {
            self.set_pod(pod, version);
        }
    }

    /// Whether a pod would count for a budget if nothing held it.
    pub(crate) fn is_available(&self, uid: &str, key: &BudgetKey) -> bool {
        let (Some(pod), Some(budget)) = (self.pod_id(uid), self.budget_id(key)) else { return false };
        let health = self.budgets[budget as usize].rules.health;
        why_unavailable(&self.pods[pod as usize], health, &self.cluster, self.now).is_none()
    }

    /// How far the pod watch has come.
    pub fn pods_version(&self) -> Version {
        self.pods_version
    }

    /// Takes in one consistent list of the pods of a budget: what it should show and does not is out of the budget,
    /// gone or relabelled, until the watch tells which.
    pub fn apply_pod_list(
        &mut self,
        key: &BudgetKey,
        pods: Vec<Pod>,
        version: Version,
        now: Time,
    ) -> Changes {
        self.pass_time(now);
        let listed: FxHashSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
        let is_news = version > self.pods_version;
        let absent: Vec<Uid> = self
            .covered(key)
            .into_iter()
            .filter(|pod| is_news && !listed.contains(&pod.uid) && pod.version <= version)
            .map(|pod| pod.uid.clone())
            .collect();
        pods.into_iter().for_each(|pod| self.learn_pod(pod, version));
        for id in absent.iter().filter_map(|uid| self.pod_id(uid)).collect::<Vec<_>>() {
            self.begin_absence(id, version);
        }
        if let Some(budget) = self.budget_id(key).filter(|_| is_news) {
            let coverage = self.budgets[budget as usize].coverage;
            let before = self.pod_lists.get(key).filter(|look| look.0 == coverage).map(|look| look.1);
            self.pod_lists.insert(key.clone(), (coverage, version.max(before.unwrap_or(version))));
        }
        self.changes()
    }
}

/// Whether a pod ended well only because it was told to end: containers that obey leave with a good word. It has not done
/// its work, and its group is not complete. One that had ended before anybody took it away has.
fn ends_as_told(pod: &Pod, known: Option<&Pod>) -> bool {
    let had_ended = known.is_some_and(|known| known.phase == Phase::Succeeded);
    pod.phase == Phase::Succeeded && pod.terminating && !had_ended
}

/// The budgets of a namespace that select a pod.
fn selected_by(index: &NamespaceIndex, budgets: &Slab<BudgetRecord>, pod: &Pod) -> Budgets {
    let candidates = index.selectors.candidates(&pod.labels).into_iter();
    candidates
        .filter(|found| found.sure || covers_by_label(&budgets[found.id as usize], pod))
        .map(|found| found.id)
        .collect()
}

fn covers_by_label(record: &BudgetRecord, pod: &Pod) -> bool {
    match &record.rules.covers {
        Covers::Selector(selector) => selector.matches(&pod.labels),
        Covers::Target(..) => false,
    }
}

/// Whether a pod counts for a budget.
fn healthy(record: &PodRecord, rule: HealthRule, ledger: &Ledger, cluster: &ClusterState, now: Time) -> bool {
    !ledger.holds(&record.fact.uid) && why_unavailable(record, rule, cluster, now).is_none()
}

/// Why a pod would not count for any budget with this rule, claims apart.
pub(crate) fn why_unavailable(
    record: &PodRecord,
    rule: HealthRule,
    cluster: &ClusterState,
    now: Time,
) -> Option<Unhealthy> {
    let pod = &record.fact;
    if record.absent || pod.terminating {
        return Some(Unhealthy::Terminating);
    }
    if pod.phase.is_terminal() {
        return Some(Unhealthy::Ended);
    }
    if rule == HealthRule::Strict && (pod.phase != Phase::Running || !pod.consistent) {
        return Some(Unhealthy::Inconsistent);
    }
    match &pod.probe {
        Some(probe) if cluster.probes => cluster
            .doubt(pod, probe, now)
            .map(|_| if pod.ready { Unhealthy::NotDisruptable } else { Unhealthy::NotReady }),
        _ => (!pod.ready).then_some(Unhealthy::NotReady),
    }
}
