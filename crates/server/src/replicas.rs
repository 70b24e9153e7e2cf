//! The replicas: the processes that decide together, each with its own Lease.
//!
//! A Lease belongs to one process. A process that restarts in place has lost its memory, so it is a new replica.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error, ResourceExt};
use parking_lot::Mutex;
use quorate_api::names::{self, ADMITTED, COMPONENT, SERVER, SERVING, SETTINGS, SILENT};
use quorate_api::slim;
use quorate_engine::basics::{Time, Version};
use quorate_engine::facts::BudgetKind;
use quorate_engine::ledger::{Acknowledged, Admission, Event, ReplicaLease};
use quorate_intake::{budget, objects, time};
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use quorate_kit::lease::ObservedLease;
use quorate_kit::watch::{Interruptions, Source};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::actor::ReplicaHandle;
use crate::calls::FIELD_MANAGER;
use crate::clock;
use crate::own_lease::{Lost, OwnLease};
use crate::settings::ServerSettings;
use crate::watches::{WatchScope, WatchedKind};

/// How long the other replicas consider a process alive after a renewal.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);

/// How long this process may decide after a renewal: it stops well before the other replicas may consider it dead.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Interval between renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(4);

/// Interval between attempts to renew after the watches lost the API server. Requests may wait for it.
const VERIFY_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest interval between two writes of acknowledgements.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between two lists of the Leases. Every process lists them, so that the end of a process is noticed when it
/// happens, and not when the next budget opens. Each interval is random between half and all of this, 30 s on average.
const LIST_INTERVAL: Duration = Duration::from_secs(40);

/// How much longer a silence must be before it is written to the Lease again.
const SILENCE_STEP: Duration = Duration::from_secs(20);

/// Largest size of the admissions in a Lease. An object may have 256 KiB of annotations.
const MAX_ADMITTED_BYTES: usize = 200 * 1024;

