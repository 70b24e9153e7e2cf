//! Adds, changes and removes budgets, and updates them when controllers and group objects change.

use std::collections::BTreeSet;

use crate::basics::{GroupKind, Text, Uid};
use crate::claims::Ledger;
use crate::coverage::Coverage;
use crate::engine::{BudgetRecord, Engine, NamespaceIndex};
use crate::facts::{Budget, BudgetKey, Covers, Memory, Phase, Rules, Source, Units};
use crate::ledger::ProtocolRule;
use crate::tally::Tally;

impl Engine {
    pub(super) fn set_budget(&mut self, budget: Budget) {
        let Some(id) = self.budget_id(&budget.key) else {
            self.add_budget(budget);
            return;
        };
        let known = &self.budgets[id as usize].fact;
        if known.uid == budget.uid && budget.version < known.version {
            return;
        }
        if known.uid != budget.uid {
            let key = budget.key.clone();
            self.remove_budget(&key);
            self.add_budget(budget);
            return;
        }
        let steady_since = self.steady_since(id, &budget);
        if known.spec != budget.spec {
            let gone = std::mem::take(&mut self.budgets[id as usize].tally.gone);
            let memory = self.memory_under(id, &budget);
            let (before, after) = (known_units(&self.budgets[id as usize].fact), known_units(&budget));
            let same_groups = before.zip(after).is_some_and(|(before, after)| before.form_same_groups(after));
            let unread = before.is_none();
            let lost = if same_groups { self.budgets[id as usize].tally.lost() } else { Vec::new() };
            self.remove_budget(&budget.key);
            // Vanished groups are stored by name, and a name means nothing if the groups are formed in another way.
            // What this process saw is newer than the status.
            let gone = match (same_groups, unread) {
                (true, _) => gone.into_iter().collect(),
                (false, true) => budget.gone,
                (false, false) => Box::default(),
            };
            let key = budget.key.clone();
            self.add_budget(Budget { gone, memory, ..budget });
            if let Some(id) = self.budget_id(&key) {
                let record = &mut self.budgets[id as usize];
                record.steady_since = steady_since;
                record.tally.recall_lost(lost);
            }
            return;
        }
        self.touch(id);
        let record = &mut self.budgets[id as usize];
        record.steady_since = steady_since;
        // What was observed replaces a draft, whether its write succeeded or not.
        let draft = record.draft.take();
        let old = std::mem::replace(&mut record.fact, budget);
        if old.memory != record.fact.memory && record.fact.memory.key == crate::memory_key(&record.rules) {
            let namespace = &record.fact.key.object.namespace;
            record.tally.learn(&record.rules, namespace, &record.fact.memory, &self.cluster);
        }
        if old.gone != record.fact.gone {
            let namespace = &record.fact.key.object.namespace;
            record.tally.recall_gone(&record.rules, namespace, &record.fact.gone, &self.cluster, self.now);
        }
        record.claim_bytes = record.fact.ledger.claim_bytes();
        self.set_gone_alarm(id);
        self.refresh_claimed(id, &draft.unwrap_or(old.ledger));
    }

    /// The first generation since which a known budget has had its coverage without interruption, now that it is `budget`.
    fn steady_since(&self, id: u32, budget: &Budget) -> i64 {
        let record = &self.budgets[id as usize];
        let same = self.coverage_of(&record.fact) == self.coverage_of(budget);
        let follows = budget.generation <= record.fact.generation.saturating_add(1);
        let keeps = (same && follows) || self.is_without(ProtocolRule::SteadyCoverage);
        if keeps { record.steady_since } else { budget.generation }
    }

