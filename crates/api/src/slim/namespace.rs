//! Namespaces.

use k8s_openapi::api::core::v1 as core;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::meta;

/// A namespace. Its metadata shows its labels and whether it is terminating.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = core::Namespace)]
#[serde(default)]
pub struct Namespace {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
}
