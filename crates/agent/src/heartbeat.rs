//! The Lease of the node: it shows that an agent probes the node's pods.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use quorate_api::names::{AGENT, COMPONENT};
use serde_json::json;

use crate::manager::LEASE_DURATION;

/// Timeout of one call.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// The Lease of one node.
#[derive(Clone)]
pub(crate) struct Heartbeat {
    leases: Api<Lease>,
    name: String,
    node: String,
}

impl Heartbeat {
    pub(crate) fn new(client: Client, namespace: &str, node: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: format!("quorate-agent-{node}"),
            node: node.to_owned(),
        }
    }

    /// Renews the Lease. `began` is the start of the agent in seconds since 1970, `now` the time in milliseconds since
    /// 1970.
    pub(crate) async fn renew(&self, began: i64, now: i64) -> Result<(), Error> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "labels": {COMPONENT: AGENT}},
            "spec": {
                "holderIdentity": self.node,
                "leaseDurationSeconds": LEASE_DURATION.as_secs(),
                "acquireTime": MicroTime(Timestamp::from_second(began).unwrap_or_default()),
                "renewTime": MicroTime(Timestamp::from_millisecond(now).unwrap_or_default()),
            },
        });
        let params = PatchParams::default();
        match self.leases.patch(&self.name, &params, &Patch::Merge(&lease)).await {
            Err(Error::Api(status)) if status.code == 404 => {
                let lease: Lease = serde_json::from_value(lease).map_err(Error::SerdeError)?;
                self.leases.create(&PostParams::default(), &lease).await.map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    /// Deletes the Lease: the agent probes no pods on this node any more.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        match self.leases.delete(&self.name, &DeleteParams::default()).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}
