//! Which kinds budgets and pods refer to, beside those that are always watched.
//!
//! Pods and controllers name their controllers, and budgets their targets. In a namespace with a budget each of those
//! kinds matters: for its scale, and because the way from a pod to the target of a budget may lead through it. Elsewhere
//! nobody asks.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;
use quorate_engine::basics::{GroupKind, Text};
use quorate_engine::facts::{Budget, BudgetKey, Covers, Front, Owner};
use tokio::sync::Notify;

/// Kinds that are fed anyway, or that are no workloads though they control pods: a node its static ones, and the leader of
/// a LeaderWorkerSet what makes its workers.
const OTHERS: [(&str, &str); 6] = [
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("apps", "Deployment"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    ("", "Node"),
    ("", "Pod"),
];

#[derive(Default)]
pub(super) struct References {
    state: Mutex<State>,
    /// There may be another kind, or one fewer.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct State {
    /// Every budget, with the kind it names.
    budgets: HashMap<BudgetKey, Option<GroupKind>>,
    /// The kinds that control something, and in which namespaces.
    owners: HashMap<GroupKind, HashSet<Text>>,
}

fn matters(kind: &GroupKind) -> bool {
    !OTHERS.contains(&(&*kind.group, &*kind.kind))
}

impl References {
    /// Something in this namespace has a controller.
    pub(super) fn owner(&self, owner: Option<&Owner>, namespace: &Text) {
        let Some(kind) = owner.map(|owner| &owner.kind).filter(|kind| matters(kind)) else { return };
        let mut state = self.state.lock();
        let known = state.owners.get(kind).is_some_and(|within| within.contains(namespace));
        if !known {
            state.owners.entry(kind.clone()).or_default().insert(namespace.clone());
            self.changed.notify_one();
        }
    }

    /// A budget is there.
    pub(super) fn budget(&self, budget: &Budget) {
        let covers = match &budget.spec {
            Ok(rules) => &rules.covers,
            Err(broken) => &broken.covers,
        };
        let target = match covers {
            Covers::Target(kind, _) => Some(kind.clone()),
            Covers::Selector(_) => None,
        };
        let before = self.state.lock().budgets.insert(budget.key.clone(), target.clone());
        if before != Some(target) {
            self.changed.notify_one();
        }
    }

    /// A budget is gone.
    pub(super) fn budget_gone(&self, key: &BudgetKey) {
        if self.state.lock().budgets.remove(key).is_some() {
            self.changed.notify_one();
        }
    }

    /// These are all budgets of a front.
    pub(super) fn budgets(&self, front: Front, budgets: &[Budget]) {
        let listed: HashSet<&BudgetKey> = budgets.iter().map(|budget| &budget.key).collect();
        self.state.lock().budgets.retain(|key, _| key.front != front || listed.contains(key));
        budgets.iter().for_each(|budget| self.budget(budget));
        self.changed.notify_one();
    }

    /// The kinds to watch.
    pub(super) fn kinds(&self) -> BTreeSet<GroupKind> {
        let state = self.state.lock();
        let namespaces: HashSet<&Text> = state.budgets.keys().map(|key| &key.object.namespace).collect();
        let targets = state.budgets.values().flatten().filter(|kind| matters(kind)).cloned();
        let owners = state.owners.iter();
        let owners = owners.filter(|(_, within)| within.iter().any(|name| namespaces.contains(name)));
        targets.chain(owners.map(|(kind, _)| kind.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use quorate_engine::basics::ObjectKey;
    use quorate_intake::budget;
    use serde_json::json;

    use super::*;

    fn owned_by(group: &str, kind: &str) -> Owner {
        Owner { uid: "u".into(), kind: GroupKind::new(group, kind), name: "x".into(), controller: true }
    }

    fn budget_in(namespace: &str, covers: &serde_json::Value) -> Budget {
        let mut spec = json!({"maxUnavailable": 1});
        spec.as_object_mut().unwrap().extend(covers.as_object().unwrap().clone());
        let object = json!({"metadata": {"namespace": namespace, "name": "b", "uid": "u", "generation": 1,
            "resourceVersion": "1"}, "spec": spec});
        budget::budget(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn kinds(references: &References) -> Vec<String> {
        references.kinds().iter().map(|kind| format!("{}/{}", kind.group, kind.kind)).collect()
    }

    #[test]
    fn a_controller_matters_where_a_budget_is() {
        let references = References::default();
        references.owner(Some(&owned_by("example.com", "Fleet")), &"shop".into());
        references.owner(Some(&owned_by("batch", "Job")), &"lab".into());
        references.owner(Some(&owned_by("apps", "ReplicaSet")), &"shop".into());
        references.owner(None, &"shop".into());
        assert!(kinds(&references).is_empty(), "nobody asks");
        references.budget(&budget_in("shop", &json!({"selector": {"matchLabels": {"a": "b"}}})));
        assert_eq!(kinds(&references), ["example.com/Fleet"]);
        references
            .budget_gone(&BudgetKey { object: ObjectKey::new("shop", "b"), front: Front::DisruptionBudget });
        assert!(kinds(&references).is_empty());
    }

    #[test]
    fn a_target_matters_by_itself() {
        let references = References::default();
        let target = |kind: &str, version: &str| json!({"targetRef": {"apiVersion": version, "kind": kind, "name": "x"}});
        references.budget(&budget_in("shop", &target("Fleet", "example.com/v1")));
        assert_eq!(kinds(&references), ["example.com/Fleet"]);
        references.budgets(Front::PodUnavailableBudget, &[]);
        assert_eq!(kinds(&references), ["example.com/Fleet"], "a list of the other kind");
        let web = budget_in("shop", &target("Deployment", "apps/v1"));
        references.budgets(Front::DisruptionBudget, &[web]);
        assert!(kinds(&references).is_empty(), "that one is watched anyway");
    }

    #[tokio::test]
    async fn whoever_waits_is_told_of_what_is_new_and_of_nothing_else() {
        let references = References::default();
        let is_told = || {
            let told = std::pin::pin!(references.changed.notified());
            futures_poll(told)
        };
        references.owner(Some(&owned_by("example.com", "Fleet")), &"shop".into());
        assert!(is_told());
        references.owner(Some(&owned_by("example.com", "Fleet")), &"shop".into());
        references.owner(Some(&owned_by("apps", "StatefulSet")), &"shop".into());
        assert!(!is_told());
    }

    fn futures_poll(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_ready()
    }
}
