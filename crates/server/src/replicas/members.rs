//! The Leases of all replicas, as this process reads them.

use std::collections::HashMap;
use std::time::Duration;

use kube::api::{DeleteParams, Preconditions};
use kube::{Error, ResourceExt};
use parking_lot::Mutex;
use quorate_api::names::{ADMITTED, SERVING, SILENT};
use quorate_api::slim;
use quorate_engine::basics::{Time, Version};
use quorate_engine::ledger::{Acknowledged, ReplicaLease};
use quorate_intake::{budget, objects};
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use quorate_kit::lease::ObservedLease;
use quorate_kit::watch::WatchSource;
use serde_json::json;
use tracing::{info, warn};

use super::acknowledgement::ACKNOWLEDGED;
use super::silence::{SeenLease, noted_silence, silence_text};
use super::{LABEL, ReplicaLeases, WRITE_TIMEOUT};
use crate::clock;

/// Interval between two lists of the Leases. Every process lists them, so that the end of a process is noticed when it
/// happens, and not when the next budget opens. Each interval is random between half and all of this, 30 s on average.
const LIST_INTERVAL: Duration = Duration::from_secs(40);

/// Timeout of a list of the Leases.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What this process has seen of the Leases.
pub(super) struct Observations {
    /// Whether what is noted in a Lease about its silence counts.
    trusts_notes: bool,
    /// Each Lease as last read, by name.
    seen: Mutex<HashMap<String, ObservedLease<Time>>>,
}

impl Observations {
    pub(super) fn new(trusts_notes: bool) -> Self {
        Self { trusts_notes, seen: Mutex::default() }
    }

    /// Takes a list of all Leases, read at `now`.
    fn take(&self, listed: Vec<slim::Lease>, now: Time) -> Vec<SeenLease> {
        let mut seen = self.seen.lock();
        seen.retain(|name, _| listed.iter().any(|lease| lease.name_any() == *name));
        let observe = |object: slim::Lease| {
            let (holder, renewed) = (object.spec.holder_identity.as_deref(), object.spec.renew_time.as_ref());
            let noted = if self.trusts_notes { noted_silence(&object) } else { Duration::ZERO };
            let before = Time(now.0.saturating_sub(i64::try_from(noted.as_millis()).unwrap_or(i64::MAX)));
            let first = || ObservedLease::new(holder, renewed, before);
            let since = seen.entry(object.name_any()).or_insert_with(first).read(holder, renewed, now);
            SeenLease { object, silent: now.since(since), noted }
        };
        listed.into_iter().map(observe).collect()
    }
}