    /// Lets decisions and the status count the ledger that a write leaves, until the budget is observed again. Nothing
    /// else changes: the budget itself stays as it was observed.
    pub(crate) fn set_draft(&mut self, key: &BudgetKey, draft: &Ledger) {
        let Some(id) = self.budget_id(key).filter(|id| self.budgets[*id as usize].ledger() != draft) else {
            return;
        };
        self.touch(id);
        let record = &mut self.budgets[id as usize];
        let new = (*draft != record.fact.ledger).then(|| draft.clone());
        let old = std::mem::replace(&mut record.draft, new);
        let old = old.unwrap_or_else(|| record.fact.ledger.clone());
        record.claim_bytes = draft.claim_bytes();
        self.refresh_claimed(id, &old);
    }

    /// Adds the token of a request to the draft: `add` returns by how many bytes the claims grow. Costs no more in a budget
    /// with many claims than in one with few.
    pub(crate) fn add_to_draft(
        &mut self,
        key: &BudgetKey,
        uid: &Uid,
        add: impl FnOnce(&mut Ledger) -> usize,
    ) {
        let Some(id) = self.budget_id(key) else { return };
        self.touch(id);
        let record = &mut self.budgets[id as usize];
        let draft = record.draft.get_or_insert_with(|| record.fact.ledger.clone());
        record.claim_bytes += add(draft);
        self.refresh_held(uid, id);
    }

    /// Updates the pods of a budget that were claimed under the old ledger or are claimed now.
    fn refresh_claimed(&mut self, id: u32, old: &Ledger) {
        let new = &self.budgets[id as usize].ledger().claims;
        let claimed: BTreeSet<Uid> = old.claims.keys().chain(new.keys()).cloned().collect();
        for uid in claimed {
            self.refresh_held(&uid, id);
        }
    }

    /// The memory of a budget under its new rules: the present one, plus the sources in the status, if the budget
    /// covers the same pods and forms the same units; else that of the status.
    fn memory_under(&self, id: u32, budget: &Budget) -> Memory {
        let record = &self.budgets[id as usize];
        let key = crate::memory_key(&self.rules_in_force(budget).0);
        if record.fact.spec.is_err() || budget.spec.is_err() || key != crate::memory_key(&record.rules) {
            return budget.memory.clone();
        }
        let mut memory = record.tally.memory(&record.rules);
        if budget.memory.key == key {
            let sources: BTreeSet<Source> =
                memory.sources.iter().chain(&budget.memory.sources).cloned().collect();
            memory.sources = sources.into_iter().collect();
        }
        memory
    }

    fn refresh_held(&mut self, uid: &Uid, budget: u32) {
        let Some(pod) = self.pod_id(uid) else { return };
        let at = self.pods[pod as usize].members.iter().position(|member| member.budget == budget);
        if let Some(at) = at {
            self.refresh_member(pod, at);
        }
    }

    fn add_budget(&mut self, mut budget: Budget) {
        let (mut rules, downgraded) = self.rules_in_force(&budget);
        self.pool.share_budget(&mut budget.key, &mut rules.covers);
        let key = budget.key.clone();
        let gone = budget.gone.clone();
        let memory = budget.memory.clone();
        let coverage = match &budget.spec {
            Ok(_) => self.coverage_of(&budget),
            // The pods that it denies are those that it covers.
            Err(_) => Coverage::of(&budget.uid, &rules),
        };
        let steady_since =
            if self.is_without(ProtocolRule::SteadyCoverage) { i64::MIN } else { budget.generation };
        let record = BudgetRecord {
            claim_bytes: budget.ledger.claim_bytes(),
            fact: budget,
            draft: None,
            rules,
            downgraded,
            coverage,
            steady_since,
            tally: Tally::default(),
            is_dirty: false,
        };
        let id = self.budgets.insert(record) as u32;
        self.by_key.insert(key.clone(), id);
        let index = NamespaceIndex::find(&mut self.namespaces, &key.object.namespace);
        index.budgets.insert(id);
        self.editions += 1;
        index.edition = self.editions;
        match &self.budgets[id as usize].rules.covers {
            Covers::Selector(selector) => index.selectors.insert(selector, id),
            Covers::Target(kind, name) => {
                index.targets.entry((kind.clone(), name.clone())).or_default().push(id);
            }
        }
        let pods: Vec<u32> = index.pods.clone();
        for pod in pods {
            if self.covers(id, pod) {
                self.add_member(pod, id);
            }
        }
        let record = &mut self.budgets[id as usize];
        let namespace = &record.fact.key.object.namespace;
        if record.fact.spec.is_ok() {
            let known = Some(memory).filter(|memory| memory.key == crate::memory_key(&record.rules));
            record.tally.recall(&known.unwrap_or_default());
            record.tally.regroup(&record.rules, namespace, &self.cluster);
            if record.rules.units == Units::Pods {
                for uid in self.cluster.counting_pods(namespace) {
                    record.tally.consider(&record.rules, namespace, uid, &self.cluster);
                }
            }
        }
        record.tally.recall_gone(&record.rules, namespace, &gone, &self.cluster, self.now);
        self.set_gone_alarm(id);
        self.touch(id);
    }

