//! The kinds that budgets, pods and controllers refer to, besides those that are always watched.
//!
//! Pods and controllers name their controllers, and budgets name their targets. In a namespace with a budget each of
//! these kinds matters: for its scale, and because the path from a pod to the target of a budget may lead through it.
//! In other namespaces no budget needs them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_api::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP};
use quorate_engine::basics::{GroupKind, Text, Uid};
use quorate_engine::facts::{Budget, BudgetKey, BudgetKind, Covers, Owner};
use quorate_engine::group_source::GroupSource;
use quorate_engine::is_always_watched;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Kinds that are not workloads although they are controllers: a node controls its static pods, and the leader pod of a
/// group may control what creates its workers.
const IGNORED_KINDS: [(&str, &str); 2] = [("", "Node"), ("", "Pod")];

/// How long a kind is still watched after the last object that it controlled is gone: jobs come and go, and until a
/// kind is known again, no pod that it controls may be disrupted.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The kind `Pod`, as the kind of controlled objects.
pub(super) static PODS: LazyLock<GroupKind> = LazyLock::new(|| GroupKind::new("", "Pod"));

#[derive(Default)]
pub(super) struct References {
    state: Mutex<State>,
    /// Notified when the set of kinds may have changed.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct State {
    /// Every budget, with the kind of its target and the kinds of the sources that it remembers: whether these still
    /// exist matters when the budget has no pods any more.
    budgets: HashMap<BudgetKey, BTreeSet<GroupKind>>,
    /// Objects whose controller matters, by their own kind and UID: the kind of the controller, and the namespace.
    owned: HashMap<GroupKind, HashMap<Uid, (GroupKind, Text)>>,
    /// The kinds that control objects, and in which namespaces.
    owners: HashMap<GroupKind, HashMap<Text, Controlled>>,
}

/// How many objects a kind controls in a namespace.
#[derive(Default)]
struct Controlled {
    count: usize,
    /// Since when the count is zero.
    nothing_since: Option<Instant>,
}

/// Whether a kind makes groups: such kinds are always watched where they are served, with their own types.
fn makes_groups(kind: &GroupKind) -> bool {
    matches!(&*kind.group, UPSTREAM_SCHEDULING_GROUP | SCHEDULING_GROUP)
}

/// Whether a kind is watched only while something refers to it.
fn matters(kind: &GroupKind) -> bool {
    !IGNORED_KINDS.contains(&(&*kind.group, &*kind.kind))
        && !is_always_watched(kind)
        && !makes_groups(kind)
        && GroupSource::of_kind(kind).is_none()
}

impl State {
    /// Records the controller of an object; returns whether the set of kinds may have changed.
    fn own(&mut self, kind: &GroupKind, uid: &Uid, owner: Option<&Owner>, namespace: &Text) -> bool {
        let owner = owner.map(|owner| &owner.kind).filter(|kind| matters(kind));
        let known = self.owned.get(kind).and_then(|owned| owned.get(uid));
        if known.map(|(kind, _)| kind) == owner {
            return false;
        }
        self.disown(kind, uid);
        let Some(owner) = owner else { return true };
        let entry = (owner.clone(), namespace.clone());
        self.owned.entry(kind.clone()).or_default().insert(uid.clone(), entry);
        let within = self.owners.entry(owner.clone()).or_default().entry(namespace.clone()).or_default();
        within.count += 1;
        within.nothing_since = None;
        within.count == 1
    }

    fn disown(&mut self, kind: &GroupKind, uid: &Uid) {
        let Some((owner, namespace)) = self.owned.get_mut(kind).and_then(|owned| owned.remove(uid)) else {
            return;
        };
        let within = self.owners.get_mut(&owner).and_then(|within| within.get_mut(&namespace));
        if let Some(within) = within {
            within.count -= 1;
            within.nothing_since = (within.count == 0).then(Instant::now);
        }
    }

    /// Forgets kinds that have controlled nothing for `FORGOTTEN_AFTER`.
    fn forget(&mut self) {
        let lately =
            |within: &mut Controlled| within.nothing_since.is_none_or(|at| at.elapsed() < FORGOTTEN_AFTER);
        self.owners.retain(|_, namespaces| {
            namespaces.retain(|_, within| lately(within));
            !namespaces.is_empty()
        });
    }
}

