//! Watches to facts.
//!
//! One row per kind: how a list of it becomes a snapshot, and a change an input. An object that cannot be read is logged
//! and counts as not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::Client;
use kube::core::Resource;
use quorate_api::budget::StoredBudget;
use quorate_api::slim;
use quorate_engine::Snapshot;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{Budget, BudgetKey, Controller, Front, Input, Pod};
use quorate_engine::ledger::Event;
use quorate_intake::{Unreadable, budget, objects};
use quorate_kit::watch::{self, Listed, Source};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tracing::warn;

use crate::keeper::Keeper;
use crate::stored::{self, Stored};

/// Namespaces that the webhooks do not look at, besides Quorate's own.
pub(crate) const EXCLUDED: &str = "kube-system";

/// Starts all watches; they end when the set is dropped.
pub(crate) fn start(client: &Client, keeper: &Keeper, stored: &Arc<Stored>, own: &str) -> JoinSet<()> {
    let excluded: Arc<[String]> = [EXCLUDED.to_owned(), own.to_owned()].into();
    let mut feeds = Feeds { keeper: keeper.clone(), unsynced: Arc::default(), tasks: JoinSet::new() };
    let all = || client.clone();
    // Counted before the first one runs: none may believe to be the last.
    feeds.unsynced.store(7, Ordering::SeqCst);
    feeds.add(Source::all(all()), pods);
    let shelf = stored.clone();
    feeds.add(Source::all(all()), move |event| budgets(event, &shelf));
    feeds.add(Source::all(all()), move |event| namespaces(event, &excluded));
    feeds.add(Source::all(all()), |event| controllers(event, "apps", "ReplicaSet", objects::replica_set));
    feeds.add(Source::all(all()), |event| controllers(event, "apps", "StatefulSet", objects::stateful_set));
    feeds.add(Source::all(all()), |event| controllers(event, "apps", "Deployment", objects::deployment));
    feeds.add(Source::all(all()).optional(), |event| {
        controllers(event, "leaderworkerset.x-k8s.io", "LeaderWorkerSet", objects::leader_worker_set)
    });
    feeds.tasks
}

