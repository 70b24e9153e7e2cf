//! Adds, changes and removes pods, assigns them to the budgets that cover them, and evaluates their health.

use rustc_hash::FxHashSet;
use slab::Slab;
use smallvec::SmallVec;

use crate::SafetyRule;
use crate::basics::{Text, Time, Uid, Version};
use crate::claims::Ledger;
use crate::cluster_state::ClusterState;
use crate::coverage::Coverage;
use crate::decision::Unhealthy;
use crate::engine::pod_list::{self, ListPositions};
use crate::engine::{BudgetRecord, Changes, ControllerPods, Engine, Membership, NamespaceIndex, PodRecord};
use crate::facts::{BudgetKey, Covers, HealthRule, Phase, Pod};
use crate::ledger::ProtocolRule;
use crate::selector::Budgets;
use crate::tally::{PodCounts, UnitSlot};
use crate::units::{self, UnitKey};

impl Engine {
    /// Stores a pod that existed in this state at the version `as_of`, as the watch shows it.
    pub(super) fn set_pod(&mut self, pod: Pod, as_of: Version) {
        self.store_pod(pod, as_of, false);
    }

    /// Stores a pod. `ahead`: the watch has not shown this state yet.
    fn store_pod(&mut self, mut pod: Pod, as_of: Version, ahead: bool) {
        let known = self.pod_id(&pod.uid);
        if succeeded_after_deletion(&pod, known.map(|id| &self.pods[id as usize].fact)) {
            pod.phase = Phase::Failed;
        }
        let id = match known {
            Some(id) if pod.version <= self.pods[id as usize].fact.version => return,
            Some(id) => self.change_pod(id, pod, ahead),
            None => {
                self.succeed(&pod);
                self.add_pod(pod, ahead)
            }
        };
        self.recall_reads(id, as_of);
    }

    /// A name has one pod at a time. A new pod that the watch has not shown yet proves that the one of before is gone, and they
    /// must not both count.
    fn succeed(&mut self, pod: &Pod) {
        let Some(before) = self.pod_id_by_name(&pod.key) else { return };
        if pod.version > self.pods_version && pod.version > self.pods[before as usize].fact.version {
            self.begin_absence(before, pod.version);
        }
    }

    /// Replaces the stored state of a pod.
    fn change_pod(&mut self, id: u32, pod: Pod, ahead: bool) -> u32 {
        self.set_ahead(id, ahead);
        let record = &mut self.pods[id as usize];
        let known = &record.fact;
        let same_labels = known.labels == pod.labels;
        // A pod that a list did not contain was gone at that version, whatever its older states show, unless it had
        // only left the budget.
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
            // Unchanged texts are already shared.
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
        let id = self.add_pod(pod, ahead);
        if let Some(missed) = still_missed {
            self.begin_absence(id, missed);
        }
        id
    }

    /// A lagging watch may show a pod for the first time that a newer list of its budget's pods did not contain, or whose
    /// name a newer pod had when that was read. Then the pod is already gone.
    fn recall_reads(&mut self, id: u32, as_of: Version) {
        let record = &self.pods[id as usize];
        let pod_lists = record.members.iter().filter_map(|member| {
            let budget = &self.budgets[member.budget as usize];
            let (coverage, version) = *self.pod_lists.get(&budget.fact.key)?;
            (coverage == budget.coverage).then_some(version)
        });
        let listed = pod_lists.filter(|version| *version > as_of).max();
        let successor = self.pod_id_by_name(&record.fact.key).filter(|newest| *newest != id);
        let succeeded = successor.map(|newest| self.pods[newest as usize].fact.version);
        let succeeded = succeeded.filter(|version| *version > as_of && *version > self.pods_version);
        let missed = listed.max(succeeded);
        if let Some(missed) = missed.max(self.absences.get(&record.fact.uid).copied()) {
            self.begin_absence(id, missed);
        }
    }

    /// Marks a pod as absent: a list that should contain it does not.
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

    /// The watch has delivered every event up to this version. A pod that it still shows was not gone in an older list:
    /// that list was made before the budget covered the pod.
    pub(super) fn pods_at(&mut self, version: Version) {
        self.pods_version = self.pods_version.max(version);
        let shown = self.pods_version;
        self.pod_lists.retain(|_, (_, looked)| *looked > shown);
        if !self.absences.is_empty() {
            let over = self.absences.iter().filter(|(_, missed)| **missed <= shown);
            let over: Vec<u32> = over.filter_map(|(uid, _)| self.pod_id(uid)).collect();
            for id in over {
                self.end_absence(id);
                self.refresh_pod(id);
            }
        }
        if !self.ahead.is_empty() {
            let reached = |id: &u32| self.pods[*id as usize].fact.version <= shown;
            let reached: Vec<u32> =
                self.ahead.iter().filter_map(|uid| self.pod_id(uid)).filter(reached).collect();
            for id in reached {
                self.set_ahead(id, false);
                self.refresh_pod(id);
            }
        }
    }

