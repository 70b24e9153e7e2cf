//! Garbage collection by owner references, for every kind that can be listed, watched and deleted.
//!
//! Background: an object is deleted when all its owners are gone. Foreground: an owner with the finalizer
//! `foregroundDeletion` waits for its blocking dependents, which are deleted first. Orphan: the dependents lose the
//! reference, then the owner is deleted. Before each deletion, the collector reads the object from the API server, and
//! also the owners that are not in the caches.

mod graph;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DeleteParams;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};
use kube::runtime::utils::Backoff as _;
use kube::{Api, Client, Error, ResourceExt};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::ActorContext;
use super::cache::{ObjectCache, fill};
use super::identities::controller;
use super::queue::{Outcome, Queue, backoff};
use super::request::{self, ErrorExt};
use super::view::TaskGroup;
use graph::{FOREGROUND, GcAction, Graph, ORPHAN, Object, gc_action};

type Meta = PartialObjectMeta<DynamicObject>;

/// Number of objects that are processed in parallel.
const AT_ONCE: usize = 16;
/// Delay of the search for new kinds after a definition changed. It doubles with each search…
const SOON: Duration = Duration::from_millis(250);
/// …up to this interval, and continues forever: an API server can get new kinds in other ways, too.
const AT_LEAST_EVERY: Duration = Duration::from_secs(30);

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(&controller("generic-garbage-collector"));
    let queue: Arc<Queue<String>> = Queue::new();
    let collector = Arc::new(Collector {
        client: client.clone(),
        graph: Mutex::default(),
        kinds: RwLock::default(),
        queue: queue.clone(),
    });
    let definitions: Arc<ObjectCache<PartialObjectMeta<CustomResourceDefinition>>> =
        Arc::new(ObjectCache::new(|_| None));
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    definitions.listen(move |_, _| notify.notify_one());
    context.tasks.spawn(fill(definitions, Api::all(client)));
    let (tasks, finding) = (context.tasks.clone(), collector.clone());
    context.tasks.spawn(async move {
        let mut pauses = backoff(SOON, AT_LEAST_EVERY);
        loop {
            if finding.find_kinds(&tasks).await {
                pauses.reset();
            }
            let pause = pauses.next().unwrap_or(AT_LEAST_EVERY);
            if tokio::time::timeout(pause, changed.notified()).await.is_ok() {
                pauses.reset();
            }
        }
    });
    context.tasks.spawn(queue.work(AT_ONCE, move |uid| {
        let collector = collector.clone();
        async move { collector.process(&uid).await }
    }));
}

struct Collector {
    client: Client,
    graph: Mutex<Graph>,
    /// By group and kind: several versions of a kind are one kind.
    kinds: RwLock<BTreeMap<(String, String), Kind>>,
    queue: Arc<Queue<String>>,
}

#[derive(Clone)]
struct Kind {
    resource: Arc<ApiResource>,
    namespaced: bool,
    cache: Arc<ObjectCache<Meta>>,
    tasks: TaskGroup,
}

impl Collector {
    /// Starts watches for new kinds, and ends the watches of removed kinds. Returns whether it found new kinds.
    async fn find_kinds(self: &Arc<Self>, tasks: &TaskGroup) -> bool {
        let discovery = match Discovery::new(self.client.clone()).run().await {
            Ok(discovery) => discovery,
            Err(error) => {
                tracing::debug!(%error, "garbage collector cannot discover the kinds yet");
                return false;
            }
        };
        let found: BTreeMap<_, _> = discovery
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
            .filter(|(resource, can)| is_collectable(resource, can))
            .map(|(resource, can)| {
                ((resource.group.clone(), resource.kind.clone()), (resource, can.scope == Scope::Namespaced))
            })
            .collect();
        let mut changed = false;
        let mut kinds = self.kinds.write();
        kinds.retain(|name, kind| {
            let stays = found.contains_key(name);
            if !stays {
                kind.tasks.end();
            }
            stays
        });
        for (name, (resource, namespaced)) in found {
            if kinds.contains_key(&name) {
                continue;
            }
            changed = true;
            let kind = Kind {
                resource: Arc::new(resource),
                namespaced,
                cache: Arc::new(ObjectCache::new(|_| None)),
                tasks: tasks.child(),
            };
            let (of, resource) = (Arc::downgrade(self), kind.resource.clone());
            kind.cache.listen(move |before, after| {
                if let Some(collector) = of.upgrade() {
                    collector.take_in(&resource, before, after);
                }
            });
            let api: Api<Meta> = Api::all_with(self.client.clone(), kind.resource.as_ref());
            kind.tasks.spawn(fill(kind.cache.clone(), api));
            kinds.insert(name, kind);
        }
        changed
    }

