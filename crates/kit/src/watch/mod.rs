//! Watches all objects of one kind: first as a list, then as changes.
//!
//! This is a list-watch loop like the one of kube, with these differences:
//! - Each object is decoded separately. An object that cannot be decoded is reported and does not affect the others.
//! - Bookmarks are delivered with their version: they show the progress of a watch without changes.
//! - A list is delivered whole or not at all, so a cache can replace its content. An interrupted list has no effect.
//! - Lists are consistent: none has an older state than what was delivered before.
//! - Every wait has a timeout, and no failure ends a watch: [`Health`] has its state.
//! - Each object is reduced to the needed fields as soon as it is read ([`WatchSource::read_by`]). So a long list of large
//!   objects is never in memory as a whole: only one page of text, and the reduced objects of the pages before.

mod health;
mod wire;

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use kube::api::{ListParams, WatchParams};
use kube::core::{ApiResource, Request, Resource};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::backoff::Backoff;
pub use health::{Failing, Health, Interruptions, Progress, Why};
pub use wire::{Identity, UnreadableObject};
use wire::{Line, Page};

/// Objects in one page of a list: few enough to keep a page small, many enough to need few pages.
const PAGE_SIZE: u32 = 500;

/// Duration of one watch call. The API server then ends it, and the next call resumes from the last version.
const WATCH_SECONDS: u32 = 290;

/// A watch that ended after this time ended because its duration was over.
const AGREED: Duration = Duration::from_secs(WATCH_SECONDS as u64 - 10);

/// Timeout for one page of a list and for the start of a watch. The API server allows a minute for a list, and a page
/// takes a fraction of that.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest silence of a watch before it lists again. The value is random within these bounds, so that watches that fell
/// silent together do not list together. It is longer than the minute between two bookmarks, so a watch with bookmarks
/// needs no list. It is shorter than the 90 s after which a cache is stale, so a quiet kind without bookmarks does not
/// become stale.
const SILENCE: RangeInclusive<Duration> = Duration::from_secs(65)..=Duration::from_secs(75);

/// Longest wait before a retry.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Interval at which a lasting failure is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// An event of a watch.
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// All objects; an object that is not in the list no longer exists.
    Listed(Listed<K>),
    /// An object was added or modified.
    Applied(K),
    /// An object was deleted; this is its last state, with the version of its deletion.
    Deleted(K),
    /// An object was added, modified or deleted, and cannot be decoded.
    Unreadable(UnreadableObject),
    /// All changes up to this version were delivered.
    Bookmark(String),
}

type Read<K> = Arc<dyn Fn(&str) -> Result<K, String> + Send + Sync>;

/// All objects of a kind.
#[derive(Debug)]
pub struct Listed<K> {
    /// The objects.
    pub objects: Vec<K>,
    /// The objects that cannot be decoded.
    pub unreadable: Vec<UnreadableObject>,
    /// The version of the list.
    pub version: String,
    /// When the list was requested. It shows every change up to then.
    pub requested: Instant,
}

/// What to watch.
pub struct WatchSource<K> {
    client: Client,
    request: Request,
    kind: String,
    labels: Option<String>,
    fields: Option<String>,
    health: Health,
    /// When a failure was last logged.
    logged: Mutex<Option<Instant>>,
    /// Timeout for one page of a list and for the start of a watch.
    request_timeout: Duration,
    read: Read<K>,
}

impl<K> WatchSource<K> {
    /// All objects of a kind, in all namespaces.
    pub fn all(client: Client) -> Self
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
    {
        Self::new(client, K::kind(&()).into_owned(), K::url_path(&(), None))
    }

    /// All objects of a kind in one namespace.
    pub fn namespaced(client: Client, namespace: &str) -> Self
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
    {
        Self::new(client, K::kind(&()).into_owned(), K::url_path(&(), Some(namespace)))
    }

    /// All objects of a kind found by discovery, in one namespace or in all.
    pub fn found(client: Client, resource: &ApiResource, namespace: Option<&str>) -> Self
    where
        K: DeserializeOwned + 'static,
    {
        let api = if resource.group.is_empty() { "api" } else { "apis" };
        let within = namespace.map(|name| format!("namespaces/{name}/")).unwrap_or_default();
        let url = format!("/{api}/{}/{within}{}", resource.api_version, resource.plural);
        Self::new(client, resource.kind.clone(), url)
    }