impl ReplicaLeases {
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
        #[cfg(feature = "mutations")]
        let observed = observed.into_iter().filter(|lease| !is_omitted(lease)).collect::<Vec<_>>();
        Ok(observed.iter().map(|lease| replica_lease(&lease.object)).collect())
    }

    async fn observe(&self) -> Result<Vec<SeenLease>, Error> {
        let source: WatchSource<slim::Lease> = WatchSource::namespaced(self.client.clone(), &self.namespace)
            .selected_by(format!("{}={}", LABEL.0, LABEL.1));
        let listed = source.list().await?;
        let seen = self.observations.take(listed.objects, clock::now());
        let (over, leases): (Vec<_>, Vec<_>) =
            seen.into_iter().partition(|lease| lease.is_over(&self.name, self.kept));
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

/// Whether a list omits this Lease, which it must not do: its server may have admitted something. Only in test builds.
#[cfg(feature = "mutations")]
fn is_omitted(lease: &SeenLease) -> bool {
    use quorate_engine::ledger::ProtocolRule;
    ProtocolRule::WaitForVanished.is_left_out() && lease.silent > super::LEASE_DURATION
}

fn replica_lease(lease: &slim::Lease) -> ReplicaLease {
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
    ReplicaLease { name, acknowledged, serves, admitted: admitted.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::Client;
    use quorate_kit::watch::Interruptions;

    use super::super::tests::{TEN, lease};
    use super::*;

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
            let replica = replica_lease(&lease(annotations, TEN));
            assert_eq!((replica.serves, replica.admitted.len()), (serves, handed_over), "{why}");
        }
    }

    /// An API server with one Lease, of which others noted that it is silent.
    fn observing() -> ReplicaLeases {
        let noted = silence_text(Duration::from_secs(120), &lease(&[], TEN));
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let lease = json!({ "metadata": { "name": "a", "uid": "a", "resourceVersion": "7", "annotations": { (SILENT): noted } },
                "spec": { "holderIdentity": "a", "renewTime": TEN } });
            let list = json!({ "metadata": { "resourceVersion": "9" }, "items": [lease] });
            let body = kube::client::Body::from(list.to_string().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        let (client, kept) = (Client::new(service, "default"), Duration::from_secs(120));
        ReplicaLeases::new(client, "quorate".to_owned(), "b".to_owned(), kept, Interruptions::default())
    }

    /// An API server that lists one Lease at version 7 whose process ended long ago. The Lease has the version `stored` when a
    /// delete arrives; it is `None` once it is deleted.
    fn deleting(stored: u64) -> (ReplicaLeases, Arc<Mutex<Option<u64>>>) {
        let noted = silence_text(Duration::from_secs(1000), &lease(&[], TEN));
        let store = Arc::new(Mutex::new(Some(stored)));
        let shared = store.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let lease = json!({ "metadata": { "name": "a", "uid": "a", "resourceVersion": "7", "annotations": { (SILENT): noted } },
                "spec": { "holderIdentity": "a", "renewTime": TEN } });
            let list = json!({ "metadata": { "resourceVersion": "9" }, "items": [lease] });
            let shared = shared.clone();
            async move {
                let is_delete = request.method() == http::Method::DELETE;
                let body = request.into_body().collect_bytes().await.expect("a body");
                let (code, answer) = if is_delete { delete(&shared, &body) } else { (200, list) };
                let body = kube::client::Body::from(answer.to_string().into_bytes());
                let response = http::Response::builder().status(code).body(body);
                Ok::<_, std::convert::Infallible>(response.expect("a response"))
            }
        });
        let (client, kept) = (Client::new(service, "default"), Duration::from_secs(120));
        let leases =
            ReplicaLeases::new(client, "quorate".to_owned(), "b".to_owned(), kept, Interruptions::default());
        (leases, store)
    }

    /// Deletes the Lease as an API server does: only if it has the version and the UID that the request requires.
    fn delete(stored: &Mutex<Option<u64>>, body: &[u8]) -> (u16, serde_json::Value) {
        let options: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let required = &options["preconditions"];
        let version = stored.lock().map(|version| version.to_string());
        let fits =
            |required: &serde_json::Value, is: Option<&str>| required.is_null() || required.as_str() == is;
        if fits(&required["resourceVersion"], version.as_deref()) && fits(&required["uid"], Some("a")) {
            *stored.lock() = None;
            return (200, json!({ "kind": "Status", "status": "Success" }));
        }
        (409, json!({ "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409 }))
    }

    #[tokio::test]
    async fn a_lease_that_was_renewed_since_it_was_listed_stays() {
        for (stored, left, why) in [(7, None, "as listed"), (8, Some(8), "renewed since")] {
            let (leases, store) = deleting(stored);
            assert!(leases.list().await.expect("a list").is_empty(), "its process ended long ago");
            assert_eq!(*store.lock(), left, "{why}");
        }
    }

    #[tokio::test]
    async fn a_process_that_starts_over_does_not_believe_what_is_noted_in_a_lease() {
        let silent = |seen: Vec<SeenLease>| seen[0].silent.as_secs();
        assert_eq!(silent(observing().observe().await.expect("a list")), 120);
        assert_eq!(silent(observing().without_notes().observe().await.expect("a list")), 0);
    }
}
