//! The replicas: the processes that decide together, each with its own Lease.
//!
//! A Lease belongs to one process. A process that restarts in place has lost its memory, so it is a new replica.
//!
//! - `renewal`: the Lease of this process is created and renewed. `validity`: what that allows.
//! - `handover`: this process ends.
//! - `members`: the Leases of all processes. `silence`: for how long one has not been renewed.
//! - `acknowledgement`: which budgets a process knows.

mod acknowledgement;
mod handover;
mod lease_validity;
mod members;
mod renewal;
mod silence;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use quorate_api::names::{COMPONENT, SERVER};
use quorate_engine::basics::Time;
use quorate_kit::watch::Interruptions;

pub(crate) use acknowledgement::Acknowledgement;
use lease_validity::LeaseValidity;
use members::Observations;

use crate::calls::FIELD_MANAGER;
use crate::clock;
use crate::own_lease::OwnLease;

/// How long the other replicas consider a process alive after a renewal.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);

/// How long this process may decide after a renewal: it stops well before the other replicas may consider it dead.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Timeout of a write to the Lease.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// Label of the Leases of servers.
const LABEL: (&str, &str) = (COMPONENT, SERVER);

/// The Leases of all replicas, including this process.
pub(crate) struct ReplicaLeases {
    client: Client,
    namespace: String,
    name: String,
    /// How long to keep the Lease of a process that ended: until then, what it admitted may still happen.
    kept: Duration,
    validity: LeaseValidity,
    /// Whether the replica has begun to serve.
    has_served: AtomicBool,
    observations: Observations,
    /// The Lease of this process, as it must be.
    own: Mutex<OwnLease>,
}

impl ReplicaLeases {
    pub(crate) fn new(
        client: Client,
        namespace: String,
        name: String,
        kept: Duration,
        interruptions: Interruptions,
    ) -> Self {
        Self {
            client,
            namespace,
            name,
            kept,
            validity: LeaseValidity::new(interruptions),
            has_served: AtomicBool::new(false),
            observations: Observations::new(true),
            own: Mutex::default(),
        }
    }

    /// For a process that starts over: the store may have gone back. A process that was silent in the snapshot may have
    /// renewed its Lease since, so what the Lease says about its silence is not true any more. The note of this process
    /// replaces it.
    pub(crate) fn without_notes(self) -> Self {
        Self { observations: Observations::new(false), ..self }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn patch(&self, name: &str, patch: &serde_json::Value) -> Result<Lease, Error> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.leases().patch(name, &params, &Patch::Merge(patch)).await
    }

    /// Whether the Lease of this process was renewed recently.
    pub(crate) fn is_current(&self) -> bool {
        self.validity.is_current()
    }

    /// Waits until the Lease was renewed since the watches last lost the API server. Until then, what this process knows
    /// may be from a store that does not exist any more.
    pub(crate) async fn until_verified(&self) {
        self.validity.until_verified().await;
    }

    /// Whether this process may still decide. Check this last, after every wait.
    pub(crate) async fn may_answer(&self, deadline: Time) -> bool {
        let left = deadline.since(clock::now());
        let verified =
            self.validity.is_verified() || tokio::time::timeout(left, self.until_verified()).await.is_ok();
        verified && self.is_current()
    }

    /// Whether the replica has begun to serve: a request that arrives from now on finds it serving.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }
}

/// A name that no other process has or had.
pub(crate) fn unique_name() -> String {
    format!("quorate-server-{}", uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use quorate_api::slim;
    use serde_json::json;

    pub(super) fn lease(annotations: &[(&str, &str)], renewed: &str) -> slim::Lease {
        let annotations: serde_json::Map<String, serde_json::Value> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let lease = json!({ "metadata": { "name": "a", "annotations": annotations },
            "spec": { "holderIdentity": "a", "renewTime": renewed } });
        serde_json::from_value(lease).expect("a Lease")
    }

    pub(super) const TEN: &str = "2026-11-15T10:00:00.000000Z";
}