    fn new(client: Client, kind: String, url: String) -> Self
    where
        K: DeserializeOwned + 'static,
    {
        let request = Request::new(url);
        let read: Read<K> = Arc::new(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
        Self {
            client,
            request,
            kind,
            labels: None,
            fields: None,
            health: Health::default(),
            logged: Mutex::default(),
            request_timeout: REQUEST_TIMEOUT,
            read,
        }
    }

    /// Sets how to decode an object: `read` returns the needed fields from its JSON text, or why they cannot be read.
    #[must_use]
    pub fn read_by<T>(
        self,
        read: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static,
    ) -> WatchSource<T> {
        let Self { client, request, kind, labels, fields, health, logged, request_timeout, .. } = self;
        let read = Arc::new(read);
        WatchSource { client, request, kind, labels, fields, health, logged, request_timeout, read }
    }

    /// Only objects that match a label selector.
    #[must_use]
    pub fn selected_by(self, labels: String) -> Self {
        Self { labels: Some(labels).filter(|labels| !labels.is_empty()), ..self }
    }

    /// Only objects that match a field selector, such as `spec.nodeName=a`.
    #[must_use]
    pub fn in_field(self, fields: String) -> Self {
        Self { fields: Some(fields), ..self }
    }

    /// Sets the timeout for one page of a list and for the start of a watch.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// Reports the health of the watch there.
    #[must_use]
    pub fn reporting_to(self, health: Health) -> Self {
        Self { health, ..self }
    }
}

/// How a watch call ended.
enum Ending {
    /// Resume from the last version.
    Resume,
    /// Changes may be lost: list again.
    Relist,
    /// A list was requested.
    Wanted,
}

/// Watches, and delivers all events in order to `deliver`. It never ends by itself: drop the future to stop.
///
/// Every failure is retried, 403 and 404 included. Meanwhile the objects delivered before remain the last known state.
/// The [`Health`] of the source reports failures.
pub async fn run<K, F>(source: WatchSource<K>, mut deliver: impl FnMut(WatchEvent<K>) -> F) -> Infallible
where
    F: Future<Output = ()>,
{
    let mut backoff = Backoff::new(Duration::from_millis(100), MAX_BACKOFF);
    loop {
        let number = source.health.begin();
        let listed = match source.list().await {
            Ok(listed) => listed,
            Err(error) => {
                source.failed(&error, "cannot list");
                tokio::time::sleep(backoff.failed()).await;
                continue;
            }
        };
        let (mut version, requested) = (listed.version.clone(), listed.requested);
        debug!(kind = source.kind, objects = listed.objects.len(), version, "listed");
        deliver(WatchEvent::Listed(listed)).await;
        source.healed(source.health.listed(number, requested).as_ref());
        let mut silence = Silence::new();
        let mut connected = true;
        loop {
            let began = Instant::now();
            let progress = (&mut version, &mut silence, &mut connected);
            let ended = source.watch(progress, &mut backoff, &mut deliver).await;
            let agreed = match &ended {
                Ok(Ending::Wanted) => true,
                Ok(Ending::Resume) => began.elapsed() >= AGREED,
                _ => false,
            };
            if !agreed && std::mem::take(&mut connected) {
                source.health.interrupted();
            }
            // A watch that lasted was successful, even without events, so its end resets the backoff.
            if began.elapsed() >= MAX_BACKOFF {
                backoff.reset();
            }
            match ended {
                Ok(Ending::Resume) => {}
                Ok(Ending::Relist | Ending::Wanted) => break,
                Err(error) => {
                    let why = source.failed(&error, "the watch failed");
                    tokio::time::sleep(backoff.failed()).await;
                    // If the API server serves the kind again, its objects may be different ones.
                    if why == Why::NotServed {
                        break;
                    }
                }
            }
            if silence.is_over() {
                break;
            }
        }
    }
}

/// How long a watch has received nothing.
struct Silence {
    /// When the silence has lasted too long.
    ends: Instant,
}

impl Silence {
    fn new() -> Self {
        Self { ends: Instant::now() + rand::random_range(SILENCE) }
    }

    fn reset(&mut self) {
        *self = Self::new();
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }
}

/// Waits for a response with a timeout: a server that died without closing the connection never sends one.
async fn in_time<T>(timeout: Duration, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(timeout, answer).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Service(NoAnswer(timeout).into())),
    }
}

/// Whether the API server says that it has not reached the requested version. After etcd was restored from an older
/// snapshot, it may reach that version later, with other objects.
fn is_from_the_future(message: &str) -> bool {
    message.contains("Too large resource version")
}

/// Whether one version is older than another. Versions that are not numbers cannot be compared.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
struct NoAnswer(Duration);

impl NoAnswer {
    fn is(error: &Error) -> bool {
        matches!(error, Error::Service(inner) if inner.is::<Self>())
    }
}

impl<K> WatchSource<K> {
    /// Records that an event was received at this time.
    fn received(&self, at: Instant) {
        self.healed(self.health.received(at).as_ref());
    }

    fn healed(&self, failing: Option<&Failing>) {
        if let Some(Failing { since, .. }) = failing {
            info!(kind = self.kind, after = ?since.elapsed(), "reads succeed again");
        }
    }

