//! Deletion of namespaces: deletes all objects in a terminating namespace, then removes the namespace's finalizer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, Client, Error, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, run};
use super::identities::controller;
use super::queue::Queue;
use super::request::{self, ErrorExt};

type Meta = PartialObjectMeta<DynamicObject>;

/// The finalizer in `spec.finalizers`. It stays while the namespace may still contain objects.
const FINALIZER: &str = "kubernetes";
/// Interval of checks for objects that are still terminating.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long discovery results are cached. A newer kind may be missed once, but not twice.
const DISCOVERED_FOR: Duration = Duration::from_secs(5);

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(&controller("namespace-controller"));
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        client,
        namespaces: context.view.namespaces().clone(),
        discovered: Mutex::default(),
    });
    let wake = queue.clone();
    reconciler.namespaces.listen(move |_, after| {
        if let Some(namespace) = after.filter(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            wake.add(Key::of(namespace.as_ref()));
        }
    });
    context.tasks.spawn(run("namespace", queue, move |key| {
        let reconciler = reconciler.clone();
        async move { reconciler.reconcile(&key).await }
    }));
}

struct Reconciler {
    client: Client,
    namespaces: Arc<ObjectCache<Namespace>>,
    discovered: Mutex<Option<(Instant, Arc<Vec<Kind>>)>>,
}

struct Kind {
    resource: ApiResource,
    /// Whether the kind supports `deletecollection`.
    at_once: bool,
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(namespace) = self.namespaces.get(key) else { return Ok(None) };
        let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.clone()).unwrap_or_default();
        let ending = namespace.metadata.deletion_timestamp.is_some();
        if !ending || !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            return Ok(None);
        }
        let mut left = 0;
        for kind in self.kinds().await?.iter() {
            left += self.empty(&key.name, kind).await?;
        }
        if left > 0 {
            return Ok(Some(RECHECK_INTERVAL));
        }
        let kept: Vec<_> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        let mut whole = serde_json::to_value(namespace.as_ref()).map_err(Error::SerdeError)?;
        whole["apiVersion"] = json!("v1");
        whole["kind"] = json!("Namespace");
        whole["spec"]["finalizers"] = json!(kept);
        match request::replace::<Namespace>(&self.client, &(), key, Some("finalize"), &whole).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }

    async fn kinds(&self) -> Result<Arc<Vec<Kind>>, Error> {
        if let Some((since, kinds)) = self.discovered.lock().as_ref()
            && since.elapsed() < DISCOVERED_FOR
        {
            return Ok(kinds.clone());
        }
        let discovery = Discovery::new(self.client.clone()).run().await?;
        let kinds = discovery.groups().flat_map(kube::discovery::ApiGroup::recommended_resources);
        let kinds = kinds.filter(|(_, can)| {
            can.scope == Scope::Namespaced
                && can.supports_operation(verbs::LIST)
                && can.supports_operation(verbs::DELETE)
        });
        let kinds = kinds.map(|(resource, can)| Kind {
            resource,
            at_once: can.supports_operation(verbs::DELETE_COLLECTION),
        });
        let kinds = Arc::new(kinds.collect::<Vec<_>>());
        *self.discovered.lock() = Some((Instant::now(), kinds.clone()));
        Ok(kinds)
    }

    /// Deletes all objects of a kind. Returns the number of objects that existed before.
    async fn empty(&self, namespace: &str, kind: &Kind) -> Result<usize, Error> {
        let api: Api<Meta> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        let present = match api.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // The kind was removed after discovery.
            Err(error) if error.is_not_found() => return Ok(0),
            Err(error) => return Err(error),
        };
        let not_deleted =
            present.iter().filter(|object| object.metadata.deletion_timestamp.is_none()).count();
        if not_deleted > 0 && kind.at_once {
            api.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        } else if not_deleted > 0 {
            for object in &present {
                match api.delete(&object.name_any(), &DeleteParams::background()).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(present.len())
    }
}