/// Timeout of a list of the Leases.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Whether the replica has begun to serve.
    has_served: AtomicBool,
    /// Each Lease as last read, by name.
    seen: Mutex<HashMap<String, ObservedLease<Time>>>,
    /// The Lease of this process, as it must be.
    own: Mutex<OwnLease>,
    /// How often the watches lost the API server.
    interruptions: Interruptions,
    /// The number of interruptions before the last renewal: since then, the store did not go back unnoticed.
    verified: watch::Sender<u64>,
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
            good_until: AtomicI64::new(i64::MIN),
            has_served: AtomicBool::new(false),
            seen: Mutex::default(),
            own: Mutex::default(),
            interruptions,
            verified: watch::Sender::new(0),
        }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether the Lease of this process was renewed recently.
    pub(crate) fn is_current(&self) -> bool {
        clock::now().0 < self.good_until.load(Ordering::Relaxed)
    }

    /// Whether the Lease was renewed since the watches last lost the API server.
    fn is_verified(&self) -> bool {
        *self.verified.borrow() >= self.interruptions.count()
    }

    /// Waits until the Lease was renewed since the watches last lost the API server. Until then, what this process knows
    /// may be from a store that does not exist any more.
    pub(crate) async fn until_verified(&self) {
        // This cannot fail: `self` keeps the sender alive.
        let _ = self.verified.subscribe().wait_for(|verified| *verified >= self.interruptions.count()).await;
    }

    /// Whether this process may still decide. Check this last, after every wait.
    pub(crate) async fn may_answer(&self, deadline: Time) -> bool {
        let left = deadline.since(clock::now());
        let verified = self.is_verified() || tokio::time::timeout(left, self.until_verified()).await.is_ok();
        verified && self.is_current()
    }

    /// Stops to decide, for ever.
    pub(crate) fn give_up(&self) {
        self.good_until.store(i64::MIN, Ordering::Relaxed);
    }

    /// Whether the replica has begun to serve: a request that arrives from now on finds it serving.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// A write to the Lease succeeded; `interruptions` is their number before it was sent.
    fn renewed(&self, lease: &Lease, sent: Time, interruptions: u64) {
        self.own.lock().written(lease);
        self.good_until.store(sent.after(RENEW_DEADLINE).0, Ordering::Relaxed);
        self.verified.send_replace(interruptions);
    }

    /// Creates the Lease of this process. It says how the process was started, and that it does not serve yet.
    pub(crate) async fn join(&self, settings: ServerSettings) -> anyhow::Result<()> {
        let (began, interruptions) = (Instant::now(), self.interruptions.count());
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
        let took = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.renewed(&created, Time(clock::now().0.saturating_sub(took)), interruptions);
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
        let mut interrupted = self.interruptions.follow();
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
                () = tokio::time::sleep(VERIFY_INTERVAL), if !self.is_verified() => {}
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
                    self.give_up();
                    replica.send(Event::Serving(false)).await;
                    return Err(lost);
                }
                Ok(Err(Renewal::Failed(error))) => warn!(error = %Plain(&error), "cannot renew the Lease"),
                Err(_) => warn!("cannot renew the Lease: no answer"),
            }
        }
    }

    /// Leaves the replicas, after the last answer was sent. What this process admitted recently goes into its Lease, where
    /// the leader finds it, and with that no budget waits for this process. Without recent admissions the Lease is
    /// deleted. If it is not certain what was admitted, or it does not fit, the Lease stays as it is: then the leader
    /// waits until the admissions have expired.
    pub(crate) async fn leave(&self, admitted: Option<Vec<Admission>>) {
        self.give_up();
        let Some(admitted) = admitted else { return };
        let outcome = match handover(&admitted) {
            None => {
                warn!(
                    admissions = admitted.len(),
                    "too many recent admissions to hand over: new budgets wait for them"
                );
                return;
            }
            Some(_) if admitted.is_empty() => {
                let (leases, params) = (self.leases(), DeleteParams::default());
                tokio::time::timeout(WRITE_TIMEOUT, leases.delete(&self.name, &params))
                    .await
                    .map(|done| done.map(drop))
            }
            Some(annotations) => {
                let patch = json!({ "metadata": { "annotations": annotations } });
                let written = tokio::time::timeout(WRITE_TIMEOUT, self.patch(&self.name, &patch)).await;
                written.map(|done| done.map(drop))
            }
        };
        match outcome {
            Ok(Err(error)) => warn!(error = %Plain(&error), "cannot give up the Lease"),
            Err(_) => warn!("cannot give up the Lease: no answer"),
            Ok(Ok(())) => info!(lease = self.name, admissions = admitted.len(), "gave up the Lease"),
        }
    }

    async fn patch(&self, name: &str, patch: &serde_json::Value) -> Result<Lease, Error> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.leases().patch(name, &params, &Patch::Merge(patch)).await
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
            let (sent, interruptions) = (clock::now(), self.interruptions.count());
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

    /// Lists the Leases now and then, for as long as the process runs. Writes to the Lease of a process that was killed how
    /// long it has been silent: a process that starts later cannot know that, because the renewal time in a Lease is
    /// from the clock of another machine.
    pub(crate) async fn follow(&self) {
        let mut intervals = Backoff::new(LIST_INTERVAL, LIST_INTERVAL);
        loop {
            match tokio::time::timeout(LIST_TIMEOUT, self.observe()).await {
                Ok(Ok(observed)) => {
                    for lease in observed.iter().filter(|lease| lease.is_worth_noting()) {
                        self.note_silence(lease).await;
                    }
                }
                Ok(Err(error)) => warn!(error = %Plain(&error), "cannot list the Leases"),
                Err(_) => warn!("cannot list the Leases: no answer"),
            }
            tokio::time::sleep(intervals.failed()).await;
        }
    }

    /// All replicas, from a consistent list. Leaves out processes that ended long ago, and deletes their Leases.
    pub(crate) async fn list(&self) -> Result<Vec<ReplicaLease>, Error> {
        let observed = self.observe().await?;
        Ok(observed.iter().map(|lease| replica_lease(&lease.object, lease.silent > LEASE_DURATION)).collect())
    }

    async fn observe(&self) -> Result<Vec<SeenLease>, Error> {
        let source: Source<slim::Lease> = Source::namespaced(self.client.clone(), &self.namespace)
            .selected_by(format!("{}={}", LABEL.0, LABEL.1));
        let listed = source.list().await?;
        let now = clock::now();
        let (mut leases, mut over) = (Vec::new(), Vec::new());
        {
            let mut seen = self.seen.lock();
            seen.retain(|name, _| listed.objects.iter().any(|lease| lease.name_any() == *name));
            for object in listed.objects {
                let (holder, renewed) =
                    (object.spec.holder_identity.as_deref(), object.spec.renew_time.as_ref());
                let noted = noted_silence(&object);
                let before = Time(now.0.saturating_sub(i64::try_from(noted.as_millis()).unwrap_or(i64::MAX)));
                let first = || ObservedLease::new(holder, renewed, before);
                let since = seen.entry(object.name_any()).or_insert_with(first).read(holder, renewed, now);
                let silent = now.since(since);
                let lease = SeenLease { object, silent, noted };
                if lease.is_over(&self.name, self.kept) { over.push(lease) } else { leases.push(lease) }
            }
        }
        for lease in over {
            self.delete(&lease.object).await;
        }
        Ok(leases)
    }

    /// Deletes the Lease of a process that ended long ago, unless it was renewed since it was listed.
    async fn delete(&self, lease: &slim::Lease) {
        let preconditions = Preconditions { uid: lease.uid(), resource_version: lease.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.leases().delete(&lease.name_any(), &params).await {
            Ok(_) => info!(lease = lease.name_any(), "deleted the Lease of a process that ended"),
            // Renewed, or deleted by another process.
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                warn!(lease = lease.name_any(), error = %Plain(&error), "cannot delete the Lease of a process that ended");
            }
        }
    }

    /// Writes how long a Lease has not been renewed, unless it was renewed since it was listed.
    async fn note_silence(&self, lease: &SeenLease) {
        let silence = silence_text(lease.silent, &lease.object);
        let patch = json!({ "metadata": {
            "resourceVersion": lease.object.resource_version(),
            "annotations": { (SILENT): silence },
        } });
        match tokio::time::timeout(WRITE_TIMEOUT, self.patch(&lease.object.name_any(), &patch)).await {
            Ok(Ok(_)) => {}
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => {}
            Ok(Err(error)) => {
                warn!(error = %Plain(&error), "cannot write to the Lease of a process that ended");
            }
            Err(_) => warn!("cannot write to the Lease of a process that ended: no answer"),
        }
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

/// A Lease as listed.
struct SeenLease {
    object: slim::Lease,
    /// How long it has not been renewed, at least.
    silent: Duration,
    /// What the Lease says about that.
    noted: Duration,
}

impl SeenLease {
    /// Whether its process ended so long ago that what it admitted does not matter any more. The process `own` has not ended: it was cut
    /// off, and renews its Lease again.
    fn is_over(&self, own: &str, kept: Duration) -> bool {
        self.silent > LEASE_DURATION + kept && self.object.name_any() != own
    }

    fn is_worth_noting(&self) -> bool {
        self.silent > LEASE_DURATION && self.silent >= self.noted + SILENCE_STEP
    }
}

/// How long a Lease has not been renewed, and since which renewal. This stays true until the next renewal: no clock is
/// needed to read it.
fn silence_text(silent: Duration, lease: &slim::Lease) -> String {
    format!("{} {}", silent.as_secs(), renewal_text(lease))
}

fn renewal_text(lease: &slim::Lease) -> String {
    let renewal = serde_json::to_value(&lease.spec.renew_time).ok();
    renewal.and_then(|renewal| renewal.as_str().map(str::to_owned)).unwrap_or_default()
}

/// How long a Lease has not been renewed, as another process wrote; zero if it did not, or the Lease was renewed since.
fn noted_silence(lease: &slim::Lease) -> Duration {
    let noted = lease.annotations().get(SILENT).and_then(|text| text.split_once(' '));
    let noted = noted.filter(|(_, renewal)| *renewal == renewal_text(lease));
    noted.and_then(|(seconds, _)| seconds.parse().ok()).map(Duration::from_secs).unwrap_or_default()
}

/// The annotations by which a process that ends hands over what it admitted; `None` if that does not fit.
fn handover(admitted: &[Admission]) -> Option<serde_json::Value> {
    let admitted = budget::admissions_to_json(admitted).to_string();
    (admitted.len() <= MAX_ADMITTED_BYTES).then(|| json!({ (SERVING): "false", (ADMITTED): admitted }))
}

/// The ages of the watched kinds in seconds, as `quorate check` reads them; null for a kind that was never read.
fn watch_ages(watched: &[WatchedKind]) -> String {
    let ages = watched.iter().map(|WatchedKind { kind, age, .. }| (kind, age.map(|age| age.as_secs())));
    json!(ages.collect::<std::collections::BTreeMap<_, _>>()).to_string()
}

fn replica_lease(lease: &slim::Lease, vanished: bool) -> ReplicaLease {
    let annotation = |name: &str| lease.annotations().get(name).map(String::as_str);
    let version = |name: &str| annotation(name).and_then(objects::version);
    let acknowledged = ACKNOWLEDGED.iter().fold(Acknowledged::default(), |known, (kind, name)| {
        known.with(*kind, version(name).unwrap_or(Version(0)))
    });
    let read = |text: &str| budget::read_admissions(&serde_json::from_str(text).ok()?);
    // What cannot be read is unknown: then the Lease counts as that of a process that was killed.
    let admitted = annotation(ADMITTED).map_or(Some(Vec::new()), read);
    let serves = annotation(SERVING) != Some("false") || admitted.is_none();
    let name = lease.name_any().into();
    ReplicaLease { name, acknowledged, vanished, serves, admitted: admitted.unwrap_or_default() }
}

/// A name that no other process has or had.
pub(crate) fn unique_name() -> String {
    format!("quorate-server-{}", uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use quorate_engine::claims::{Target, Token};
    use quorate_engine::facts::Operation;

    use super::*;

    #[test]
    fn the_lease_shows_the_age_of_each_kind() {
        let watched = |kind: &str, age| WatchedKind { kind: kind.to_owned(), age, failing: None };
        let kinds = [watched("Pod", Some(Duration::from_millis(2900))), watched("Fleet.example.com", None)];
        assert_eq!(watch_ages(&kinds), r#"{"Fleet.example.com":null,"Pod":2}"#);
    }

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

    fn lease(annotations: &[(&str, &str)], renewed: &str) -> slim::Lease {
        let annotations: serde_json::Map<String, serde_json::Value> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let lease = json!({ "metadata": { "name": "a", "annotations": annotations },
            "spec": { "holderIdentity": "a", "renewTime": renewed } });
        serde_json::from_value(lease).expect("a Lease")
    }

    const TEN: &str = "2026-11-15T10:00:00.000000Z";

    #[test]
    fn only_a_lease_that_says_so_is_not_serving() {
        let admitted = r#"[{"uid":"u","pod":"p","token":"t","what":{"operation":"Evict","by":"ann","at":"2026-11-15T10:00:00.000000Z"}}]"#;
        for (annotations, serves, handed_over, why) in [
            (&[][..], true, 0, "a server of an earlier release"),
            (&[(SERVING, "true")], true, 0, "it serves"),
            (&[(SERVING, "false")], false, 0, "it does not serve yet"),
            (&[(SERVING, "false"), (ADMITTED, admitted)], false, 1, "it has ended"),
            (&[(SERVING, "false"), (ADMITTED, "[{}]")], true, 0, "what it admitted cannot be read"),
            (&[(SERVING, "no")], true, 0, "another word"),
        ] {
            let replica = replica_lease(&lease(annotations, TEN), true);
            assert_eq!((replica.serves, replica.admitted.len()), (serves, handed_over), "{why}");
        }
    }

    #[test]
    fn a_noted_silence_holds_until_the_next_renewal() {
        let noted = silence_text(Duration::from_millis(45_900), &lease(&[], TEN));
        assert_eq!(noted_silence(&lease(&[(SILENT, &noted)], TEN)), Duration::from_secs(45));
        let renewed = lease(&[(SILENT, &noted)], "2026-11-15T10:00:04.000000Z");
        assert_eq!(noted_silence(&renewed), Duration::ZERO);
        for text in ["", "45", "soon 2026-11-15T10:00:00.000000Z", "-5 2026-11-15T10:00:00.000000Z"] {
            assert_eq!(noted_silence(&lease(&[(SILENT, text)], TEN)), Duration::ZERO, "{text}");
        }
    }

    #[test]
    fn a_process_that_was_cut_off_keeps_its_own_lease() {
        let kept = Duration::from_secs(120);
        for (own, silent, over, why) in [
            ("b", 136, true, "another process ended long ago"),
            ("b", 134, false, "what it admitted may still have no effect"),
            ("a", 136, false, "this process was cut off"),
        ] {
            let silent = Duration::from_secs(silent);
            let lease = SeenLease { object: lease(&[], TEN), silent, noted: Duration::ZERO };
            assert_eq!(lease.is_over(own, kept), over, "{why}");
        }
    }

    #[test]
    fn admissions_that_do_not_fit_are_not_handed_over() {
        let what = Token {
            operation: Operation::Evict,
            by: "system:serviceaccount:kube-system:node-controller".into(),
            at: Time(0),
            target: Target::default(),
        };
        let admissions = |count: usize| -> Vec<Admission> {
            let admission = |number: usize| Admission {
                uid: format!("5f1d0c52-7f0e-4a53-9d2e-{number:012}").into(),
                pod: format!("web-{number}").into(),
                token: format!("quorate-server-5f1d0c527f0e4a539d2e0d5b9d3b1a01-{number}").into(),
                what: what.clone(),
            };
            (0..count).map(admission).collect()
        };
        assert!(handover(&admissions(0)).is_some() && handover(&admissions(500)).is_some());
        assert!(handover(&admissions(5_000)).is_none());
    }
}
