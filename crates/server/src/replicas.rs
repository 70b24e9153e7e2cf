//! The replicas: the processes that decide together, each with its own Lease.
//!
//! A Lease belongs to one process. A process that restarts in place has lost its memory, so it is a new replica.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Error, ResourceExt};
use parking_lot::Mutex;
use quorate_api::names::{self, COMPONENT, SERVER};
use quorate_api::slim;
use quorate_engine::basics::{Time, Version};
use quorate_engine::facts::BudgetKind;
use quorate_engine::ledger::{Acknowledged, Event, ReplicaLease};
use quorate_intake::objects;
use quorate_kit::Plain;
use quorate_kit::lease::ObservedLease;
use quorate_kit::watch::Source;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::actor::ReplicaHandle;
use crate::calls::FIELD_MANAGER;
use crate::clock;

/// How long the other replicas consider a process alive after a renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// How long this process may decide after a renewal: it stops well before the other replicas may consider it dead.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Interval between renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(4);

/// Timeout of a write to the Lease.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// Label of the Leases of servers.
const LABEL: (&str, &str) = (COMPONENT, SERVER);

/// Annotations of a Lease: the version up to which its process knows every budget, by kind.
const ACKNOWLEDGED: [(BudgetKind, &str); 2] = [
    (BudgetKind::DisruptionBudget, names::ACKNOWLEDGED),
    (BudgetKind::PodUnavailableBudget, "quorate.dev/acknowledged-unavailable-budgets"),
];

/// The versions that this process acknowledges to the leader, which opens budgets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledgement {
    pub(crate) known: Acknowledged,
    /// A budget is waiting to be opened.
    pub(crate) awaited: bool,
}

impl Acknowledgement {
    /// Whether this must be written before the next renewal; `written` is what the Lease has. A budget changes with
    /// every claim: a write to the Lease each time would cost more than the claims.
    fn is_urgent(&self, written: Acknowledged) -> bool {
        // The leader relies on an acknowledgement until its withdrawal is written.
        let takes_back = ACKNOWLEDGED.iter().any(|(kind, _)| self.known.of(*kind) < written.of(*kind));
        self.awaited || takes_back
    }
}

/// The Leases of all replicas, including this process.
pub(crate) struct ReplicaLeases {
    client: Client,
    namespace: String,
    name: String,
    /// How long to keep the Lease of a process that ended: until then, what it admitted may still happen.
    kept: Duration,
    /// Until when this process may decide.
    good_until: AtomicI64,
    /// Each Lease as last read, by name.
    seen: Mutex<HashMap<String, ObservedLease<Time>>>,
}