    fn take_in(&self, kind: &Arc<ApiResource>, before: Option<&Arc<Meta>>, after: Option<&Arc<Meta>>) {
        let mut graph = self.graph.lock();
        let mut affected = std::collections::BTreeSet::new();
        if let Some(before) = before
            && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
        {
            affected.extend(graph.remove(before.metadata.uid.as_deref().unwrap_or_default()));
        }
        if let Some(after) = after {
            let uid = after.metadata.uid.as_deref().unwrap_or_default();
            affected.extend(graph.insert(uid, Object::new(kind, &after.metadata)));
        }
        drop(graph);
        for uid in affected {
            self.queue.add(uid);
        }
    }

    async fn process(&self, uid: &str) -> Outcome {
        // Without this wait, a dependent that is not yet in a cache would be missed.
        let unfilled = |kind: &&Kind| !kind.cache.is_filled();
        let caches: Vec<_> =
            self.kinds.read().values().filter(unfilled).map(|kind| kind.cache.clone()).collect();
        for cache in caches {
            // A kind that cannot be listed must not block all others.
            let _ = tokio::time::timeout(Duration::from_secs(2), cache.filled()).await;
        }
        let Some(object) = self.graph.lock().get(uid).cloned() else { return Outcome::Done };
        match self.collect(uid, &object).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                tracing::debug!(%error, object = %object.key, kind = object.kind.kind, "garbage collection failed, retrying");
                Outcome::Failed
            }
        }
    }

    fn api(&self, kind: &ApiResource, namespace: &str) -> Api<Meta> {
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), kind)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, kind)
        }
    }

    async fn collect(&self, uid: &str, seen: &Object) -> Result<(), Error> {
        let Some(live) = self.api(&seen.kind, &seen.key.namespace).get_opt(&seen.key.name).await? else {
            return self.vanished(uid);
        };
        if live.metadata.uid.as_deref() != Some(uid) {
            return self.vanished(uid);
        }
        let object = Object::new(&seen.kind, &live.metadata);
        let version = live.resource_version();
        if object.sets_dependents_free() {
            return self.set_free(uid, &object, version.as_deref()).await;
        }
        if object.waits_for_dependents() {
            return self.wait_for_dependents(uid, &object, version.as_deref()).await;
        }
        if object.ending {
            return Ok(());
        }
        let exists = self.missing_owners(&object).await?;
        let gc_action = {
            let graph = self.graph.lock();
            gc_action(
                graph.classify(&object.owners, &exists),
                !graph.dependents(uid).is_empty(),
                &object.finalizers,
            )
        };
        match gc_action {
            GcAction::Keep => Ok(()),
            GcAction::KeepOwners(owners) => {
                self.patch(&object, json!({"ownerReferences": owners}), uid, version.as_deref()).await
            }
            GcAction::Delete { foreground } => {
                let policy = if foreground { DeleteParams::foreground() } else { DeleteParams::background() };
                let params = policy.preconditions(request::only(uid));
                match request::delete::<Meta>(&self.client, &object.kind, &object.key, &params).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    other => other.map(|_| ()),
                }
            }
        }
    }

    /// Removes an object that no longer exists. The watch has missed its deletion or will report it soon; its
    /// dependents need not wait for that.
    fn vanished(&self, uid: &str) -> Result<(), Error> {
        let affected = self.graph.lock().remove(uid);
        for dependent in affected {
            self.queue.add(dependent);
        }
        Ok(())
    }

    /// Reads the owners that are not in the graph.
    async fn missing_owners(&self, object: &Object) -> Result<BTreeMap<String, bool>, Error> {
        let mut exists = BTreeMap::new();
        for owner in &object.owners {
            if self.graph.lock().get(&owner.uid).is_some() {
                continue;
            }
            exists.insert(owner.uid.clone(), self.owner_exists(object, owner).await?);
        }
        Ok(exists)
    }

    async fn owner_exists(&self, object: &Object, owner: &OwnerReference) -> Result<bool, Error> {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let kind = self.kinds.read().get(&(group.to_owned(), owner.kind.clone())).cloned();
        // If the owner's kind is not served, its objects may return with it. A cluster-scoped object cannot have a
        // namespaced owner; such a reference is ignored.
        let Some(kind) = kind else { return Ok(true) };
        if kind.namespaced && object.key.namespace.is_empty() {
            return Ok(true);
        }
        let namespace = if kind.namespaced { object.key.namespace.as_str() } else { "" };
        let found = self.api(&kind.resource, namespace).get_opt(&owner.name).await?;
        Ok(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(owner.uid.as_str())))
    }

    async fn wait_for_dependents(
        &self,
        uid: &str,
        object: &Object,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let blocking = self.graph.lock().blocking(uid);
        if blocking.is_empty() {
            return self.drop_finalizer(object, FOREGROUND, uid, version).await;
        }
        for dependent in blocking {
            let ending = self.graph.lock().get(&dependent).is_some_and(|object| object.ending);
            if !ending {
                self.queue.add(dependent);
            }
        }
        Ok(())
    }

    async fn set_free(&self, uid: &str, object: &Object, version: Option<&str>) -> Result<(), Error> {
        let dependents = self.graph.lock().dependents(uid);
        for dependent in dependents {
            let Some(other) = self.graph.lock().get(&dependent).cloned() else { continue };
            let Some(live) = self.api(&other.kind, &other.key.namespace).get_opt(&other.key.name).await?
            else {
                continue;
            };
            let owners: Vec<_> = live.owner_references().iter().filter(|owner| owner.uid != uid).collect();
            if owners.len() < live.owner_references().len() {
                let patch = json!({"ownerReferences": owners});
                self.patch(&other, patch, &dependent, live.metadata.resource_version.as_deref()).await?;
            }
        }
        self.drop_finalizer(object, ORPHAN, uid, version).await
    }

    async fn drop_finalizer(
        &self,
        object: &Object,
        finalizer: &str,
        uid: &str,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let kept: Vec<_> = object.finalizers.iter().filter(|kept| *kept != finalizer).collect();
        self.patch(object, json!({"finalizers": kept}), uid, version).await
    }

    async fn patch(
        &self,
        object: &Object,
        mut metadata: Value,
        uid: &str,
        version: Option<&str>,
    ) -> Result<(), Error> {
        metadata["uid"] = json!(uid);
        metadata["resourceVersion"] = json!(version);
        let patch = json!({"metadata": metadata});
        match request::merge::<Meta>(&self.client, &object.kind, &object.key, None, &patch).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// Whether the collector watches this kind. Events are excluded: they have no owners and no dependents, and are many.
fn is_collectable(resource: &ApiResource, can: &ApiCapabilities) -> bool {
    resource.kind != "Event"
        && [verbs::LIST, verbs::WATCH, verbs::DELETE].iter().all(|verb| can.supports_operation(verb))
}
