//! A `DisruptionBudget` as it is stored, readable or not.

use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::DisruptionBudget;

/// A budget whose spec and status have not been read yet.
///
/// A watch of [`DisruptionBudget`] fails as a whole when one object does not decode: one that was stored before a
/// field got its present meaning, or while nobody checked. A watch of these never does, so that such a budget can be
/// told apart from the others and denied for itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = DisruptionBudget)]
#[serde(default)]
pub struct StoredBudget {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// Whatever stands in the spec.
    pub spec: Value,
    /// Whatever stands in the status.
    pub status: Value,
}
