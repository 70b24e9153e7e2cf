//! For each kind, translates a list into a snapshot, and a change into an input.

use std::hash::Hash;
use std::sync::Arc;

use quorate_api::budget::StoredBudget;
use quorate_api::slim;
use quorate_engine::Snapshot;
use quorate_engine::basics::{GroupKind, ObjectKey, Text, Uid};
use quorate_engine::facts::{
    Budget, BudgetKey, BudgetKind, Controller, Input, Namespace, NativeBudget, Node, Owner, Pod, PodGroup,
    Workload, WorkloadSource,
};
use quorate_engine::ledger::Event;
use quorate_intake::{Unreadable, budget, objects};
use quorate_kit::watch::{self, Identity, Listed};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::references::{PODS, References};
use crate::raw_budgets::{self, RawBudgets};
use crate::twins;

/// Reads an object and turns it into a fact at once.
pub(super) fn reading<K: DeserializeOwned, T>(
    fact: impl Fn(&K) -> Result<T, Unreadable>,
) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let object = serde_json::from_str(text).map_err(|error| error.to_string())?;
        fact(&object).map_err(|why| why.problem.to_string())
    }
}

/// Reads a pod, in part if necessary.
pub(super) fn read_pod(text: &str) -> Result<Pod, String> {
    let (pod, wrong) = objects::any_pod(text)?;
    if let Some(why) = wrong {
        warn!(pod = %pod.key, why, "cannot read a pod in full: it counts as not ready");
    }
    Ok(pod)
}

fn fact(input: Input) -> Vec<Event> {
    vec![Event::Fact(Box::new(input))]
}

fn complain<K>(listed: &Listed<K>) {
    listed.unreadable.iter().for_each(|why| warn!(%why, "cannot read an object"));
}

pub(super) fn pods(event: watch::WatchEvent<Pod>, references: &References) -> Vec<Event> {
    match event {
        watch::WatchEvent::Listed(listed) => {
            complain(&listed);
            let owned = listed.objects.iter().map(|pod| (&pod.uid, pod.controller(), &pod.key.namespace));
            references.all(&PODS, owned);
            let version = objects::version(&listed.version);
            version.map(|at| vec![Event::List(Snapshot::Pods(listed.objects, at))]).unwrap_or_default()
        }
        watch::WatchEvent::Applied(pod) => {
            references.owner(&PODS, &pod.uid, pod.controller(), &pod.key.namespace);
            fact(Input::Pod(pod))
        }
        watch::WatchEvent::Deleted(pod) => {
            references.gone(&PODS, &pod.uid);
            fact(Input::PodGone(pod.uid, pod.version))
        }
        // Without a UID it is unknown which pod it is.
        watch::WatchEvent::Unreadable(why) => {
            warn!(%why, "cannot read a pod");
            Vec::new()
        }
        watch::WatchEvent::Bookmark(version) => {
            objects::version(&version).map(|version| fact(Input::PodsAt(version))).unwrap_or_default()
        }
    }
}

/// Budgets of one kind. Twins are `DisruptionBudget`s, so `twins` is `None` for the other kind. The version of a deletion
/// comes before the end of the budget: the reply to an earlier write may come right after that, and must be known as older.
pub(super) fn budgets(
    kind: BudgetKind,
    event: watch::WatchEvent<StoredBudget>,
    raw_budgets: &RawBudgets,
    references: &References,
    twins: Option<&twins::Inbox>,
) -> Vec<Event> {
    let at = |version: &str| objects::version(version).map(|version| Event::BudgetsAt(kind, version));
    let read = |object: &StoredBudget| {
        budget::fact(kind, object).inspect_err(|why| warn!(%why, "cannot read a budget")).ok()
    };
    match event {
        watch::WatchEvent::Listed(listed) => {
            complain(&listed);
            raw_budgets.retain(kind, &listed.objects);
            listed.objects.iter().for_each(|object| raw_budgets.take(kind, object));
            let keyed = listed.objects.iter().filter_map(|object| Some((raw_budgets::key(object)?, object)));
            if let Some(twins) = twins {
                twins.budgets(keyed);
            }
            let budgets: Vec<Budget> = listed.objects.iter().filter_map(read).collect();
            references.budgets(kind, &budgets);
            let list = Event::List(Snapshot::Budgets(kind, budgets));
            [Some(list), at(&listed.version)].into_iter().flatten().collect()
        }
        watch::WatchEvent::Applied(object) => {
            raw_budgets.take(kind, &object);
            if let (Some(key), Some(twins)) = (raw_budgets::key(&object), twins) {
                twins.budget(key, Some(&object));
            }
            let Some(budget) = read(&object) else { return Vec::new() };
            references.budget(&budget);
            fact(Input::Budget(budget))
        }
        watch::WatchEvent::Deleted(object) => {
            let Some(key) = raw_budgets::key(&object) else { return Vec::new() };
            let version = object.metadata.resource_version.as_deref().and_then(at);
            let gone = budget_gone(BudgetKey { object: key, kind }, raw_budgets, references, twins);
            version.into_iter().chain(gone).collect()
        }
        watch::WatchEvent::Unreadable(why) => {
            warn!(%why, "cannot read a budget");
            match object_key(&why.identity) {
                Some(object) if why.deleted => {
                    let version = at(&why.identity.resource_version);
                    let gone = budget_gone(BudgetKey { object, kind }, raw_budgets, references, twins);
                    version.into_iter().chain(gone).collect()
                }
                _ => Vec::new(),
            }
        }
        watch::WatchEvent::Bookmark(version) => at(&version).into_iter().collect(),
    }
}

