//! Nodes, and the Leases that processes renew.

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
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
    /// The observed state.
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

impl Node {
    /// Whether its kubelet reports it as Ready.
    pub fn is_ready(&self) -> bool {
        Condition::find(&self.status.conditions, "Ready").is_some_and(Condition::is_true)
    }
}

/// The spec of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Whether it is cordoned.
    #[serde(deserialize_with = "or_default")]
    pub unschedulable: bool,
}

/// The status of a node.
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
    /// The holder and its times.
    #[serde(deserialize_with = "or_default")]
    pub spec: LeaseSpec,
}

/// The spec of a lease: the holder and its times.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// The holder.
    pub holder_identity: Option<String>,
    /// Seconds until a renewal expires.
    pub lease_duration_seconds: Option<i32>,
    /// Time when the holder acquired the lease, by the holder's clock.
    pub acquire_time: Option<MicroTime>,
    /// Time of the last renewal, by the holder's clock.
    pub renew_time: Option<MicroTime>,
    /// Number of times that the holder has changed.
    pub lease_transitions: Option<i32>,
}
