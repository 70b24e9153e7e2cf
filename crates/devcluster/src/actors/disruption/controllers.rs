//! The expected number of pods, from the scale of the pods' controllers.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Error, ResourceExt};
use parking_lot::Mutex;

use super::super::cache::{Key, ObjectCache};
use super::super::kinds::{Deployment, ReplicaSet, StatefulSet};
use super::super::pods;
use super::super::request::ErrorExt;

/// The sources for the scales of controllers.
pub(super) struct Controllers {
    pub(super) client: Client,
    pub(super) replica_sets: Arc<ObjectCache<ReplicaSet>>,
    pub(super) deployments: Arc<ObjectCache<Deployment>>,
    pub(super) stateful_sets: Arc<ObjectCache<StatefulSet>>,
    pub(super) resources: Mutex<BTreeMap<(String, String), ApiResource>>,
}

/// The sum of the scales, and the number of pods without a controller.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) scale: i32,
    pub(super) unmanaged: usize,
}

fn group(owner: &OwnerReference) -> &str {
    owner.api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

fn is_of(owner: &OwnerReference, kind: &str, groups: &[&str]) -> bool {
    owner.kind == kind && groups.contains(&group(owner))
}

impl Controllers {
    /// Sums the scales of the distinct controllers of these pods. The error becomes the message in the budget's status.
    pub(super) async fn tally(&self, namespace: &str, selected: &[Arc<Pod>]) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let mut read: BTreeMap<String, ()> = BTreeMap::new();
        let mut counted: BTreeMap<String, i32> = BTreeMap::new();
        for pod in selected {
            let Some(owner) = pods::controller_of(pod.as_ref()) else {
                tally.unmanaged += 1;
                continue;
            };
            if read.insert(owner.uid.clone(), ()).is_some() {
                continue;
            }
            match self.find(namespace, owner).await? {
                Some((uid, replicas)) => counted.insert(uid, replicas),
                None => return Err(format!("found no controllers for pod {:?}", pod.name_any())),
            };
        }
        tally.scale = counted.values().sum();
        Ok(tally)
    }

    /// The UID and the scale of a pod's controller. For a ReplicaSet with a Deployment, it is the Deployment.
    async fn find(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<(String, i32)>, String> {
        let apps = ["apps", "extensions"];
        if is_of(owner, "ReplicaSet", &apps)
            && let Some(set) = same(self.replica_sets.get(&Key::new(namespace, &owner.name)), owner)
        {
            match pods::controller_of(set.as_ref()) {
                Some(above) if is_of(above, "Deployment", &apps) => {
                    if let Some(deployment) =
                        same(self.deployments.get(&Key::new(namespace, &above.name)), above)
                    {
                        return Ok(Some((above.uid.clone(), deployment.spec.replicas)));
                    }
                }
                Some(above) if above.kind == "Deployment" => {}
                _ => return Ok(Some((owner.uid.clone(), set.spec.replicas))),
            }
        }
        if is_of(owner, "StatefulSet", &["apps"])
            && let Some(set) = same(self.stateful_sets.get(&Key::new(namespace, &owner.name)), owner)
        {
            return Ok(Some((owner.uid.clone(), set.spec.replicas)));
        }
        self.read_scale(namespace, owner).await
    }

    /// Reads the scale subresource of any other kind. Does not cache it, as the real controller does not.
    async fn read_scale(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<(String, i32)>, String> {
        let resource = self.resource(owner).await?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        match api.get_scale(&owner.name).await {
            Ok(scale) if scale.metadata.uid.as_deref() == Some(owner.uid.as_str()) => {
                let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
                Ok(Some((owner.uid.clone(), replicas)))
            }
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => {
                if self.object_is_there(&api, owner).await.map_err(|error| error.message())? {
                    return Err(format!(
                        "{}.{} does not implement the scale subresource",
                        resource.plural, resource.group
                    ));
                }
                Ok(None)
            }
            Err(error) => Err(error.message()),
        }
    }

    async fn object_is_there(&self, api: &Api<DynamicObject>, owner: &OwnerReference) -> Result<bool, Error> {
        let found = api.get_metadata_opt(&owner.name).await?;
        Ok(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(owner.uid.as_str())))
    }

    async fn resource(&self, owner: &OwnerReference) -> Result<ApiResource, String> {
        let name = (owner.api_version.clone(), owner.kind.clone());
        if let Some(known) = self.resources.lock().get(&name) {
            return Ok(known.clone());
        }
        let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        match kube::discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, _)) => {
                self.resources.lock().insert(name, resource.clone());
                Ok(resource)
            }
            Err(_) => Err(format!("no matches for kind {:?} in version {:?}", owner.kind, owner.api_version)),
        }
    }
}

fn same<K: kube::Resource>(found: Option<Arc<K>>, owner: &OwnerReference) -> Option<Arc<K>> {
    found.filter(|found| found.meta().uid.as_deref() == Some(owner.uid.as_str()))
}