fn budget_gone(
    key: BudgetKey,
    raw_budgets: &RawBudgets,
    references: &References,
    twins: Option<&twins::Inbox>,
) -> Vec<Event> {
    if let Some(twins) = twins {
        twins.budget(key.object.clone(), None);
    }
    raw_budgets.remove(&key);
    references.budget_gone(&key);
    fact(Input::BudgetGone(key))
}

/// A kind of controller. A controller that cannot be read counts as gone, so its scale is unknown.
pub(super) fn controllers(
    kind: GroupKind,
    references: &Arc<References>,
) -> impl FnMut(watch::WatchEvent<Controller>) -> Vec<Event> + Send + 'static {
    let references = references.clone();
    move |event| match event {
        watch::WatchEvent::Listed(listed) => {
            complain(&listed);
            let owned = listed
                .objects
                .iter()
                .map(|object| (&object.uid, object.owner.as_ref(), &object.key.namespace));
            references.all(&kind, owned);
            vec![Event::List(Snapshot::Controllers(kind.clone(), listed.objects))]
        }
        watch::WatchEvent::Applied(controller) => {
            references.owner(&kind, &controller.uid, controller.owner.as_ref(), &controller.key.namespace);
            fact(Input::Controller(controller))
        }
        watch::WatchEvent::Deleted(controller) => {
            references.gone(&kind, &controller.uid);
            fact(Input::ControllerGone(controller.uid))
        }
        watch::WatchEvent::Unreadable(why) => {
            warn!(kind = &*kind.kind, %why, "cannot read a controller");
            let Some(uid) = Some(Uid::from(why.identity.uid.as_str())).filter(|uid| !uid.is_empty()) else {
                return Vec::new();
            };
            references.gone(&kind, &uid);
            fact(Input::ControllerGone(uid))
        }
        watch::WatchEvent::Bookmark(_) => Vec::new(),
    }
}

/// PodGroups. Their owners matter: when an owner has ended, its PodGroups are not expected any more.
pub(super) fn pod_groups(
    kind: GroupKind,
    references: &Arc<References>,
) -> impl FnMut(watch::WatchEvent<(ObjectKey, PodGroup)>) -> Vec<Event> + Send + 'static {
    let references = references.clone();
    move |event| {
        owned(&event, &kind, &references, |group| (&group.uid, group.controller.as_ref()));
        keyed(event, object_key, Snapshot::PodGroups, Input::PodGroup)
    }
}

/// Workloads of one API.
pub(super) fn workloads(
    source: WorkloadSource,
    kind: GroupKind,
    references: &Arc<References>,
) -> impl FnMut(watch::WatchEvent<(ObjectKey, Workload)>) -> Vec<Event> + Send + 'static {
    let references = references.clone();
    move |event| {
        owned(&event, &kind, &references, |workload| (&workload.uid, workload.owner.as_ref()));
        let list = |all| Snapshot::Workloads(source, all);
        keyed(event, object_key, list, |key, workload| Input::Workload(source, key, workload))
    }
}