    /// Records a failure. It is logged when it is new, and then once a minute while it lasts.
    fn failed(&self, error: &Error, what: &str) -> Why {
        let why = Why::of(error);
        let is_new = self.health.failed(why.clone());
        let mut logged = self.logged.lock();
        if is_new || logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            let lasts = self.health.progress().failing.map(|failing| failing.since.elapsed());
            warn!(kind = self.kind, error = %why, ?lasts, "{what}");
        } else {
            debug!(kind = self.kind, error = %why, "{what}");
        }
        why
    }

    /// Lists all objects, page by page. The request has no version, so the list is consistent. Later pages have the
    /// same version as the first. Each page has its own timeout.
    ///
    /// # Errors
    /// The API server does not answer in time, or the response is not a list.
    pub async fn list(&self) -> Result<Listed<K>, Error> {
        let mut listed = Listed {
            objects: Vec::new(),
            unreadable: Vec::new(),
            version: String::new(),
            requested: Instant::now(),
        };
        let mut params = ListParams {
            limit: Some(PAGE_SIZE),
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        };
        loop {
            let request = self.request.list(&params).map_err(Error::BuildRequest)?;
            let text = in_time(self.request_timeout, self.client.request_text(request)).await?;
            let page: Page<'_> = serde_json::from_str(&text).map_err(Error::SerdeError)?;
            for item in page.items {
                match wire::read(item, &self.read) {
                    Ok(object) => listed.objects.push(object),
                    Err(unreadable) => listed.unreadable.push(*unreadable),
                }
            }
            listed.version = page.metadata.resource_version;
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(listed),
            }
        }
    }

    /// One watch call, from `version` on; `version` is updated with each delivered event, `connected` is set once the API
    /// server has accepted the watch.
    async fn watch<F: Future<Output = ()>>(
        &self,
        (version, silence, connected): (&mut String, &mut Silence, &mut bool),
        backoff: &mut Backoff,
        deliver: &mut impl FnMut(WatchEvent<K>) -> F,
    ) -> Result<Ending, Error> {
        let params = WatchParams {
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..WatchParams::default()
        };
        let mut request = self.request.watch(&params, version).map_err(Error::BuildRequest)?;
        // Some releases compress each event separately, which the stream decoder cannot handle.
        let identity = http::HeaderValue::from_static("identity");
        request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
        let stream = match in_time(self.request_timeout, self.client.request_stream(request)).await {
            Err(Error::Api(status)) if status.code == 410 || is_from_the_future(&status.message) => {
                return Ok(Ending::Relist);
            }
            // If the API server answers lists but not watches, lists keep the kind from becoming stale. (A watch that
            // failed is resumed instead: a restarting API server should not get additional lists.)
            Err(error) if NoAnswer::is(&error) => {
                self.failed(&error, "the watch did not start");
                tokio::time::sleep(backoff.failed()).await;
                return Ok(Ending::Relist);
            }
            outcome => outcome?,
        };
        self.healed(self.health.answered().as_ref());
        *connected = true;
        let mut lines = Box::pin(stream);
        let mut line = String::new();
        let mut received_any = false;
        loop {
            line.clear();
            let read = tokio::time::timeout_at(silence.ends, lines.read_line(&mut line));
            let read = tokio::select! {
                read = read => read,
                () = self.health.is_wanted() => return Ok(Ending::Wanted),
            };
            match read {
                // Silent for too long. The connection may be dead, and a new watch would receive nothing before its
                // first bookmark, if the kind has bookmarks at all. A list returns the present state.
                Err(_) => {
                    debug!(kind = self.kind, "no events: listing again");
                    return Ok(Ending::Relist);
                }
                Ok(Ok(0)) => {
                    // A server that ends every watch at once must not be called a thousand times a second.
                    if !received_any {
                        tokio::time::sleep(backoff.failed()).await;
                    }
                    return Ok(Ending::Resume);
                }
                Ok(read) => read.map_err(Error::ReadEvents)?,
            };
            let Some(change) = Line::read(&line, &self.read)? else { continue };
            match change {
                Line::Error { code: 410, .. } => return Ok(Ending::Relist),
                Line::Error { message, .. } if is_from_the_future(&message) => return Ok(Ending::Relist),
                Line::Error { code, message } => {
                    warn!(kind = self.kind, code, message, "the API server ended the watch");
                    tokio::time::sleep(backoff.failed()).await;
                    return Ok(Ending::Resume);
                }
                // A watch shows only what is newer than where it began.
                Line::Change { at: Some(reached), .. } if is_older(&reached, version) => {
                    warn!(kind = self.kind, %reached, %version, "the store went back: listing again");
                    return Ok(Ending::Relist);
                }
                Line::Change { event, at: reached } => {
                    received_any = true;
                    silence.reset();
                    backoff.reset();
                    let at = Instant::now();
                    deliver(event).await;
                    self.received(at);
                    if let Some(reached) = reached {
                        *version = reached;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
