//! The kinds that the API server serves, as far as they matter here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error, ResourceExt as _};
use parking_lot::Mutex;
use quorate_api::slim::{CustomResourceDefinition, DefinedVersion, ReplicasPath};
use quorate_engine::basics::GroupKind;
use quorate_kit::Plain;
use quorate_kit::watch;
use tokio::sync::Notify;
use tracing::warn;

/// The versions of some API groups, the preferred one first.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    groups: BTreeMap<String, Vec<Version>>,
}

/// A version and its resources; `None` if they could not be listed.
type Version = (String, Option<Vec<APIResource>>);

/// The resource of a served kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Served {
    pub(super) resource: ApiResource,
    /// It has a `scale` subresource.
    pub(super) scales: bool,
}

/// Whether a kind is served.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    Served(Served),
    Nowhere,
    /// The API server does not answer now.
    Unknown,
}

impl Catalog {
    /// Lists the resources of these groups; the name of the core group is empty.
    ///
    /// # Errors
    /// The API server does not list its groups.
    pub(super) async fn discover(client: &Client, groups: &BTreeSet<String>) -> Result<Self, Error> {
        let all = in_time(client.list_api_groups()).await?.groups;
        let mut catalog = Self::default();
        for group in groups {
            let versions = match all.iter().find(|listed| listed.name == *group) {
                Some(listed) => versions(listed),
                None if group.is_empty() => vec!["v1".to_owned()],
                None => continue,
            };
            let mut answers = Vec::new();
            for version in versions {
                let resources = match group.is_empty() {
                    true => in_time(client.list_core_api_resources(&version)).await,
                    false => in_time(client.list_api_group_resources(&format!("{group}/{version}"))).await,
                };
                let answer = match resources {
                    Ok(list) => Some(list.resources),
                    // The version was removed in between.
                    Err(Error::Api(status)) if status.code == 404 => Some(Vec::new()),
                    Err(error) => {
                        warn!(group, version, error = %Plain(&error), "cannot list the resources of an API version");
                        None
                    }
                };
                answers.push((version, answer));
            }
            catalog.groups.insert(group.clone(), answers);
        }
        Ok(catalog)
    }

    /// Finds a kind in the first `wanted` version that has it. By default, the version that the API server prefers is
    /// first.
    pub(super) fn find(&self, kind: &GroupKind, wanted: Option<&[&str]>) -> Found {
        let Some(served) = self.groups.get(&*kind.group) else { return Found::Nowhere };
        let names: Vec<&str> = match wanted {
            Some(wanted) => wanted.to_vec(),
            None => served.iter().map(|(version, _)| version.as_str()).collect(),
        };
        for name in names {
            let Some((version, answer)) = served.iter().find(|(version, _)| version == name) else {
                continue;
            };
            let Some(resources) = answer else { return Found::Unknown };
            let found = resources.iter().find(|resource| {
                resource.kind == *kind.kind && resource.namespaced && !resource.name.contains('/')
            });
            let Some(found) = found else { continue };
            let scale = format!("{}/scale", found.name);
            let gvk = GroupVersionKind::gvk(&kind.group, version, &kind.kind);
            return Found::Served(Served {
                resource: ApiResource::from_gvk_with_plural(&gvk, &found.name),
                scales: resources.iter().any(|resource| resource.name == scale),
            });
        }
        Found::Nowhere
    }
}

/// Timeout of a discovery call.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(DISCOVERY_TIMEOUT, answer).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Service(format!("no answer within {} s", DISCOVERY_TIMEOUT.as_secs()).into())),
    }
}

fn versions(group: &APIGroup) -> Vec<String> {
    let preferred = group.preferred_version.as_ref().map(|version| version.version.clone());
    let mut versions: Vec<String> = group.versions.iter().map(|version| version.version.clone()).collect();
    versions.sort_by_key(|version| preferred.as_ref() != Some(version));
    versions
}

/// CustomResourceDefinitions: which versions they serve, and the replicas path of those that do not use the default.
#[derive(Default)]
pub(super) struct Definitions {
    /// By name of the definition.
    defined: Mutex<BTreeMap<String, Defined>>,
    /// The definitions were listed.
    listed: AtomicBool,
    /// Notified when the set of served kinds may have changed.
    pub(super) changed: Notify,
}

struct Defined {
    kind: GroupKind,
    served: BTreeSet<String>,
    paths: BTreeMap<String, ReplicasPath>,
}