impl References {
    /// Records an object of this kind and its controller.
    pub(super) fn owner(&self, kind: &GroupKind, uid: &Uid, owner: Option<&Owner>, namespace: &Text) {
        if self.state.lock().own(kind, uid, owner, namespace) {
            self.changed.notify_one();
        }
    }

    /// Removes an object of this kind.
    pub(super) fn gone(&self, kind: &GroupKind, uid: &Uid) {
        self.state.lock().disown(kind, uid);
    }

    /// Replaces all objects of a kind.
    pub(super) fn all<'a>(
        &self,
        kind: &GroupKind,
        objects: impl Iterator<Item = (&'a Uid, Option<&'a Owner>, &'a Text)>,
    ) {
        let mut state = self.state.lock();
        let mut before: HashSet<Uid> =
            state.owned.get(kind).map(|owned| owned.keys().cloned().collect()).unwrap_or_default();
        for (uid, owner, namespace) in objects {
            before.remove(uid);
            state.own(kind, uid, owner, namespace);
        }
        before.iter().for_each(|uid| state.disown(kind, uid));
        self.changed.notify_one();
    }

    /// Records a budget.
    pub(super) fn budget(&self, budget: &Budget) {
        let covers = match &budget.spec {
            Ok(rules) => &rules.covers,
            Err(broken) => &broken.covers,
        };
        let target = match covers {
            Covers::Target(kind, _) => Some(kind),
            Covers::Selector(_) => None,
        };
        let remembered = budget.memory.sources.iter().map(|source| &source.kind);
        let kinds: BTreeSet<GroupKind> = target.into_iter().chain(remembered).cloned().collect();
        let before = self.state.lock().budgets.insert(budget.key.clone(), kinds.clone());
        if before != Some(kinds) {
            self.changed.notify_one();
        }
    }

    /// Removes a budget.
    pub(super) fn budget_gone(&self, key: &BudgetKey) {
        if self.state.lock().budgets.remove(key).is_some() {
            self.changed.notify_one();
        }
    }

    /// Replaces all budgets of a kind.
    pub(super) fn budgets(&self, kind: BudgetKind, budgets: &[Budget]) {
        let listed: HashSet<&BudgetKey> = budgets.iter().map(|budget| &budget.key).collect();
        self.state.lock().budgets.retain(|key, _| key.kind != kind || listed.contains(key));
        budgets.iter().for_each(|budget| self.budget(budget));
        self.changed.notify_one();
    }

    /// Whether a budget names a kind as its target, or remembers an object of it.
    pub(super) fn is_named(&self, kind: &GroupKind) -> bool {
        self.state.lock().budgets.values().any(|kinds| kinds.contains(kind))
    }