struct Feeds {
    keeper: Keeper,
    /// Kinds of which no list has been shown yet.
    unsynced: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Feeds {
    fn add<K>(
        &mut self,
        source: Source<K>,
        mut translate: impl FnMut(watch::Event<K>) -> Vec<Event> + Send + 'static,
    ) where
        K: DeserializeOwned + Send + 'static,
    {
        let (keeper, unsynced) = (self.keeper.clone(), self.unsynced.clone());
        let mut synced = false;
        self.tasks.spawn(watch::run(source, move |event| {
            let whole = matches!(event, watch::Event::Listed(_) | watch::Event::Absent);
            let first = whole && !synced;
            synced |= whole;
            let events = translate(event);
            let (keeper, unsynced) = (keeper.clone(), unsynced.clone());
            async move {
                for event in events {
                    keeper.tell(event).await;
                }
                // After its own list: whoever comes last knows that all lists are in.
                if first && unsynced.fetch_sub(1, Ordering::SeqCst) == 1 {
                    keeper.tell(Event::Synced).await;
                }
            }
        }));
    }
}

fn fact(input: Input) -> Vec<Event> {
    vec![Event::Fact(Box::new(input))]
}

/// What can be read of a list.
fn readable<K, T>(listed: &Listed<K>, read: impl Fn(&K) -> Result<T, Unreadable>) -> Vec<T> {
    listed.unreadable.iter().for_each(|why| warn!(%why, "an object cannot be decoded"));
    let logged = |object| read(object).inspect_err(|why| warn!(%why, "an object cannot be read")).ok();
    listed.objects.iter().filter_map(logged).collect()
}

fn pods(event: watch::Event<slim::Pod>) -> Vec<Event> {
    let gone = |uid: &str, version: Option<&str>| match version.and_then(objects::version) {
        Some(version) => fact(Input::PodGone(uid.into(), version)),
        None => Vec::new(),
    };
    match event {
        watch::Event::Listed(listed) => match objects::version(&listed.version) {
            Some(version) => {
                let pods: Vec<Pod> = readable(&listed, objects::pod);
                vec![Event::List(Snapshot::Pods(pods, version))]
            }
            None => Vec::new(),
        },
        watch::Event::Applied(pod) => match objects::pod(&pod) {
            Ok(pod) => fact(Input::Pod(pod)),
            Err(why) => {
                warn!(%why, "a pod cannot be read");
                let meta = &pod.metadata;
                gone(meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref())
            }
        },
        watch::Event::Deleted(pod) => {
            let meta = &pod.metadata;
            gone(meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref())
        }
        watch::Event::Unreadable(why) => {
            warn!(%why, "a pod cannot be decoded");
            gone(&why.identity.uid, Some(&why.identity.resource_version))
        }
        watch::Event::Bookmark(version) => {
            objects::version(&version).map(|version| fact(Input::PodsAt(version))).unwrap_or_default()
        }
        watch::Event::Absent => Vec::new(),
    }
}

fn budgets(event: watch::Event<StoredBudget>, stored: &Stored) -> Vec<Event> {
    let at = |version: &str| objects::version(version).map(Event::BudgetsAt);
    match event {
        watch::Event::Listed(listed) => {
            stored.retain(&listed.objects);
            listed.objects.iter().for_each(|object| stored.take(object));
            let budgets: Vec<Budget> = readable(&listed, budget::budget);
            let list = Event::List(Snapshot::Budgets(budgets));
            [Some(list), at(&listed.version)].into_iter().flatten().collect()
        }
        watch::Event::Applied(object) => {
            stored.take(&object);
            match budget::budget(&object) {
                Ok(budget) => fact(Input::Budget(budget)),
                Err(why) => {
                    warn!(%why, "a budget cannot be read");
                    Vec::new()
                }
            }
        }
        watch::Event::Deleted(object) => {
            let Some(key) = stored::key(&object) else { return Vec::new() };
            stored.remove(&key);
            fact(Input::BudgetGone(BudgetKey { object: key, front: Front::DisruptionBudget }))
        }
        watch::Event::Unreadable(why) => {
            warn!(%why, "a budget cannot be decoded");
            Vec::new()
        }
        watch::Event::Bookmark(version) => at(&version).into_iter().collect(),
        watch::Event::Absent => Vec::new(),
    }
}

fn namespaces(event: watch::Event<slim::Namespace>, excluded: &[String]) -> Vec<Event> {
    let read = |object: &slim::Namespace| objects::namespace(&object.metadata, excluded);
    match event {
        watch::Event::Listed(listed) => vec![Event::List(Snapshot::Namespaces(readable(&listed, read)))],
        watch::Event::Applied(object) => match read(&object) {
            Ok((name, namespace)) => fact(Input::Namespace(name, Some(namespace))),
            Err(_) => Vec::new(),
        },
        watch::Event::Deleted(object) => match read(&object) {
            Ok((name, _)) => fact(Input::Namespace(name, None)),
            Err(_) => Vec::new(),
        },
        watch::Event::Unreadable(_) | watch::Event::Bookmark(_) | watch::Event::Absent => Vec::new(),
    }
}

fn controllers<K: Resource>(
    event: watch::Event<K>,
    group: &str,
    kind: &str,
    read: impl Fn(&K) -> Result<Controller, Unreadable>,
) -> Vec<Event> {
    let gone = |uid: Option<&str>| uid.map(|uid| fact(Input::ControllerGone(uid.into()))).unwrap_or_default();
    match event {
        watch::Event::Listed(listed) => {
            let all = readable(&listed, read);
            vec![Event::List(Snapshot::Controllers(GroupKind::new(group, kind), all))]
        }
        watch::Event::Absent => {
            vec![Event::List(Snapshot::Controllers(GroupKind::new(group, kind), Vec::new()))]
        }
        watch::Event::Applied(object) => match read(&object) {
            Ok(controller) => fact(Input::Controller(controller)),
            // A scale that cannot be read is one that is not known.
            Err(why) => {
                warn!(%why, "a controller cannot be read");
                gone(object.meta().uid.as_deref())
            }
        },
        watch::Event::Deleted(object) => gone(object.meta().uid.as_deref()),
        watch::Event::Unreadable(why) => {
            warn!(%why, "a controller cannot be decoded");
            gone(Some(&why.identity.uid).filter(|uid| !uid.is_empty()).map(String::as_str))
        }
        watch::Event::Bookmark(_) => Vec::new(),
    }
}
