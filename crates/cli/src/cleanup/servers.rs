//! Stops the servers, and waits until none of them runs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error, ResourceExt};
use quorate_api::names::{ADMITTED, COMPONENT, SERVER, SERVING};
use quorate_kit::Plain;
use quorate_kit::lease::ObservedLease;
use serde_json::json;

use super::TIMEOUT;

/// The Deployment of the servers in the chart.
const SERVERS: &str = "quorate-server";

/// The duration of a Lease that does not state one.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Time between two lists of the Leases.
const INTERVAL: Duration = Duration::from_millis(500);

/// Scales the Deployment of the chart to zero, if there is one, and waits until no server renews its Lease. The status of
/// the Deployment does not count pods that are terminating, and these servers still run: after this command, one of them
/// could become the leader and register the webhooks again.
pub(super) async fn stop(client: &Client, own: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), own);
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let is_scaled = match deployments.patch_scale(SERVERS, &PatchParams::default(), &none).await {
        Ok(_) => true,
        // Servers without the chart's Deployment are stopped by the user.
        Err(Error::Api(status)) if status.code == 404 => false,
        Err(error) => bail!("cannot stop the Deployment {own}/{SERVERS}: {}", Plain(&error)),
    };
    wait_until_ended(client, own).await?;
    if is_scaled {
        println!("stopped the servers of {own}/{SERVERS}");
    }
    Ok(())
}

async fn wait_until_ended(client: &Client, own: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), own);
    let of_servers = ListParams::default().labels(&format!("{COMPONENT}={SERVER}"));
    let mut observed = Observed::default();
    let began = Instant::now();
    loop {
        let listed = match leases.list(&of_servers).await {
            Ok(listed) => listed,
            Err(error) => bail!("cannot list the Leases of the servers in {own}: {}", Plain(&error)),
        };
        let now = Instant::now();
        let running: Vec<String> =
            listed.iter().filter(|lease| observed.runs(lease, now)).map(ResourceExt::name_any).collect();
        if running.is_empty() {
            return Ok(());
        }
        if began.elapsed() >= TIMEOUT {
            bail!(
                "servers still run, and would register the webhooks again: {}. Stop them, then run this command again",
                running.join(", ")
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The Leases of servers, as observed since this process started.
#[derive(Default)]
struct Observed(HashMap<String, ObservedLease<Instant>>);

impl Observed {
    /// Whether a server may still run: its Lease was renewed lately, and does not say that the server has ended.
    fn runs(&mut self, lease: &Lease, now: Instant) -> bool {
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
        let seconds = spec.and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok());
        let observed =
            self.0.entry(lease.name_any()).or_insert_with(|| ObservedLease::new(holder, renewed, now));
        let silent = now.duration_since(observed.read(holder, renewed, now));
        let annotation = |name: &str| lease.annotations().get(name).map(String::as_str);
        let has_ended = annotation(SERVING) == Some("false") && annotation(ADMITTED).is_some();
        !has_ended && silent <= seconds.map_or(LEASE_DURATION, Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(annotations: &Value, renewed: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": format!("2026-11-15T{renewed}.000000Z")},
        }))
        .unwrap()
    }

    #[test]
    fn a_server_runs_until_its_lease_says_that_it_ended_or_is_not_renewed() {
        let start = Instant::now();
        let mut observed = Observed::default();
        for (annotations, renewed, seconds, runs, why) in [
            (json!({}), "10:00:00", 0, true, "just seen"),
            (json!({}), "10:00:00", 15, true, "it may be renewed"),
            (json!({}), "10:00:04", 16, true, "renewed"),
            (json!({}), "10:00:04", 32, false, "not renewed"),
            (json!({SERVING: "false"}), "10:00:08", 33, true, "it has not begun to serve"),
            (json!({SERVING: "false", ADMITTED: "{}"}), "10:00:08", 34, false, "ended in order"),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(observed.runs(&lease(&annotations, renewed), now), runs, "{why}");
        }
    }
}