    /// What a budget covers.
    pub(crate) fn coverage_of(&self, budget: &Budget) -> Coverage {
        match &budget.spec {
            #[cfg(feature = "mutations")]
            Ok(_) if self.is_without(ProtocolRule::ReopenOnCoverage) => Coverage::of_uid(&budget.uid),
            Ok(rules) => Coverage::of(&budget.uid, rules),
            Err(_) => Coverage::INVALID,
        }
    }

    pub(super) fn remove_budget(&mut self, key: &BudgetKey) {
        let Some(id) = self.by_key.remove(key) else { return };
        if let Some(index) = self.namespaces.get_mut(&key.object.namespace) {
            index.budgets.remove(&id);
            self.editions += 1;
            index.edition = self.editions;
            match &self.budgets[id as usize].rules.covers {
                Covers::Selector(selector) => index.selectors.remove(selector, id),
                Covers::Target(kind, name) => {
                    let target = (kind.clone(), name.clone());
                    if let Some(ids) = index.targets.get_mut(&target) {
                        ids.retain(|other| *other != id);
                        if ids.is_empty() {
                            index.targets.remove(&target);
                        }
                    }
                }
            }
            for pod in &index.pods {
                self.pods[*pod as usize].members.retain(|member| member.budget != id);
            }
        }
        if self.budgets.remove(id as usize).is_dirty {
            self.dirty.retain(|dirty| *dirty != id);
        }
        self.drop_empty_namespace(&key.object.namespace);
    }

    fn covers(&self, budget: u32, pod: u32) -> bool {
        let record = &self.budgets[budget as usize];
        let pod = &self.pods[pod as usize];
        match &record.rules.covers {
            Covers::Selector(selector) => selector.matches(&pod.fact.labels),
            Covers::Target(kind, name) => {
                self.cluster.workloads_of(&pod.fact).iter().any(|(k, n)| k == kind && n == name)
            }
        }
    }

    fn rules_in_force(&self, budget: &Budget) -> (Rules, bool) {
        match &budget.spec {
            Ok(rules) if self.gates.multi_pod_pdbs || rules.units == Units::Pods => (rules.clone(), false),
            // The downgrade that the proposal defines: the numbers stay, but count pods.
            Ok(rules) => (Rules { units: Units::Pods, expected: None, ..rules.clone() }, true),
            Err(broken) => {
                let rules = Rules {
                    expected: Some(0),
                    operations: broken.operations,
                    ..Rules::new(broken.covers.clone())
                };
                (rules, false)
            }
        }
    }