    /// The kinds to watch.
    pub(super) fn kinds(&self) -> BTreeSet<GroupKind> {
        let mut state = self.state.lock();
        state.forget();
        let namespaces: HashSet<&Text> = state.budgets.keys().map(|key| &key.object.namespace).collect();
        let targets = state.budgets.values().flatten().filter(|kind| matters(kind)).cloned();
        let owners = state.owners.iter();
        let owners = owners.filter(|(_, within)| within.keys().any(|name| namespaces.contains(name)));
        targets.chain(owners.map(|(kind, _)| kind.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use quorate_engine::basics::ObjectKey;
    use quorate_engine::facts::Source;
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
    fn a_kind_that_a_budget_remembers_stays_watched() {
        let references = References::default();
        let mut budget = budget_in("shop", &json!({"selector": {"matchLabels": {"app": "web"}}}));
        references.budget(&budget);
        assert!(kinds(&references).is_empty());
        let source = |group: &str, kind: &str| Source {
            kind: GroupKind::new(group, kind),
            name: "x".into(),
            part: "".into(),
            uid: "u".into(),
        };
        budget.memory.sources = [
            source("apps", "StatefulSet"),
            source("example.com", "Game"),
            source("scheduling.k8s.io", "PodGroup"),
            source("scheduling.quorate.dev", "Workload"),
        ]
        .into();
        references.budget(&budget);
        assert_eq!(kinds(&references), ["example.com/Game"], "others are watched anyway");
        budget.memory.sources = Box::default();
        references.budget(&budget);
        assert!(kinds(&references).is_empty());
    }

    #[test]
    fn the_kind_of_a_controller_is_watched_where_a_budget_is() {
        let references = References::default();
        references.owner(&PODS, &"1".into(), Some(&owned_by("example.com", "Fleet")), &"shop".into());
        references.owner(&PODS, &"2".into(), Some(&owned_by("batch", "Job")), &"lab".into());
        references.owner(&PODS, &"3".into(), Some(&owned_by("apps", "ReplicaSet")), &"shop".into());
        references.owner(&PODS, &"4".into(), None, &"shop".into());
        assert!(kinds(&references).is_empty(), "there is no budget");
        references.budget(&budget_in("shop", &json!({"selector": {"matchLabels": {"a": "b"}}})));
        assert_eq!(kinds(&references), ["example.com/Fleet"]);
        references.budget_gone(&BudgetKey {
            object: ObjectKey::new("shop", "b"),
            kind: BudgetKind::DisruptionBudget,
        });
        assert!(kinds(&references).is_empty());
    }

    #[test]
    fn the_kind_of_a_target_is_watched() {
        let references = References::default();
        let target = |kind: &str, version: &str| json!({"targetRef": {"apiVersion": version, "kind": kind, "name": "x"}});
        references.budget(&budget_in("shop", &target("Fleet", "example.com/v1")));
        assert_eq!(kinds(&references), ["example.com/Fleet"]);
        references.budgets(BudgetKind::PodUnavailableBudget, &[]);
        assert_eq!(kinds(&references), ["example.com/Fleet"], "a list of the other kind");
        let web = budget_in("shop", &target("Deployment", "apps/v1"));
        references.budgets(BudgetKind::DisruptionBudget, &[web]);
        assert!(kinds(&references).is_empty(), "that one is watched anyway");
    }

    #[tokio::test]
    async fn only_a_new_kind_notifies_discovery() {
        let references = References::default();
        let is_notified = || {
            let notified = std::pin::pin!(references.changed.notified());
            futures_poll(notified)
        };
        let fleet = owned_by("example.com", "Fleet");
        references.owner(&PODS, &"1".into(), Some(&fleet), &"shop".into());
        assert!(is_notified());
        references.owner(&PODS, &"1".into(), Some(&fleet), &"shop".into());
        references.owner(&PODS, &"2".into(), Some(&fleet), &"shop".into());
        references.owner(&PODS, &"3".into(), Some(&owned_by("apps", "StatefulSet")), &"shop".into());
        assert!(!is_notified());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_controls_nothing_any_more_is_forgotten_after_a_delay() {
        let references = References::default();
        references.budget(&budget_in("shop", &json!({"selector": {"matchLabels": {"a": "b"}}})));
        let (fleet, job) = (owned_by("example.com", "Fleet"), owned_by("batch", "Job"));
        let (shop, one, two): (Text, Uid, Uid) = ("shop".into(), "1".into(), "2".into());
        references.owner(&PODS, &one, Some(&fleet), &shop);
        references.owner(&PODS, &two, Some(&job), &shop);
        references.gone(&PODS, &one);
        tokio::time::advance(FORGOTTEN_AFTER / 2).await;
        assert_eq!(kinds(&references), ["batch/Job", "example.com/Fleet"], "another object may come");
        tokio::time::advance(FORGOTTEN_AFTER / 2).await;
        assert_eq!(kinds(&references), ["batch/Job"]);
        // A list without an object removes it too. A kind that comes back in time stays.
        references.all(&PODS, [(&one, Some(&fleet), &shop)].into_iter());
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(kinds(&references), ["example.com/Fleet"]);
        references.gone(&PODS, &one);
        references.owner(&PODS, &two, Some(&fleet), &shop);
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(kinds(&references), ["example.com/Fleet"]);
        assert_eq!(references.state.lock().owned[&PODS].len(), 1, "objects that are gone are not remembered");
    }

    fn futures_poll(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_ready()
    }
}
