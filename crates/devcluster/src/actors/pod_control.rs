//! Creates and deletes pods for the workload controllers. Records an Event for each, and updates the cache at once.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Client, Error, Resource, ResourceExt};
use serde_json::{Value, json};

use super::cache::{Key, ObjectCache};
use super::pods;
use super::recorder::Recorder;
use super::request::{self, Deleted, ErrorExt};

/// Number of parallel requests in one reconciliation.
const AT_ONCE: usize = 16;

#[derive(Clone)]
pub(crate) struct PodControl {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) pods: Arc<ObjectCache<Pod>>,
}

impl PodControl {
    pub(crate) fn new(client: Client, component: &'static str, pods: Arc<ObjectCache<Pod>>) -> Self {
        Self { recorder: Recorder::new(client.clone(), component), client, pods }
    }

    /// Creates one pod for its owner.
    pub(crate) async fn create<K: Resource>(
        &self,
        owner: &K,
        kind: &K::DynamicType,
        pod: &Value,
    ) -> Result<(), Error> {
        let namespace = owner.namespace().unwrap_or_default();
        match request::create::<Pod>(&self.client, &(), &namespace, pod).await {
            Ok(made) => {
                let message = format!("Created pod: {}", made.name_any());
                self.pods.wrote(made);
                self.recorder.normal(owner, kind, "SuccessfulCreate", &message).await;
                Ok(())
            }
            Err(error) => {
                // If the name is in use, it will become free, or the pod belongs to this owner: no Event is needed.
                if !error.is_namespace_ending() && !error.is_already_exists() {
                    let message = format!("Error creating: {}", error.message());
                    self.recorder.warn(owner, kind, "FailedCreate", &message).await;
                }
                Err(error)
            }
        }
    }

    /// Creates several pods. Stops after the first failure.
    pub(crate) async fn create_all<K: Resource>(
        &self,
        owner: &K,
        kind: &K::DynamicType,
        pods: &[Value],
    ) -> Result<(), Error> {
        let mut making = FuturesUnordered::new();
        for pod in pods {
            if making.len() >= AT_ONCE
                && let Some(made) = making.next().await
            {
                made?;
            }
            making.push(self.create(owner, kind, pod));
        }
        while let Some(made) = making.next().await {
            made?;
        }
        Ok(())
    }

    /// Deletes one pod for its owner. A pod that no longer exists is not an error.
    pub(crate) async fn delete<K: Resource>(
        &self,
        owner: &K,
        kind: &K::DynamicType,
        pod: &Pod,
    ) -> Result<(), Error> {
        let key = Key::of(pod);
        match request::delete::<Pod>(&self.client, &(), &key, &DeleteParams::default()).await {
            Ok(left) => {
                match left {
                    Deleted::Ending(pod) => self.pods.wrote(*pod),
                    Deleted::Gone => self.pods.removed(&key, pods::uid(pod)),
                }
                let message = format!("Deleted pod: {}", key.name);
                self.recorder.normal(owner, kind, "SuccessfulDelete", &message).await;
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => {
                let message = format!("Error deleting: {}", error.message());
                self.recorder.warn(owner, kind, "FailedDelete", &message).await;
                Err(error)
            }
        }
    }

    /// Deletes several pods. A failure for one pod does not stop the others.
    pub(crate) async fn delete_all<K: Resource>(
        &self,
        owner: &K,
        kind: &K::DynamicType,
        pods: &[Arc<Pod>],
    ) -> Result<(), Error> {
        let mut deleting = FuturesUnordered::new();
        let mut all = Ok(());
        for pod in pods {
            if deleting.len() >= AT_ONCE
                && let Some(deleted) = deleting.next().await
            {
                all = all.and(deleted);
            }
            deleting.push(self.delete(owner, kind, pod));
        }
        while let Some(deleted) = deleting.next().await {
            all = all.and(deleted);
        }
        all
    }

    /// Adopts orphans that match the selector, and releases pods that no longer match.
    pub(crate) async fn claim(&self, claims: &Claims, controller: &Value) -> Result<(), Error> {
        for pod in &claims.adopt {
            let mut owners: Vec<Value> = pod.owner_references().iter().map(|owner| json!(owner)).collect();
            owners.push(controller.clone());
            self.set_owners(pod, &owners).await?;
        }
        for pod in &claims.release {
            let kept = pod.owner_references().iter().filter(|owner| controller["uid"] != owner.uid.as_str());
            let kept: Vec<Value> = kept.map(|owner| json!(owner)).collect();
            self.set_owners(pod, &kept).await?;
        }
        Ok(())
    }

    async fn set_owners(&self, pod: &Pod, owners: &[Value]) -> Result<(), Error> {
        let owners = if owners.is_empty() { Value::Null } else { json!(owners) };
        let patch = json!({"metadata": {
            "uid": pods::uid(pod), "resourceVersion": pod.resource_version(), "ownerReferences": owners,
        }});
        match request::merge::<Pod>(&self.client, &(), &Key::of(pod), None, &patch).await {
            Ok(written) => {
                self.pods.wrote(written);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The pods of an owner, the pods that it adopts, and the pods that it releases.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) mine: Vec<Arc<Pod>>,
    pub(crate) adopt: Vec<Arc<Pod>>,
    pub(crate) release: Vec<Arc<Pod>>,
}

/// Sorts the pods of a namespace by their relation to this owner.
pub(crate) fn sort_claims(
    owner_uid: &str,
    owner_ending: bool,
    matches: impl Fn(&Pod) -> bool,
    pods: impl IntoIterator<Item = Arc<Pod>>,
) -> Claims {
    let mut claims = Claims::default();
    for pod in pods {
        match pods::controller_of(pod.as_ref()) {
            Some(controller) if controller.uid == owner_uid => {
                if matches(&pod) {
                    claims.mine.push(pod);
                } else if !owner_ending {
                    claims.release.push(pod);
                }
            }
            None if !owner_ending && pods::is_active(&pod) && matches(&pod) => claims.adopt.push(pod),
            _ => {}
        }
    }
    claims
}
