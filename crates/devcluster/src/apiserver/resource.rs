//! The served resources, their versions, and the form of an object in each version.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::builtin::BuiltIn;
use super::crd::CustomType;
use super::failure::{About, Failure};
use super::store::{StoredObject, TableId};

/// One resource of one group, in all its versions.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    /// Served versions, the preferred one first.
    pub(crate) versions: Vec<String>,
    /// The version in which objects are stored.
    pub(crate) storage_version: String,
    pub(crate) table: TableId,
    pub(crate) rules: ResourceRules,
}

/// The source of a resource's rules.
#[derive(Debug)]
pub(crate) enum ResourceRules {
    BuiltIn(&'static BuiltIn),
    Custom(Arc<CustomType>),
}

/// The metadata that a status write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusMeta {
    /// Labels and annotations, as for pods and nodes.
    Free,
    /// Annotations only; labels do not change.
    KeepLabels,
    /// No metadata.
    KeepAll,
}

/// A resource in the version of a request.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) resource: Arc<Resource>,
    pub(crate) version: String,
}

impl Resource {
    pub(crate) fn about(&self) -> About<'_> {
        About { group: &self.group, resource: &self.plural }
    }

    pub(crate) fn builtin(&self) -> Option<&'static BuiltIn> {
        match &self.rules {
            ResourceRules::BuiltIn(builtin) => Some(builtin),
            ResourceRules::Custom(_) => None,
        }
    }

    pub(crate) fn custom(&self) -> Option<&Arc<CustomType>> {
        match &self.rules {
            ResourceRules::Custom(custom) => Some(custom),
            ResourceRules::BuiltIn(_) => None,
        }
    }

    /// Whether this is the built-in resource with this group and plural.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural && self.builtin().is_some()
    }

    pub(crate) fn is_pods(&self) -> bool {
        self.is("", "pods")
    }

    /// Whether a PUT without a resource version is accepted.
    pub(crate) fn unconditional_update(&self) -> bool {
        self.builtin().is_some_and(|b| b.unconditional_update)
    }

    /// Whether a PUT to a name that does not exist creates the object.
    pub(crate) fn create_on_update(&self) -> bool {
        self.builtin().is_some_and(|b| b.create_on_update)
    }

    /// Whether `metadata.generation` counts the changes of the desired state.
    pub(crate) fn counts_generations(&self) -> bool {
        self.builtin().is_none_or(|b| b.generation)
    }

    /// Whether the status has its own subresource, and which metadata a status write may change.
    pub(crate) fn status_rule(&self, version: &str) -> Option<StatusMeta> {
        match &self.rules {
            ResourceRules::BuiltIn(builtin) => builtin.status,
            ResourceRules::Custom(custom) => {
                custom.version(version).filter(|v| v.has_status).map(|_| StatusMeta::KeepAll)
            }
        }
    }

    /// The paths that a field selector may use.
    pub(crate) fn selectable_fields(&self, version: &str) -> Vec<&str> {
        match &self.rules {
            ResourceRules::BuiltIn(builtin) => builtin.fields.to_vec(),
            ResourceRules::Custom(custom) => custom
                .version(version)
                .map(|v| v.selectable_fields.iter().map(String::as_str).collect())
                .unwrap_or_default(),
        }
    }

    /// The names of the subresources of a version.
    pub(crate) fn subresources(&self, version: &str) -> Vec<&'static str> {
        let mut all = Vec::new();
        if self.status_rule(version).is_some() {
            all.push("status");
        }
        match &self.rules {
            ResourceRules::BuiltIn(builtin) => all.extend(builtin.subresources),
            ResourceRules::Custom(custom) => {
                if custom.version(version).is_some_and(|v| v.scale.is_some()) {
                    all.push("scale");
                }
            }
        }
        all
    }
}

impl Served {
    pub(crate) fn api_version(&self) -> String {
        group_version(&self.resource.group, &self.version)
    }

    fn is_events_v1(&self) -> bool {
        self.resource.group == "events.k8s.io"
    }

    /// Whether the stored bytes can be sent unchanged.
    fn is_stored_form(&self, value: &Value) -> bool {
        // The definition may have had another storage version when this object was written.
        !self.is_events_v1()
            && (self.resource.builtin().is_some() || value["apiVersion"] == self.api_version())
    }

    /// A stored object in this version.
    pub(crate) fn present(&self, stored: &StoredObject) -> Value {
        self.present_value(stored.value.clone())
    }

    /// Converts an object from stored form to this version.
    pub(crate) fn present_value(&self, mut value: Value) -> Value {
        if self.is_stored_form(&value) {
            return value;
        }
        if self.is_events_v1() {
            super::events::to_events_v1(&mut value);
        }
        value["apiVersion"] = self.api_version().into();
        value
    }

    /// The bytes of a stored object in this version.
    pub(crate) fn bytes(&self, stored: &StoredObject) -> Bytes {
        if self.is_stored_form(&stored.value) {
            return stored.bytes.clone();
        }
        serde_json::to_vec(&self.present(stored)).map(Bytes::from).unwrap_or_default()
    }

    /// Converts an object from this version to stored form.
    pub(crate) fn store_form(&self, mut value: Value) -> Value {
        if !self.is_events_v1() && self.version == self.resource.storage_version {
            return value;
        }
        if self.is_events_v1() {
            super::events::from_events_v1(&mut value);
            value["apiVersion"] = "v1".into();
        } else {
            value["apiVersion"] = group_version(&self.resource.group, &self.resource.storage_version).into();
        }
        value
    }

    pub(crate) fn not_found(&self, name: &str) -> Failure {
        Failure::not_found(self.resource.about(), name)
    }
}

/// `v1` or `apps/v1`.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// All resources that are currently served. Replaced as a whole when a CustomResourceDefinition changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    resources: BTreeMap<(String, String), Arc<Resource>>,
}

impl Registry {
    pub(crate) fn insert(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        self.resources.remove(&(group.to_owned(), plural.to_owned()));
    }

    /// The resource that a path names, if this version is served.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Served> {
        let resource = self.resources.get(&(group.to_owned(), plural.to_owned()))?;
        resource
            .versions
            .iter()
            .any(|v| v == version)
            .then(|| Served { resource: resource.clone(), version: version.to_owned() })
    }

    /// A built-in or custom resource in its storage version.
    pub(crate) fn stored(&self, group: &str, plural: &str) -> Option<Served> {
        let resource = self.resources.get(&(group.to_owned(), plural.to_owned()))?;
        Some(Served { resource: resource.clone(), version: resource.storage_version.clone() })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }
}
