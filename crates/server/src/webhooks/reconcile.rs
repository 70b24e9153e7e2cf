//! Reconciles the webhook configurations. The leader does this first, because nothing is enforced before.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, Patch, PatchParams};
use kube::core::Resource;
use kube::{Client, Error, ResourceExt};
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Address, Endpoint, ManagedBy, NAME, mutating, trust, validating};
use crate::calls::FIELD_MANAGER;

/// Interval between checks: users may change the configurations.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Interval if another tool writes the configurations: a new entry has no CA bundle yet.
const CA_BUNDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Delay until API servers have read a changed configuration. What is enforced only from then on must wait for it.
const PROPAGATION_DELAY: Duration = Duration::from_secs(1);

/// Keeps the webhook configurations up to date, so that the API server calls Quorate.
pub(crate) struct WebhookReconciler {
    pub(crate) client: Client,
    pub(crate) written: ManagedBy,
    pub(crate) endpoint: Endpoint,
    pub(crate) namespace: String,
    /// Whether pods get the owners that their templates name.
    pub(crate) owners: bool,
}

impl WebhookReconciler {
    /// Reconciles the configurations while this process is the leader. Sets `in_force` to whether this process is the
    /// leader and the configurations exist. If they are managed elsewhere, `in_force` only follows the leadership.
    pub(crate) async fn run(
        self,
        mut bundle: watch::Receiver<String>,
        mut held: watch::Receiver<bool>,
        in_force: watch::Sender<bool>,
    ) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            if !*held.borrow_and_update() {
                in_force.send_replace(false);
                if held.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let current = bundle.borrow_and_update().clone();
            let outcome = match self.written {
                ManagedBy::Server => self.write(current).await,
                ManagedBy::CaBundleOnly => trust::reconcile(&self.client, &current).await,
                ManagedBy::Others => Ok(false),
            };
            let wait = match outcome {
                Ok(changed) => {
                    backoff.reset();
                    if changed {
                        info!("registered the webhooks");
                        tokio::time::sleep(PROPAGATION_DELAY).await;
                    }
                    in_force.send_if_modified(|in_force| !std::mem::replace(in_force, true));
                    if self.written == ManagedBy::CaBundleOnly {
                        CA_BUNDLE_CHECK_INTERVAL
                    } else {
                        CHECK_INTERVAL
                    }
                }
                Err(error) => {
                    let wait = backoff.failed();
                    warn!(error = %Plain(&error), ?wait, "cannot register the webhooks");
                    wait
                }
            };
            tokio::select! {
                changed = held.changed() => if changed.is_err() { return },
                changed = bundle.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Writes both configurations; returns whether that changed anything.
    async fn write(&self, bundle: String) -> Result<bool, Error> {
        let address = Address {
            endpoint: self.endpoint.clone(),
            bundle,
            namespace: self.namespace.clone(),
            owners: self.owners,
        };
        let first = apply::<MutatingWebhookConfiguration>(&self.client, &mutating(&address)).await?;
        let second = apply::<ValidatingWebhookConfiguration>(&self.client, &validating(&address)).await?;
        Ok(first || second)
    }
}

async fn apply<K>(client: &Client, wanted: &K) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone());
    let before = all.get_opt(NAME).await?.and_then(|object| object.resource_version());
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let after = all.patch(NAME, &params, &Patch::Apply(wanted)).await?.resource_version();
    Ok(before != after)
}