/// Records the owners of the objects of a kind.
fn owned<T>(
    event: &watch::WatchEvent<(ObjectKey, T)>,
    kind: &GroupKind,
    references: &References,
    owner: impl Fn(&T) -> (&Uid, Option<&Owner>),
) {
    match event {
        watch::WatchEvent::Listed(listed) => {
            let all = listed.objects.iter().map(|(key, object)| {
                let (uid, owner) = owner(object);
                (uid, owner, &key.namespace)
            });
            references.all(kind, all);
        }
        watch::WatchEvent::Applied((key, object)) => {
            let (uid, owner) = owner(object);
            references.owner(kind, uid, owner, &key.namespace);
        }
        watch::WatchEvent::Deleted((_, object)) => references.gone(kind, owner(object).0),
        watch::WatchEvent::Unreadable(why) if !why.identity.uid.is_empty() => {
            references.gone(kind, &Uid::from(why.identity.uid.as_str()));
        }
        watch::WatchEvent::Unreadable(_) | watch::WatchEvent::Bookmark(_) => {}
    }
}

pub(super) fn namespaces(event: watch::WatchEvent<(Text, Namespace)>) -> Vec<Event> {
    keyed(event, name, Snapshot::Namespaces, Input::Namespace)
}

pub(super) fn nodes(event: watch::WatchEvent<(Text, Node)>) -> Vec<Event> {
    keyed(event, name, Snapshot::Nodes, Input::Node)
}

/// A native budget: its fact, unless it covers nothing, and the object itself if it matters for twins.
pub(super) struct Native {
    key: ObjectKey,
    fact: Option<NativeBudget>,
    object: Option<slim::PodDisruptionBudget>,
}

pub(super) fn read_native(budget: &slim::PodDisruptionBudget) -> Result<Native, Unreadable> {
    let (key, fact) = objects::native_budget(budget)?;
    Ok(Native { key, fact, object: twins::concerns(budget).then(|| budget.clone()) })
}

pub(super) fn native_budgets(event: watch::WatchEvent<Native>, twins: &twins::Inbox) -> Vec<Event> {
    match event {
        watch::WatchEvent::Listed(listed) => {
            complain(&listed);
            twins.natives(listed.objects.iter().map(|native| (&native.key, native.object.as_ref())));
            let covering = listed.objects.into_iter().filter_map(|native| Some((native.key, native.fact?)));
            vec![Event::List(Snapshot::NativeBudgets(covering.collect()))]
        }
        watch::WatchEvent::Applied(Native { key, fact: covering, object }) => {
            twins.native(&key, object);
            fact(Input::NativeBudget(key, covering))
        }
        watch::WatchEvent::Deleted(native) => native_gone(native.key, twins),
        watch::WatchEvent::Unreadable(why) => {
            warn!(%why, "cannot read a PodDisruptionBudget");
            object_key(&why.identity).map(|key| native_gone(key, twins)).unwrap_or_default()
        }
        watch::WatchEvent::Bookmark(_) => Vec::new(),
    }
}

fn native_gone(key: ObjectKey, twins: &twins::Inbox) -> Vec<Event> {
    twins.native(&key, None);
    fact(Input::NativeBudget(key, None))
}

/// Kinds whose facts have a key. An object that cannot be read counts as absent.
fn keyed<K: Eq + Hash, T>(
    event: watch::WatchEvent<(K, T)>,
    key: impl Fn(&Identity) -> Option<K>,
    list: impl Fn(Vec<(K, T)>) -> Snapshot,
    one: impl Fn(K, Option<T>) -> Input,
) -> Vec<Event> {
    match event {
        watch::WatchEvent::Listed(listed) => {
            complain(&listed);
            vec![Event::List(list(listed.objects))]
        }
        watch::WatchEvent::Applied((key, object)) => fact(one(key, Some(object))),
        watch::WatchEvent::Deleted((key, _)) => fact(one(key, None)),
        watch::WatchEvent::Unreadable(why) => {
            warn!(%why, "cannot read an object");
            key(&why.identity).map(|key| fact(one(key, None))).unwrap_or_default()
        }
        watch::WatchEvent::Bookmark(_) => Vec::new(),
    }
}

fn object_key(identity: &Identity) -> Option<ObjectKey> {
    let there = !identity.name.is_empty() && !identity.namespace.is_empty();
    there.then(|| ObjectKey::new(identity.namespace.as_str(), identity.name.as_str()))
}

fn name(identity: &Identity) -> Option<Text> {
    Some(identity.name.as_str()).filter(|name| !name.is_empty()).map(Text::from)
}