impl ReplicaLeases {
    pub(crate) fn new(client: Client, namespace: String, name: String, kept: Duration) -> Self {
        Self { client, namespace, name, kept, good_until: AtomicI64::new(i64::MIN), seen: Mutex::default() }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether this process may still decide: its Lease was renewed recently. Check this last, after every wait.
    pub(crate) fn is_current(&self) -> bool {
        clock::now().0 < self.good_until.load(Ordering::Relaxed)
    }

    fn renewed(&self, sent: Time) {
        self.good_until.store(sent.after(RENEW_DEADLINE).0, Ordering::Relaxed);
    }

    /// Creates the Lease of this process.
    pub(crate) async fn join(&self) -> anyhow::Result<()> {
        let sent = clock::now();
        let now = MicroTime(Timestamp::now());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([(LABEL.0.to_owned(), LABEL.1.to_owned())].into()),
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
        created
            .context("no answer")
            .and_then(|outcome| outcome.map_err(|error| anyhow::anyhow!("{}", Plain(&error))))
            .with_context(|| format!("cannot write the Lease {}/{}", self.namespace, self.name))?;
        self.renewed(sent);
        info!(lease = self.name, "created the Lease");
        Ok(())
    }

    /// Renews the Lease, and writes the acknowledged versions to it. Ends when `stop` is cancelled, or when the Lease
    /// is gone: the other replicas then continue without this process, and it must not decide any more.
    pub(crate) async fn keep_renewed(
        &self,
        mut acknowledged: watch::Receiver<Acknowledgement>,
        replica: &ReplicaHandle,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        replica.send(Event::Serving(true)).await;
        let mut serving = true;
        let mut written = Acknowledged::default();
        let mut renewal = tokio::time::interval(RENEW_INTERVAL);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changed = acknowledged.changed() => match changed {
                    Ok(()) if acknowledged.borrow().is_urgent(written) => {}
                    Ok(()) => continue,
                    Err(_) => return Ok(()),
                },
                _ = renewal.tick() => {}
            }
            let known = acknowledged.borrow_and_update().known;
            let sent = clock::now();
            match tokio::time::timeout(WRITE_TIMEOUT, self.renew(known)).await {
                Ok(Ok(_)) => {
                    self.renewed(sent);
                    written = known;
                }
                Ok(Err(Error::Api(status))) if status.code == 404 => {
                    replica.send(Event::Serving(false)).await;
                    anyhow::bail!(
                        "the Lease {}/{} is gone: this process must not decide any more",
                        self.namespace,
                        self.name
                    );
                }
                Ok(Err(error)) => warn!(error = %Plain(&error), "cannot renew the Lease"),
                Err(_) => warn!("cannot renew the Lease: no answer"),
            }
            if serving != self.is_current() {
                serving = !serving;
                replica.send(Event::Serving(serving)).await;
            }
        }
    }

    /// Leaves the replicas. The Lease stays, so that the leader waits before it opens a budget, unless this process
    /// knows of no recent admission.
    pub(crate) async fn leave(&self, admitted_nothing: bool) {
        self.good_until.store(i64::MIN, Ordering::Relaxed);
        if !admitted_nothing {
            return;
        }
        let (leases, params) = (self.leases(), kube::api::DeleteParams::default());
        match tokio::time::timeout(WRITE_TIMEOUT, leases.delete(&self.name, &params)).await {
            Ok(Err(error)) => warn!(error = %Plain(&error), "cannot delete the Lease"),
            Err(_) => warn!("cannot delete the Lease: no answer"),
            Ok(Ok(_)) => info!(lease = self.name, "deleted the Lease"),
        }
    }

    async fn renew(&self, acknowledged: Acknowledged) -> Result<Lease, Error> {
        let annotations: serde_json::Map<String, serde_json::Value> = ACKNOWLEDGED
            .iter()
            .map(|(kind, name)| ((*name).to_owned(), json!(acknowledged.of(*kind).0.to_string())))
            .collect();
        let patch = json!({
            "metadata": { "annotations": annotations },
            "spec": { "renewTime": MicroTime(Timestamp::now()) },
        });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.leases().patch(&self.name, &params, &Patch::Merge(patch)).await
    }

    /// All replicas, from a consistent list. Leaves out processes that ended long ago, and deletes their Leases.
    pub(crate) async fn list(&self) -> Result<Vec<ReplicaLease>, Error> {
        let source: Source<slim::Lease> = Source::namespaced(self.client.clone(), &self.namespace)
            .selected_by(format!("{}={}", LABEL.0, LABEL.1));
        let listed = source.list().await?;
        let now = clock::now();
        let mut leases = Vec::new();
        let mut over = Vec::new();
        {
            let mut seen = self.seen.lock();
            for lease in &listed.objects {
                let name = lease.name_any();
                let (holder, renewed) =
                    (lease.spec.holder_identity.as_deref(), lease.spec.renew_time.as_ref());
                let first = || ObservedLease::new(holder, renewed, now);
                let since = seen.entry(name.clone()).or_insert_with(first).read(holder, renewed, now);
                let silent = now.since(since);
                if silent > LEASE_DURATION + self.kept {
                    over.push(name);
                } else {
                    leases.push(replica_lease(lease, silent > LEASE_DURATION));
                }
            }
            seen.retain(|name, _| listed.objects.iter().any(|lease| lease.name_any() == *name));
        }
        for name in over {
            if let Err(error) = self.leases().delete(&name, &kube::api::DeleteParams::default()).await {
                warn!(lease = name, error = %Plain(&error), "cannot delete the Lease of a process that ended");
            }
        }
        Ok(leases)
    }
}

fn replica_lease(lease: &slim::Lease, vanished: bool) -> ReplicaLease {
    let version = |name: &str| lease.annotations().get(name).and_then(|text| objects::version(text));
    let acknowledged = ACKNOWLEDGED.iter().fold(Acknowledged::default(), |known, (kind, name)| {
        known.with(*kind, version(name).unwrap_or(Version(0)))
    });
    ReplicaLease { name: lease.name_any().into(), acknowledged, vanished }
}

/// A name that no other process has or had.
pub(crate) fn unique_name() -> String {
    format!("quorate-server-{}", uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_awaited_or_withdrawn_acknowledgement_is_written_before_the_next_renewal() {
        let known = |version| Acknowledged { budgets: Version(version), ..Acknowledged::default() };
        let written = known(5);
        for (now, awaited, urgent, why) in [
            (known(6), true, true, "a budget is waiting to be opened"),
            (known(6), false, false, "a claim was written, and no budget is waiting"),
            (known(0), false, true, "budgets are not watched any more"),
        ] {
            assert_eq!(Acknowledgement { known: now, awaited }.is_urgent(written), urgent, "{why}");
        }
    }
}
