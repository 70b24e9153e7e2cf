//! A `DisruptionBudget` as stored, even if it cannot be decoded.

use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::DisruptionBudget;

/// A budget whose spec and status have not been decoded yet.
///
/// A watch of [`DisruptionBudget`] fails as a whole if one object does not decode. Such an object may have been stored
/// before a field got its present meaning, or while no webhook validated it. A watch of this type never fails that way,
/// so an invalid budget affects only its own pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = DisruptionBudget)]
#[serde(default)]
pub struct StoredBudget {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The spec, not decoded.
    pub spec: Value,
    /// The status, not decoded.
    pub status: Value,
}
