//! Who of many processes does what only one should do: whoever holds a Lease.
//!
//! There may be two for a moment, when one is held up and does not notice. Whoever must not act then asks
//! [`Election::is_held`] right before it acts.

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

/// How long a renewal holds, as others see it.
const HOLDS: Duration = Duration::from_secs(15);

/// Without a renewal for this long the holder does not act: well before another may take over.
const TRUSTED: Duration = Duration::from_secs(10);

/// How often the Lease is looked at, and renewed by its holder.
const PACE: Duration = Duration::from_secs(2);

/// A call that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(3);

/// One process of those that want the Lease.
#[derive(Debug)]
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    start: Instant,
    /// Until when this process may act, in milliseconds since its start; 0 where it may not.
    held_until: AtomicU64,
}

/// The holder as it was last seen, and when by our own clock: the clocks of others prove nothing.
#[derive(Clone, PartialEq)]
struct ObservedLease {
    holder: Option<String>,
    renewed: Option<MicroTime>,
}

impl Election {
    /// An election for the Lease `name`; `identity` is this process and no other.
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

    /// Whether this process holds the Lease now. To be asked right before acting, after every wait.
    pub fn is_held(&self) -> bool {
        self.elapsed(Instant::now()) < self.held_until.load(Ordering::Relaxed)
    }

    /// Takes part, in a task of its own, until `stop`, and tells in `held` whenever the Lease is won or lost. At the end
    /// it is given back, so that nobody has to wait for it.
    pub fn stand(self: Arc<Self>, held: watch::Sender<bool>, stop: CancellationToken) -> JoinHandle<()> {
        tokio::spawn(async move { self.take_part(&held, stop).await })
    }

    async fn take_part(&self, held: &watch::Sender<bool>, stop: CancellationToken) {
        let mut told = false;
        let mut observed: Option<(ObservedLease, Instant)> = None;
        let mut ticks = tokio::time::interval(PACE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let sent = Instant::now();
            match tokio::time::timeout(PATIENCE, self.attempt(&mut observed)).await {
                Ok(Ok(true)) => {
                    self.held_until.store(self.elapsed(sent + TRUSTED), Ordering::Relaxed);
                }
                Ok(Ok(false)) => self.held_until.store(0, Ordering::Relaxed),
                Ok(Err(error)) => warn!(lease = self.name, error = %Plain(&error), "cannot take part"),
                Err(_) => warn!(lease = self.name, "cannot take part: no answer"),
            }
            if told != self.is_held() {
                told = !told;
                info!(lease = self.name, held = told, "the holder changed");
                held.send_replace(told);
            }
        }
        if told {
            self.held_until.store(0, Ordering::Relaxed);
            held.send_replace(false);
            if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, self.release()).await {
                warn!(lease = self.name, error = %Plain(&error), "cannot give the Lease back");
            }
        }
    }

    /// Takes or renews the Lease if that is possible; returns whether it is ours.
    async fn attempt(&self, observed: &mut Option<(ObservedLease, Instant)>) -> Result<bool, Error> {
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let made = self.leases.create(&PostParams::default(), &self.claim(None)).await;
            return unless_beaten(made);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
        let ours = holder.as_deref() == Some(&*self.identity);
        let seen = ObservedLease { holder: holder.clone(), renewed: spec.renew_time.clone() };
        let since = match observed {
            Some((last, since)) if *last == seen => *since,
            _ => {
                let now = Instant::now();
                *observed = Some((seen, now));
                now
            }
        };
        let over = holder.is_none() || since.elapsed() > HOLDS;
        if !ours && !over {
            return Ok(false);
        }
        let written =
            self.leases.replace(&self.name, &PostParams::default(), &self.claim(Some(&lease))).await;
        unless_beaten(written)
    }

    /// The Lease as it looks when it is ours. The version of what was seen makes the write fail if another was faster.
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
                lease_duration_seconds: i32::try_from(HOLDS.as_secs()).ok(),
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
        unless_beaten(self.leases.replace(&self.name, &PostParams::default(), &lease).await).map(drop)
    }
}

/// A write that lost against another's is no error: the Lease is not ours, that is all.
fn unless_beaten(written: Result<Lease, Error>) -> Result<bool, Error> {
    match written {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}
