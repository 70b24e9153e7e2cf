//! Definitions of custom kinds, as far as their scale goes.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{meta, or_default};

/// The definition of a custom kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = apiextensions::CustomResourceDefinition)]
#[serde(default)]
pub struct CustomResourceDefinition {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// What is defined.
    #[serde(deserialize_with = "or_default")]
    pub spec: DefinitionSpec,
}

impl CustomResourceDefinition {
    /// Where a version of the kind keeps the number of its replicas; `None` where it has no scale.
    pub fn replicas_path(&self, version: &str) -> Option<&str> {
        let version = self.spec.versions.iter().find(|defined| defined.name == version)?;
        version.subresources.scale.as_ref()?.spec_replicas_path.as_deref()
    }
}

/// What is defined.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DefinitionSpec {
    /// The API group of the kind.
    #[serde(deserialize_with = "or_default")]
    pub group: String,
    /// What it is called.
    #[serde(deserialize_with = "or_default")]
    pub names: DefinedNames,
    /// Its versions.
    #[serde(deserialize_with = "or_default")]
    pub versions: Vec<DefinedVersion>,
}

/// What a kind is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DefinedNames {
    /// The kind.
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
}

/// A version of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DefinedVersion {
    /// The version.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Whether the API server serves it.
    #[serde(deserialize_with = "or_default")]
    pub served: bool,
    #[serde(deserialize_with = "or_default")]
    subresources: Subresources,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Subresources {
    scale: Option<Scale>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Scale {
    spec_replicas_path: Option<String>,
}