    pub(super) fn refresh_controller(&mut self, uid: &Uid, namespace: &Text, moved: bool, is_source: bool) {
        let (controllers, mut pods) = self.below(uid);
        let mut budgets: BTreeSet<u32> = self.grouping_budgets(namespace);
        for id in &pods {
            budgets.extend(self.pods[*id as usize].members.iter().map(|member| member.budget));
        }
        self.regroup(budgets);
        if is_source {
            self.consider(&controllers, namespace);
        }
        if moved {
            self.sort_succeeded_first(&mut pods);
            // Its pods may now belong to the `targetRef` of another budget.
            let targeted = self.namespaces.get(namespace).is_some_and(|index| !index.targets.is_empty());
            for id in &pods {
                if targeted {
                    self.remove_from_budgets(*id);
                    self.add_to_budgets(*id);
                }
            }
        }
    }

    /// Sorts pods that succeeded first. If several leave at once, a group is complete only if all of them succeeded.
    pub(super) fn sort_succeeded_first(&self, pods: &mut [u32]) {
        pods.sort_by_key(|id| (self.pods[*id as usize].fact.phase != Phase::Succeeded, *id));
    }

    /// Updates which of these controllers the budgets that count pods expect.
    pub(super) fn consider(&mut self, controllers: &[Uid], namespace: &Text) {
        let is_gone = controllers.first().is_some_and(|uid| self.cluster.controller(uid).is_none());
        for id in self.budgets_in(namespace) {
            let record = &mut self.budgets[id as usize];
            if record.rules.units != Units::Pods || record.fact.spec.is_err() {
                continue;
            }
            let mut changed = is_gone && record.tally.forget_unknown(namespace, None, &self.cluster);
            for uid in controllers {
                changed |= record.tally.consider(&record.rules, namespace, uid, &self.cluster);
            }
            if changed {
                self.touch(id);
            }
        }
    }

    /// Forgets remembered sources of a kind that its complete list does not contain.
    pub(super) fn forget_unlisted(&mut self, kind: &GroupKind) {
        let forgetful: Vec<u32> = self
            .budgets
            .iter_mut()
            .filter_map(|(id, record)| {
                let namespace = &record.fact.key.object.namespace;
                let forgets = record.tally.forget_unknown(namespace, Some(kind), &self.cluster);
                forgets.then_some(id as u32)
            })
            .collect();
        forgetful.into_iter().for_each(|id| self.touch(id));
    }

    /// A controller and the controllers it owns, and their pods.
    fn below(&self, uid: &Uid) -> (Vec<Uid>, Vec<u32>) {
        let mut controllers = vec![uid.clone()];
        let mut pods = Vec::new();
        let mut at = 0;
        while let Some(controller) = controllers.get(at) {
            pods.extend(self.pods_of_controller(controller));
            let owned = self.cluster.owned_by(controller);
            // Owner references may form a cycle.
            controllers
                .extend(owned.into_iter().filter(|uid| !controllers.contains(uid)).collect::<Vec<_>>());
            at += 1;
        }
        pods.sort_unstable();
        pods.dedup();
        (controllers, pods)
    }

    fn grouping_budgets(&self, namespace: &Text) -> BTreeSet<u32> {
        self.budgets_in(namespace)
            .into_iter()
            .filter(|id| self.budgets[*id as usize].rules.units != Units::Pods)
            .collect()
    }

    pub(super) fn regroup_namespace(&mut self, namespace: &Text) {
        let budgets = self.grouping_budgets(namespace);
        self.regroup(budgets);
    }

    fn regroup(&mut self, budgets: BTreeSet<u32>) {
        for id in budgets {
            let record = &mut self.budgets[id as usize];
            record.tally.regroup(&record.rules, &record.fact.key.object.namespace, &self.cluster);
            self.touch(id);
        }
    }

    pub(crate) fn budgets_in(&self, namespace: &Text) -> BTreeSet<u32> {
        self.namespaces.get(namespace).map(|index| index.budgets.clone()).unwrap_or_default()
    }
}

fn known_units(budget: &Budget) -> Option<&Units> {
    budget.spec.as_ref().ok().map(|rules| &rules.units)
}
