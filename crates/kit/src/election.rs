//! Leader election: of several processes, the one that holds the Lease is the leader.
//!
//! There may be two leaders for a moment, if one was paused and has not noticed that its Lease expired. A leader must
//! therefore check [`Election::is_held`] right before each action that only one process may perform.
//!
//! Not a library: kube has no leader election, and the crates kubert and kube-leader-election compare the `renewTime` of
//! another machine with the local clock. Here each process measures by its own clock since when it has seen no renewal, and
//! the leader has a deadline to stop acting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Plain;
use crate::lease::ObservedLease;

/// Lease duration: another process may take the Lease this long after the last renewal it saw.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// The leader stops acting this long after its last renewal, well before another process may take the Lease.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Interval at which each process reads the Lease, and the leader renews it.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Timeout of one attempt.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A candidate for the Lease.
#[derive(Debug)]
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    start: Instant,
    /// Until when this process may act as the leader, in milliseconds since its start; 0 if it may not.
    held_until: AtomicU64,
}

impl Election {
    /// A candidate for the Lease `name`; `identity` must be unique to this process.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            start: Instant::now(),
            held_until: AtomicU64::new(0),
        }
    }

    fn elapsed(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether this process holds the Lease now. Call it right before each action, after every wait.
    pub fn is_held(&self) -> bool {
        self.elapsed(Instant::now()) < self.held_until.load(Ordering::Relaxed)
    }

    /// Runs the election in a new task until `stop`. Sends to `held` whenever this process gains or loses the Lease. At
    /// the end it releases the Lease, so that the next leader need not wait until it expires.
    pub fn spawn(self: Arc<Self>, held: watch::Sender<bool>, stop: CancellationToken) -> JoinHandle<()> {
        tokio::spawn(async move { self.run(&held, stop).await })
    }

    async fn run(&self, held: &watch::Sender<bool>, stop: CancellationToken) {
        let mut reported = false;
        let mut observed = None;
        let mut ticks = tokio::time::interval(RETRY_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let sent = Instant::now();
            match tokio::time::timeout(REQUEST_TIMEOUT, self.attempt(&mut observed)).await {
                Ok(Ok(true)) => {
                    self.held_until.store(self.elapsed(sent + RENEW_DEADLINE), Ordering::Relaxed);
                }
                Ok(Ok(false)) => self.held_until.store(0, Ordering::Relaxed),
                Ok(Err(error)) => {
                    warn!(lease = self.name, error = %Plain(&error), "cannot acquire or renew the Lease");
                }
                Err(_) => warn!(lease = self.name, "cannot acquire or renew the Lease: no answer"),
            }
            if reported != self.is_held() {
                reported = !reported;
                info!(lease = self.name, held = reported, "leadership changed");
                held.send_replace(reported);
            }
        }
        if reported {
            self.held_until.store(0, Ordering::Relaxed);
            held.send_replace(false);
            if let Ok(Err(error)) = tokio::time::timeout(REQUEST_TIMEOUT, self.release()).await {
                warn!(lease = self.name, error = %Plain(&error), "cannot release the Lease");
            }
        }
    }

    /// Acquires or renews the Lease if possible; returns whether this process holds it.
    async fn attempt(&self, observed: &mut Option<ObservedLease<Instant>>) -> Result<bool, Error> {
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let created = self.leases.create(&PostParams::default(), &self.claim(None)).await;
            return unless_taken(created);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
        let ours = holder == Some(&*self.identity);
        let (renewed, now) = (spec.renew_time.as_ref(), Instant::now());
        let observed = observed.get_or_insert_with(|| ObservedLease::new(holder, renewed, now));
        let over =
            holder.is_none() || now.duration_since(observed.read(holder, renewed, now)) > LEASE_DURATION;
        if !ours && !over {
            return Ok(false);
        }
        let written =
            self.leases.replace(&self.name, &PostParams::default(), &self.claim(Some(&lease))).await;
        unless_taken(written)
    }

    /// The Lease with this process as its holder. Its resource version makes the write fail if another process was
    /// faster.
    fn claim(&self, seen: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let old = seen.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let ours = old.holder_identity.as_deref() == Some(&*self.identity);
        let transitions = old.lease_transitions.unwrap_or_default();
        Lease {
            metadata: match seen {
                Some(lease) => lease.metadata.clone(),
                None => ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: if ours { old.acquire_time } else { Some(now.clone()) },
                renew_time: Some(now),
                lease_transitions: Some(if ours || seen.is_none() { transitions } else { transitions + 1 }),
                ..LeaseSpec::default()
            }),
        }
    }

    async fn release(&self) -> Result<(), Error> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&*self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        unless_taken(self.leases.replace(&self.name, &PostParams::default(), &lease).await).map(drop)
    }
}

/// A write that lost against another process is not an error: this process just does not hold the Lease.
fn unless_taken(written: Result<Lease, Error>) -> Result<bool, Error> {
    match written {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}
