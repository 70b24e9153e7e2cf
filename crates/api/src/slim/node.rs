//! Nodes, and the leases by which processes show that they live.

use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{Condition, meta, or_default};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = core::Node)]
#[serde(default)]
pub struct Node {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
    /// What is.
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

impl Node {
    /// Whether its kubelet reports that it is well.
    pub fn is_ready(&self) -> bool {
        Condition::find(&self.status.conditions, "Ready").is_some_and(Condition::is_true)
    }
}

/// What was asked of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Whether it is cordoned.
    #[serde(deserialize_with = "or_default")]
    pub unschedulable: bool,
}

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = coordination::Lease)]
#[serde(default)]
pub struct Lease {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// Who holds it, and since when.
    #[serde(deserialize_with = "or_default")]
    pub spec: LeaseSpec,
}

/// Who holds a lease, and since when.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// The holder.
    pub holder_identity: Option<String>,
    /// For how long a renewal is good.
    pub lease_duration_seconds: Option<i32>,
    /// When the holder took it, by the holder's clock.
    pub acquire_time: Option<MicroTime>,
    /// When it was last renewed, by the holder's clock.
    pub renew_time: Option<MicroTime>,
    /// How often the holder has changed.
    pub lease_transitions: Option<i32>,
}
