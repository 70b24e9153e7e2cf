//! Looks up owners and the templates of controllers.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject, GetParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, Request, Resource as _};
use kube::{Client, Error};
use parking_lot::Mutex;
use quorate_api::slim::{PodTemplate, PodTemplateMeta};
use quorate_intake::admission::Creator;
use quorate_intake::template;
use quorate_kit::Plain;
use serde::Deserialize;
use tracing::warn;

/// How long the resource of a kind is cached.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// Size limit of the cache: more kinds than any cluster has.
const CACHE_SIZE: usize = 1000;

/// Reads owners and controllers. Clones share the cache.
#[derive(Clone)]
pub(super) struct Lookup {
    client: Client,
    kinds: Arc<Mutex<Kinds>>,
}

/// The cached resources, by API version and kind, and since when.
type Kinds = HashMap<(String, String), (Instant, Kind)>;

/// The resource of a kind.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    resource: ApiResource,
    namespaced: bool,
}

impl Kind {
    /// The path of its objects, in this namespace if the kind is namespaced.
    fn path(&self, namespace: &str) -> String {
        DynamicObject::url_path(&self.resource, self.namespaced.then_some(namespace))
    }
}

/// Why an object cannot be an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// The API server does not serve the kind.
    NotServed { api_version: String, kind: String },
    /// There is no object of that name in the namespace, or, without a namespace, in the cluster.
    Missing(Option<String>),
    /// The object of that name has another UID.
    Another { uid: String },
    /// The object is being deleted.
    Ending,
    /// Quorate has no permission to read the object.
    Forbidden { resource: String },
    /// The API server gave no answer, for this reason.
    Unknown(String),
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed { api_version, kind } => write!(
                f,
                "{api_version} has no kind {kind}. Write apiVersion and kind as `kubectl api-resources` shows them."
            ),
            Self::Missing(Some(namespace)) => write!(
                f,
                "it does not exist in namespace {namespace}. Create it there first: an owner must be in the \
                 namespace of the pod."
            ),
            Self::Missing(None) => f.write_str("it does not exist in the cluster. Create it first."),
            Self::Another { uid } => {
                write!(
                    f,
                    "the object of this name has another UID, {uid}. Write the UID of the owner that you mean."
                )
            }
            Self::Ending => f.write_str("it is being deleted. Name an owner that stays, or none."),
            Self::Forbidden { resource } => write!(
                f,
                "Quorate may not read {resource}. Create a ClusterRole with get on them and the label \
                 rbac.quorate.dev/aggregate-to-server: \"true\"."
            ),
            Self::Unknown(why) => {
                write!(f, "it could not be looked up ({why}). Quorate retries for each new pod.")
            }
        }
    }
}

/// A controller: its identity, and its pod template.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Templated {
    metadata: Identity,
    spec: TemplatedSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplatedSpec {
    template: PodTemplate,
}

/// The UID of an object, and whether it is being deleted.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Identity {
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    metadata: Identity,
}

impl Lookup {
    pub(super) fn new(client: Client) -> Self {
        Self { client, kinds: Arc::default() }
    }

    /// The metadata of the pod template of a controller; `None` if the controller is gone or has another UID.
    pub(super) async fn template(
        &self,
        namespace: &str,
        controller: &OwnerReference,
    ) -> Result<Option<PodTemplateMeta>, Absence> {
        if let Some(flaw) = template::misnamed(controller) {
            return Err(Absence::Unknown(flaw.to_string()));
        }
        let kind = self.kind(&controller.api_version, &controller.kind).await?;
        let request = Request::new(kind.path(namespace)).get(&controller.name, &GetParams::default());
        let request = request.map_err(|error| Absence::Unknown(error.to_string()))?;
        match self.client.request::<Templated>(request).await {
            Ok(found) if found.metadata.uid == controller.uid => Ok(Some(found.spec.template.metadata)),
            Ok(_) => Ok(None),
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(absence(&kind, error)),
        }
    }

    /// Finds an owner that exists and is not being deleted.
    pub(super) async fn find(&self, namespace: &str, owner: &OwnerReference) -> Result<Kind, Absence> {
        let kind = self.kind(&owner.api_version, &owner.kind).await?;
        let request = Request::new(kind.path(namespace)).get_metadata(&owner.name, &GetParams::default());
        let request = request.map_err(|error| Absence::Unknown(error.to_string()))?;
        match self.client.request::<Metadata>(request).await {
            Ok(Metadata { metadata: found }) if found.uid != owner.uid => {
                Err(Absence::Another { uid: found.uid })
            }
            Ok(Metadata { metadata: found }) if found.deletion_timestamp.is_some() => Err(Absence::Ending),
            Ok(_) => Ok(kind),
            Err(Error::Api(status)) if status.code == 404 => {
                Err(Absence::Missing(kind.namespaced.then(|| namespace.to_owned())))
            }
            Err(error) => Err(absence(&kind, error)),
        }
    }

    /// Whether the creator of a pod may block the deletion of this owner.
    pub(super) async fn may_block(
        &self,
        creator: &Creator,
        namespace: &str,
        kind: &Kind,
        name: &str,
    ) -> bool {
        let resource = &kind.resource;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(creator.user.clone()),
                uid: creator.uid.clone(),
                groups: Some(creator.groups.clone()),
                extra: Some(creator.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(resource.group.clone()),
                    version: Some(resource.version.clone()),
                    resource: Some(resource.plural.clone()),
                    subresource: Some("finalizers".to_owned()),
                    verb: Some("update".to_owned()),
                    name: Some(name.to_owned()),
                    namespace: kind.namespaced.then(|| namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) => answer.status.is_some_and(|status| status.allowed),
            Err(error) => {
                warn!(error = %Plain(&error), "cannot check the permission to block a deletion: it counts as missing");
                false
            }
        }
    }

    /// The resource of a kind, from the cache or from discovery.
    async fn kind(&self, api_version: &str, name: &str) -> Result<Kind, Absence> {
        let key = (api_version.to_owned(), name.to_owned());
        if let Some((at, kind)) = self.kinds.lock().get(&key)
            && at.elapsed() < CACHE_TTL
        {
            return Ok(kind.clone());
        }
        let not_served = || Absence::NotServed { api_version: api_version.to_owned(), kind: name.to_owned() };
        let listed = match api_version.split_once('/') {
            Some(_) => self.client.list_api_group_resources(api_version).await,
            None => self.client.list_core_api_resources(api_version).await,
        };
        let resources = match listed {
            Ok(list) => list.resources,
            Err(Error::Api(status)) if status.code == 404 => return Err(not_served()),
            Err(error) => return Err(Absence::Unknown(Plain(&error).to_string())),
        };
        let found = resources.into_iter().find(|found| found.kind == name && !found.name.contains('/'));
        let found = found.ok_or_else(not_served)?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, name);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &found.name);
        let kind = Kind { resource, namespaced: found.namespaced };
        let mut kinds = self.kinds.lock();
        if kinds.len() >= CACHE_SIZE {
            kinds.clear();
        }
        kinds.insert(key, (Instant::now(), kind.clone()));
        Ok(kind)
    }
}

fn absence(kind: &Kind, error: Error) -> Absence {
    match error {
        Error::Api(status) if status.code == 403 => {
            let ApiResource { plural, group, .. } = &kind.resource;
            let dot = if group.is_empty() { "" } else { "." };
            Absence::Forbidden { resource: format!("{plural}{dot}{group}") }
        }
        error => Absence::Unknown(Plain(&error).to_string()),
    }
}