    fn set_ahead(&mut self, id: u32, ahead: bool) {
        let record = &mut self.pods[id as usize];
        if record.ahead != ahead {
            record.ahead = ahead;
            if ahead {
                self.ahead.insert(record.fact.uid.clone());
            } else {
                self.ahead.remove(&record.fact.uid);
            }
        }
    }

    /// Whether a pod was read in a state that the view of a budget does not show yet: neither the watch, nor a list of the
    /// budget's pods.
    ///
    /// Such a pod does not count as healthy. It was healthy later than the other pods are known to be, and one of those may be
    /// gone by then. So their sum may be more than there ever were at one time.
    pub(crate) fn is_ahead(&self, record: &PodRecord, budget: &BudgetRecord) -> bool {
        let shows = |(coverage, version): &(Coverage, Version)| {
            *coverage == budget.coverage && record.fact.version <= *version
        };
        record.ahead && !self.pod_lists.get(&budget.fact.key).is_some_and(shows)
    }

    fn add_pod(&mut self, mut pod: Pod, ahead: bool) -> u32 {
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
        if ahead {
            self.ahead.insert(pod.uid.clone());
        }
        self.pods.insert(PodRecord { fact: pod, absent: false, ahead, positions, members: SmallVec::new() });
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
        self.drop_empty_namespace(&record.fact.key.namespace);
        if record.absent {
            self.absences.remove(&record.fact.uid);
        }
        if record.ahead {
            self.ahead.remove(&record.fact.uid);
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

    /// Finds the budgets that cover a pod and adds it to each.
    pub(super) fn add_to_budgets(&mut self, id: u32) {
        let fact = &self.pods[id as usize].fact;
        let Some(index) = self.namespaces.get(&fact.key.namespace) else { return };
        let selected = selected_by(index, &self.budgets, fact);
        self.add_to_selected(id, selected);
    }

    /// Adds a pod to the budgets that select it, and to those whose `targetRef` is its workload.
    fn add_to_selected(&mut self, id: u32, selected: Budgets) {
        let fact = &self.pods[id as usize].fact;
        let Some(index) = self.namespaces.get(&fact.key.namespace) else { return };
        for budget in self.with_targets(index, fact, selected) {
            self.add_member(id, budget);
        }
    }

    /// The budgets that cover a pod with these labels and owners.
    pub(crate) fn covering_by(&self, pod: &Pod) -> Budgets {
        let Some(index) = self.namespaces.get(&pod.key.namespace) else { return Budgets::default() };
        self.with_targets(index, pod, selected_by(index, &self.budgets, pod))
    }

    /// The budgets that select a pod, and those whose `targetRef` is its workload.
    fn with_targets(&self, index: &NamespaceIndex, pod: &Pod, selected: Budgets) -> Budgets {
        let mut covering = selected;
        if !index.targets.is_empty() {
            for workload in self.cluster.workloads_of(pod) {
                covering.extend(index.targets.get(&workload).into_iter().flatten().copied());
            }
            covering.sort_unstable();
            covering.dedup();
        }
        covering
    }

    pub(super) fn add_member(&mut self, id: u32, budget: u32) {
        let record = &self.pods[id as usize];
        let ahead = self.is_ahead(record, &self.budgets[budget as usize]);
        let home = &mut self.budgets[budget as usize];
        let rules = &home.rules;
        let unit_key = units::unit_key(rules, &record.fact);
        let healthy = unit_key != UnitKey::Ungrouped
            && !ahead
            && healthy(record, rules.health, home.ledger(), &self.cluster, self.now);
        let counts = PodCounts::of(&record.fact, record.absent, healthy);
        let slot = home.tally.add(rules, (id, unit_key), &record.fact, counts, &self.cluster);
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

    /// Updates the health of a pod in each of its budgets.
    pub(super) fn refresh_pod(&mut self, id: u32) {
        for at in 0..self.pods[id as usize].members.len() {
            self.refresh_member(id, at);
        }
    }

    pub(super) fn refresh_member(&mut self, id: u32, at: usize) {
        let record = &self.pods[id as usize];
        let member = record.members[at];
        let ahead = self.is_ahead(record, &self.budgets[member.budget as usize]);
        let home = &mut self.budgets[member.budget as usize];
        let rules = &home.rules;
        let healthy = member.slot != UnitSlot::Ungrouped
            && !ahead
            && healthy(record, rules.health, home.ledger(), &self.cluster, self.now);
        let counts = PodCounts::of(&record.fact, record.absent, healthy);
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

    /// Stores a pod that was read individually. It proves nothing about versions later than its own.
    pub fn learn(&mut self, pod: Pod, now: Time) -> Changes {
        self.pass_time(now);
        let version = pod.version;
        self.learn_pod(pod, version);
        self.changes()
    }

    /// If the watch has passed this version and does not know the pod, the pod is gone. A late reply must not restore
    /// it.
    fn learn_pod(&mut self, pod: Pod, version: Version) {
        if self.absences.get(&pod.uid).is_some_and(|missed| *missed < version)
            && let Some(id) = self.pod_id(&pod.uid)
        {
            self.end_absence(id);
            self.refresh_pod(id);
        }
        if self.pod_id(&pod.uid).is_some() || version > self.pods_version {
            let ahead =
                pod.version > self.pods_version && !self.is_without(ProtocolRule::ReadsCountOnceShown);
            self.store_pod(pod, version, ahead);
        }
    }

    /// Whether a pod would count as healthy for a budget if it were not held.
    pub(crate) fn is_available(&self, uid: &str, key: &BudgetKey) -> bool {
        let (Some(pod), Some(budget)) = (self.pod_id(uid), self.budget_id(key)) else { return false };
        let health = self.budgets[budget as usize].rules.health;
        why_unavailable(&self.pods[pod as usize], health, &self.cluster, self.now).is_none()
    }

    /// The version that the pod watch has reached.
    pub fn pods_version(&self) -> Version {
        self.pods_version
    }

    /// Applies a consistent list of the pods of a budget. A pod that the list should contain and does not is gone or
    /// relabeled; it does not count until the watch shows which.
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
            .covered_unsorted(key)
            .filter(|pod| is_news && !listed.contains(&pod.uid) && pod.version <= version)
            .map(|pod| pod.uid.clone())
            .collect();
        pods.into_iter().for_each(|pod| self.learn_pod(pod, version));
        for id in absent.iter().filter_map(|uid| self.pod_id(uid)).collect::<Vec<_>>() {
            self.begin_absence(id, version);
        }
        if let Some(budget) = self.budget_id(key).filter(|_| is_news) {
            let coverage = self.budgets[budget as usize].coverage;
            let before = self.pod_lists.get(key).filter(|list| list.0 == coverage).map(|list| list.1);
            self.pod_lists.insert(key.clone(), (coverage, version.max(before.unwrap_or(version))));
            let shown = self.ahead.iter().filter(|uid| listed.contains(*uid));
            let shown: Vec<u32> = shown.filter_map(|uid| self.pod_id(uid)).collect();
            shown.into_iter().for_each(|id| self.refresh_pod(id));
        }
        self.changes()
    }
}

/// Whether a pod succeeded only because it was deleted: containers that handle SIGTERM exit with 0. Such a pod has not
/// finished its work, and its group is not complete. A pod that succeeded before its deletion has.
fn succeeded_after_deletion(pod: &Pod, known: Option<&Pod>) -> bool {
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

/// Whether a pod counts as healthy for a budget.
fn healthy(record: &PodRecord, rule: HealthRule, ledger: &Ledger, cluster: &ClusterState, now: Time) -> bool {
    !ledger.holds(&record.fact.uid) && why_unavailable(record, rule, cluster, now).is_none()
}

/// Why a pod does not count as healthy for any budget with this rule, apart from claims.
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

/// Whether a pod may be healthy for a budget with this rule, apart from claims. What is known of its agent and its node may
/// be older than the pod. So a pod that only these make unhealthy does not count, and is not free either.
pub(crate) fn may_be_available(
    record: &PodRecord,
    rule: HealthRule,
    cluster: &ClusterState,
    now: Time,
) -> bool {
    let pod = &record.fact;
    match why_unavailable(record, rule, cluster, now) {
        None => true,
        Some(Unhealthy::NotDisruptable | Unhealthy::NotReady) => {
            let probe = pod.probe.as_ref().filter(|_| cluster.probes);
            probe.is_some_and(|probe| !cluster.trust(pod, probe, now).surely_denies())
                && !SafetyRule::DoubtedPodsAreCharged.is_left_out()
        }
        Some(_) => false,
    }
}
