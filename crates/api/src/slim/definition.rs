//! CustomResourceDefinitions, reduced to their scale.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{meta, or_default};

/// A CustomResourceDefinition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = apiextensions::CustomResourceDefinition)]
#[serde(default)]
pub struct CustomResourceDefinition {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The defined kind.
    #[serde(deserialize_with = "or_default")]
    pub spec: DefinitionSpec,
}

impl CustomResourceDefinition {
    /// The path of the replica count in a version of the kind; `None` if the version has no scale.
    pub fn replicas_path(&self, version: &str) -> Option<&str> {
        let version = self.spec.versions.iter().find(|defined| defined.name == version)?;
        version.subresources.scale.as_ref()?.spec_replicas_path.as_deref()
    }
}

/// The spec of a CustomResourceDefinition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DefinitionSpec {
    /// The API group of the kind.
    #[serde(deserialize_with = "or_default")]
    pub group: String,
    /// Its names.
    #[serde(deserialize_with = "or_default")]
    pub names: DefinedNames,
    /// Its versions.
    #[serde(deserialize_with = "or_default")]
    pub versions: Vec<DefinedVersion>,
}

/// The names of a kind.
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
