//! Keeping the configurations as they should be: the holder's first duty, since nothing is enforced before.

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

use super::{Address, NAME, Place, mutating, validating};
use crate::calls::FIELD_MANAGER;

/// How often they are looked at: somebody may have changed them.
const LOOKED: Duration = Duration::from_secs(30);

/// API servers read changed configurations a moment later. What is enforced only from then on must wait for it.
const READ: Duration = Duration::from_secs(1);

/// Writes the configurations whenever this process is the holder, and keeps them as they should be; says in `in_force`
/// whether it holds the lease and they are there. Without a place it only passes on who is the holder.
pub(crate) async fn keep(
    client: Client,
    place: Option<Place>,
    namespace: String,
    owners: bool,
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
        let mut wait = LOOKED;
        if let Some(place) = &place {
            let address = Address {
                place: place.clone(),
                bundle: bundle.borrow_and_update().clone(),
                namespace: namespace.clone(),
                owners,
            };
            match write(&client, &address).await {
                Ok(changed) => {
                    backoff.reset();
                    if changed {
                        info!("the webhooks are registered");
                        tokio::time::sleep(READ).await;
                    }
                    in_force.send_if_modified(|in_force| !std::mem::replace(in_force, true));
                }
                Err(error) => {
                    wait = backoff.failed();
                    warn!(error = %Plain(&error), ?wait, "cannot register the webhooks");
                }
            }
        } else {
            in_force.send_if_modified(|in_force| !std::mem::replace(in_force, true));
        }
        tokio::select! {
            changed = held.changed() => if changed.is_err() { return },
            changed = bundle.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Writes both; returns whether that changed anything.
async fn write(client: &Client, address: &Address) -> Result<bool, Error> {
    let first = apply::<MutatingWebhookConfiguration>(client, &mutating(address)).await?;
    let second = apply::<ValidatingWebhookConfiguration>(client, &validating(address)).await?;
    Ok(first || second)
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