impl Definitions {
    pub(super) fn take(&self, event: &watch::WatchEvent<CustomResourceDefinition>) {
        match event {
            watch::WatchEvent::Listed(listed) => {
                let all = listed.objects.iter().map(|definition| (definition.name_any(), read(definition)));
                *self.defined.lock() = all.collect();
                self.listed.store(true, Ordering::Relaxed);
            }
            watch::WatchEvent::Applied(definition) => {
                self.defined.lock().insert(definition.name_any(), read(definition));
            }
            watch::WatchEvent::Deleted(definition) => {
                drop(self.defined.lock().remove(&definition.name_any()));
            }
            watch::WatchEvent::Unreadable(why) => warn!(%why, "cannot read a CustomResourceDefinition"),
            watch::WatchEvent::Bookmark(_) => return,
        }
        self.changed.notify_one();
    }

    /// Whether the definitions were listed. Until then, a kind that discovery omits may exist.
    pub(super) fn are_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// The path of the number of replicas in a kind.
    pub(super) fn path(&self, kind: &GroupKind, version: &str) -> ReplicasPath {
        let defined = self.defined.lock();
        let path =
            defined.values().find(|defined| defined.kind == *kind).and_then(|of| of.paths.get(version));
        path.cloned().unwrap_or_default()
    }

    /// Whether a definition serves a kind, in one of the `wanted` versions if these are given.
    pub(super) fn serve(&self, kind: &GroupKind, wanted: Option<&[&str]>) -> bool {
        let is_wanted = |version: &String| wanted.is_none_or(|wanted| wanted.contains(&version.as_str()));
        let defined = self.defined.lock();
        defined.values().any(|defined| defined.kind == *kind && defined.served.iter().any(is_wanted))
    }
}

fn read(definition: &CustomResourceDefinition) -> Defined {
    let spec = &definition.spec;
    // A definition that is being deleted serves only what is left, and soon nothing.
    let ends = definition.metadata.deletion_timestamp.is_some();
    let served = spec.versions.iter().filter(|version| version.served && !ends);
    let path = |version: &DefinedVersion| {
        let path = ReplicasPath::new(definition.replicas_path(&version.name)?);
        (path != ReplicasPath::default()).then(|| (version.name.clone(), path))
    };
    Defined {
        kind: GroupKind::new(spec.group.as_str(), spec.names.kind.as_str()),
        served: served.map(|version| version.name.clone()).collect(),
        paths: spec.versions.iter().filter_map(path).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(names: &[(&str, &str)]) -> Option<Vec<APIResource>> {
        let resource = |(name, kind): &(&str, &str)| APIResource {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            namespaced: true,
            ..APIResource::default()
        };
        Some(names.iter().map(resource).collect())
    }

    fn catalog(versions: &[(&str, Option<Vec<APIResource>>)]) -> Catalog {
        let versions = versions.iter().map(|(name, answer)| ((*name).to_owned(), answer.clone()));
        Catalog { groups: [("g".to_owned(), versions.collect())].into() }
    }

    fn version(found: &Found) -> &str {
        match found {
            Found::Served(served) => &served.resource.version,
            Found::Nowhere => "nowhere",
            Found::Unknown => "unknown",
        }
    }

    #[test]
    fn the_first_version_that_has_the_kind_is_found() {
        let (a, b) =
            (resources(&[("things", "Thing")]), resources(&[("things", "Thing"), ("things/scale", "Scale")]));
        let thing = GroupKind::new("g", "Thing");
        let both = catalog(&[("v1", a.clone()), ("v2", b.clone())]);
        assert_eq!(version(&both.find(&thing, Some(&["v3", "v2", "v1"]))), "v2");
        let Found::Served(preferred) = both.find(&thing, None) else { panic!("served") };
        assert_eq!((preferred.resource.plural.as_str(), preferred.scales), ("things", false));
        let Found::Served(second) = both.find(&thing, Some(&["v2"])) else { panic!("served") };
        assert!(second.scales);
        assert_eq!(version(&catalog(&[("v1", resources(&[])), ("v2", b)]).find(&thing, None)), "v2");
        assert_eq!(version(&both.find(&GroupKind::new("g", "Scale"), None)), "nowhere", "a subresource");
        assert_eq!(version(&both.find(&GroupKind::new("h", "Thing"), None)), "nowhere");
        assert_eq!(version(&catalog(&[("v1", None), ("v2", a)]).find(&thing, None)), "unknown");
    }
}
