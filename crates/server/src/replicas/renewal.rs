//! The Lease of this process, from its first write: creates it, says that the process serves, renews it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::Error;
use kube::api::{ObjectMeta, PostParams};
use quorate_api::names::{self, SERVING, SETTINGS};
use quorate_engine::ledger::{Acknowledged, Event};
use quorate_intake::time;
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::acknowledgement::{ACKNOWLEDGED, Acknowledgement};
use super::{LABEL, LEASE_DURATION, ReplicaLeases, WRITE_TIMEOUT};
use crate::actor::ReplicaHandle;
use crate::calls::FIELD_MANAGER;
use crate::clock::{self, Reading};
use crate::own_lease::Lost;
use crate::settings::ServerSettings;
use crate::watches::{WatchScope, WatchedKind};

/// Interval between renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(4);

/// Interval between attempts to renew after the watches lost the API server. Requests may wait for it.
const VERIFY_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest interval between two writes of acknowledgements.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_millis(100);

impl ReplicaLeases {
    /// Creates the Lease of this process. It says how the process was started, and that it does not serve yet.
    pub(crate) async fn join(&self, settings: ServerSettings) -> anyhow::Result<()> {
        let (sent, interruptions) = (Reading::now(), self.validity.interruptions().count());
        let now = self.own.lock().renewing(Timestamp::now());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([(LABEL.0.to_owned(), LABEL.1.to_owned())].into()),
                annotations: Some(
                    [(SERVING.to_owned(), "false".to_owned()), (SETTINGS.to_owned(), settings.to_text())]
                        .into(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.name.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let created = tokio::time::timeout(WRITE_TIMEOUT, self.leases().create(&params, &lease)).await;
        let created = created
            .context("no answer")
            .and_then(|outcome| outcome.map_err(|error| anyhow::anyhow!("{}", Plain(&error))))
            .with_context(|| format!("cannot write the Lease {}/{}", self.namespace, self.name))?;
        // The first thing that the API server writes for this process: it shows its clock.
        let written = created.metadata.creation_timestamp.as_ref().map(time::from_object);
        if let Some(seconds) = written.and_then(clock::set_by) {
            warn!(seconds, "the clock of this machine is ahead of that of the API server, which is used");
        }
        self.renewed(&created, sent, interruptions);
        info!(lease = self.name, "created the Lease");
        Ok(())
    }

    /// Writes to the Lease that this process serves, until that succeeds. The budgets must be listed after this and before
    /// the process serves: until it is written, the leader does not wait for this process.
    pub(crate) async fn announce_serving(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), RENEW_INTERVAL);
        let annotations = json!({ "metadata": { "annotations": { (SERVING): "true" } } });
        loop {
            match tokio::time::timeout(WRITE_TIMEOUT, self.patch(&self.name, &annotations)).await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => warn!(error = %Plain(&error), "cannot write to the Lease"),
                Err(_) => warn!("cannot write to the Lease: no answer"),
            }
            tokio::time::sleep(backoff.failed()).await;
        }
    }

    /// Renews the Lease, and writes the acknowledged versions and the ages of the watched kinds to it. The replica serves
    /// while the Lease is renewed, once `ready` is true. Ends when `stop` is cancelled, or when this process must not decide
    /// any more on what it knows.
    pub(crate) async fn keep_renewed(
        &self,
        mut acknowledged: watch::Receiver<Acknowledgement>,
        mut ready: watch::Receiver<bool>,
        replica: &ReplicaHandle,
        scope: &WatchScope,
        stop: CancellationToken,
    ) -> Result<(), Lost> {
        let mut serving = false;
        let mut interrupted = self.validity.interruptions().follow();
        let mut written = Acknowledged::default();
        let mut renewal = tokio::time::interval(RENEW_INTERVAL);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_write = tokio::time::Instant::now();
        loop {
            let now_serving = *ready.borrow_and_update() && self.is_current();
            if serving != now_serving {
                serving = now_serving;
                replica.send(Event::Serving(serving)).await;
                self.has_served.fetch_or(serving, Ordering::Relaxed);
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changed = ready.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Ok(()),
                },
                changed = acknowledged.changed() => match changed {
                    Ok(()) if acknowledged.borrow().is_urgent(written) => {}
                    Ok(()) => continue,
                    Err(_) => return Ok(()),
                },
                Ok(()) = interrupted.changed() => {}
                () = tokio::time::sleep(VERIFY_INTERVAL), if !self.validity.is_verified() => {}
                _ = renewal.tick() => {}
            }
            interrupted.borrow_and_update();
            // While a budget waits, each claim in the cluster changes what is acknowledged.
            tokio::time::sleep_until(last_write + ACKNOWLEDGE_INTERVAL).await;
            last_write = tokio::time::Instant::now();
            let known = acknowledged.borrow_and_update().known;
            match tokio::time::timeout(WRITE_TIMEOUT, self.renew(known, &scope.watched())).await {
                Ok(Ok(())) => written = known,
                Ok(Err(Renewal::Lost(lost))) => {
                    self.validity.give_up();
                    replica.send(Event::Serving(false)).await;
                    return Err(lost);
                }
                Ok(Err(Renewal::Failed(error))) => warn!(error = %Plain(&error), "cannot renew the Lease"),
                Err(_) => warn!("cannot renew the Lease: no answer"),
            }
        }
    }

    /// Renews the Lease if it is as this process wrote it. Otherwise it is read first: another process may have written to
    /// it, or it went back.
    async fn renew(&self, acknowledged: Acknowledged, watched: &[WatchedKind]) -> Result<(), Renewal> {
        let mut annotations: serde_json::Map<String, serde_json::Value> = ACKNOWLEDGED
            .iter()
            .map(|(kind, name)| ((*name).to_owned(), json!(acknowledged.of(*kind).0.to_string())))
            .collect();
        annotations.insert(names::WATCH_AGES.to_owned(), json!(watch_ages(watched)));
        loop {
            let (sent, interruptions) = (Reading::now(), self.validity.interruptions().count());
            let patch = {
                let mut own = self.own.lock();
                let renewed = own.renewing(Timestamp::now());
                json!({
                    "metadata": { "annotations": &annotations, "resourceVersion": own.version() },
                    "spec": { "renewTime": renewed },
                })
            };
            match self.patch(&self.name, &patch).await {
                Ok(lease) => {
                    self.renewed(&lease, sent, interruptions);
                    return Ok(());
                }
                Err(Error::Api(status)) if status.code == 409 => {
                    let lease = self.leases().get(&self.name).await?;
                    self.own.lock().read(&lease).map_err(Renewal::Lost)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A write to the Lease succeeded; `interruptions` is their number before it was sent.
    fn renewed(&self, lease: &Lease, sent: Reading, interruptions: u64) {
        self.own.lock().written(lease);
        self.validity.renewed(sent, interruptions);
    }
}

/// Why the Lease of this process was not renewed.
enum Renewal {
    /// To be tried again.
    Failed(Error),
    Lost(Lost),
}

impl From<Error> for Renewal {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(status) if is_absent(&status) => Self::Lost(Lost::Gone),
            error => Self::Failed(error),
        }
    }
}

/// Whether a status says that the Lease does not exist, and not that Leases are not served yet.
fn is_absent(status: &kube::core::Status) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

/// The ages of the watched kinds in seconds, as `quorate check` reads them; null for a kind that was never read.
fn watch_ages(watched: &[WatchedKind]) -> String {
    let ages = watched.iter().map(|WatchedKind { kind, age, .. }| (kind, age.map(|age| age.as_secs())));
    json!(ages.collect::<std::collections::BTreeMap<_, _>>()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_shows_the_age_of_each_kind() {
        let watched = |kind: &str, age| WatchedKind { kind: kind.to_owned(), age, failing: None };
        let kinds = [watched("Pod", Some(Duration::from_millis(2900))), watched("Fleet.example.com", None)];
        assert_eq!(watch_ages(&kinds), r#"{"Fleet.example.com":null,"Pod":2}"#);
    }
}
