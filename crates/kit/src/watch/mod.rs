//! Watches: everything of one kind, first as a list, then change by change.
//!
//! A loop of our own over the API server's list and watch. What it does otherwise than kube's:
//! - Each object is decoded on its own. One that cannot be decoded is reported and costs no more than itself.
//! - Bookmarks come through with their version: they tell how far the watch has come though nothing happened.
//! - A list arrives whole or not at all, so whoever keeps state can swap it in; one that is interrupted leaves no trace.
//! - Lists are consistent: none shows an older state than what was shown before.
//! - Nothing is waited for without bound, and nothing ends a watch: [`Health`] tells how it does.
//! - What is kept of an object is made of its text at once ([`Source::read_by`]), so that a long list of large objects is
//!   never in memory as such: there is one page of text, and what was kept of the pages before.

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
pub use health::{Failing, Health, Progress, Why};
pub use wire::{Identity, Unreadable};
use wire::{Line, Page};

/// Objects in one page of a list: few enough that a page is never large, many enough that few are needed.
const PAGE: u32 = 500;

/// How long one watch call lasts. The API server ends it then, and the next one goes on from there.
const WATCH_SECONDS: u32 = 290;

/// No page of a list, and no beginning of a watch, is waited for longer. The API server itself takes no longer than a
/// minute for a list, and a page takes a fraction of that.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a watch may be silent, by chance within these bounds, so that many watches that fell silent together do not
/// list together. Longer than the minute between two bookmarks, so that where there are bookmarks no list is needed;
/// shorter than the 90 s after which what was heard is stale, so that where there are none a quiet kind does not go stale.
const SILENCE: RangeInclusive<Duration> = Duration::from_secs(65)..=Duration::from_secs(75);

/// What fails is tried again at least this often.
const RETRIED: Duration = Duration::from_secs(10);

/// A failure that lasts is logged this often.
const LOGGED: Duration = Duration::from_secs(60);

/// What a watch shows.
#[derive(Debug)]
pub enum Event<K> {
    /// Everything there is; what was known before and is not in it is gone.
    Listed(Listed<K>),
    /// An object appeared or changed.
    Applied(K),
    /// An object is gone; this is how it looked last, with the version of its end.
    Deleted(K),
    /// An object changed, or is gone, and cannot be decoded.
    Unreadable(Unreadable),
    /// Nothing is missing up to this version.
    Bookmark(String),
}

type Read<K> = Arc<dyn Fn(&str) -> Result<K, String> + Send + Sync>;

/// Everything there is of a kind.
#[derive(Debug)]
pub struct Listed<K> {
    /// The objects.
    pub objects: Vec<K>,
    /// Those that cannot be decoded.
    pub unreadable: Vec<Unreadable>,
    /// The version of the list.
    pub version: String,
}

/// What to watch.
pub struct Source<K> {
    client: Client,
    request: Request,
    kind: String,
    labels: Option<String>,
    fields: Option<String>,
    health: Health,
    /// When a failure was last logged.
    logged: Mutex<Option<Instant>>,
    read: Read<K>,
}

impl<K> Source<K> {
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

    /// All objects of a kind that is known by discovery only, in one namespace or in all.
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
            read,
        }
    }

    /// Reads objects in another way: what is kept of each, from its JSON text, or why that cannot be told.
    #[must_use]
    pub fn read_by<T>(self, read: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static) -> Source<T> {
        let Self { client, request, kind, labels, fields, health, logged, .. } = self;
        Source { client, request, kind, labels, fields, health, logged, read: Arc::new(read) }
    }

    /// Only those that a label selector selects.
    #[must_use]
    pub fn selected_by(self, labels: String) -> Self {
        Self { labels: Some(labels).filter(|labels| !labels.is_empty()), ..self }
    }

    /// Only those that a field selector selects, such as `spec.nodeName=a`.
    #[must_use]
    pub fn in_field(self, fields: String) -> Self {
        Self { fields: Some(fields), ..self }
    }

    /// Shows there how the watch does.
    #[must_use]
    pub fn reporting_to(self, health: Health) -> Self {
        Self { health, ..self }
    }
}

/// How a watch call came to its end.
enum Ending {
    /// Go on from this version.
    Resume,
    /// What is between here and now is lost, or unknown: list again.
    Relist,
}

/// Watches, and tells everything in order. It never ends by itself: drop the future to stop.
///
/// A failure of any sort, 403 and 404 included, is retried, and what was told before stays true meanwhile as far as
/// anyone knows. Who wants to know of failures looks at the [`Health`] of the source.
pub async fn run<K, F>(source: Source<K>, mut tell: impl FnMut(Event<K>) -> F) -> Infallible
where
    F: Future<Output = ()>,
{
    let mut backoff = Backoff::new(Duration::from_millis(100), RETRIED);
    loop {
        let (number, sent) = (source.health.begin(), Instant::now());
        let listed = match source.list().await {
            Ok(listed) => listed,
            Err(error) => {
                source.failed(&error, "cannot list");
                tokio::time::sleep(backoff.failed()).await;
                continue;
            }
        };
        let mut version = listed.version.clone();
        debug!(kind = source.kind, objects = listed.objects.len(), version, "listed");
        tell(Event::Listed(listed)).await;
        source.healed(source.health.listed(number, sent).as_ref());
        let mut silence = Silence::new();
        loop {
            let began = Instant::now();
            let ended = source.watch(&mut version, &mut silence, &mut backoff, &mut tell).await;
            // One that lasted was in order, though nothing may have happened; its end begins a new row of attempts.
            if began.elapsed() >= RETRIED {
                backoff.reset();
            }
            match ended {
                Ok(Ending::Resume) => {}
                Ok(Ending::Relist) => break,
                Err(error) => {
                    let why = source.failed(&error, "the watch broke off");
                    tokio::time::sleep(backoff.failed()).await;
                    // If the kind comes back, its objects may be others.
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

/// How long nothing has been heard of a kind.
struct Silence {
    /// When it has lasted too long.
    ends: Instant,
}

impl Silence {
    fn new() -> Self {
        Self { ends: Instant::now() + rand::random_range(SILENCE) }
    }

    fn broken(&mut self) {
        *self = Self::new();
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }
}

/// Waits for an answer, but not for ever: a peer that died without a word never sends one.
async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Service(NoAnswer.into())),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", PATIENCE.as_secs())]
struct NoAnswer;

impl NoAnswer {
    fn is(error: &Error) -> bool {
        matches!(error, Error::Service(inner) if inner.is::<Self>())
    }
}

impl<K> Source<K> {
    /// Notes that something was heard at this time.
    fn heard(&self, at: Instant) {
        self.healed(self.health.heard(at).as_ref());
    }

    fn healed(&self, failing: Option<&Failing>) {
        if let Some(Failing { since, .. }) = failing {
            info!(kind = self.kind, after = ?since.elapsed(), "can be read again");
        }
    }

    /// Notes a failure. It is logged when it is new, and then once a minute: it may last.
    fn failed(&self, error: &Error, what: &str) -> Why {
        let why = Why::of(error);
        let is_new = self.health.failed(why.clone());
        let mut logged = self.logged.lock();
        if is_new || logged.is_none_or(|logged| logged.elapsed() >= LOGGED) {
            *logged = Some(Instant::now());
            let lasts = self.health.progress().failing.map(|failing| failing.since.elapsed());
            warn!(kind = self.kind, error = %why, ?lasts, "{what}");
        } else {
            debug!(kind = self.kind, error = %why, "{what}");
        }
        why
    }

    /// Lists everything, page by page. Without a version a list is consistent; its later pages are of the same version
    /// as its first. Each page has a time-out of its own.
    ///
    /// # Errors
    /// The API server does not answer in time, or not with a list.
    pub async fn list(&self) -> Result<Listed<K>, Error> {
        let mut listed = Listed { objects: Vec::new(), unreadable: Vec::new(), version: String::new() };
        let mut params = ListParams {
            limit: Some(PAGE),
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        };
        loop {
            let request = self.request.list(&params).map_err(Error::BuildRequest)?;
            let text = in_time(self.client.request_text(request)).await?;
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

    /// One watch call, from `version` on; `version` follows what was told.
    async fn watch<F: Future<Output = ()>>(
        &self,
        version: &mut String,
        silence: &mut Silence,
        backoff: &mut Backoff,
        tell: &mut impl FnMut(Event<K>) -> F,
    ) -> Result<Ending, Error> {
        let params = WatchParams {
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..WatchParams::default()
        };
        let mut request = self.request.watch(&params, version).map_err(Error::BuildRequest)?;
        // Some releases compress each event by itself, which is more than a stream decoder can follow.
        let identity = http::HeaderValue::from_static("identity");
        request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
        let stream = match in_time(self.client.request_stream(request)).await {
            Err(Error::Api(status)) if status.code == 410 => return Ok(Ending::Relist),
            // Where lists are answered and watches are not, lists are what keeps the kind from going stale.
            // (One that broke off is resumed: an API server that restarts has enough to do without lists.)
            Err(error) if NoAnswer::is(&error) => {
                self.failed(&error, "the watch did not begin");
                tokio::time::sleep(backoff.failed()).await;
                return Ok(Ending::Relist);
            }
            outcome => outcome?,
        };
        self.healed(self.health.answered().as_ref());
        let mut lines = Box::pin(stream);
        let mut line = String::new();
        let mut heard = false;
        loop {
            line.clear();
            let read = tokio::time::timeout_at(silence.ends, lines.read_line(&mut line));
            let read = tokio::select! {
                read = read => read,
                () = self.health.is_wanted() => return Ok(Ending::Relist),
            };
            match read {
                // Silent for too long. The connection may be dead; and a watch from here would hear nothing before its
                // first bookmark, if the kind has bookmarks at all. A list tells how things are.
                Err(_) => {
                    debug!(kind = self.kind, "silent: listing again");
                    return Ok(Ending::Relist);
                }
                Ok(Ok(0)) => {
                    // A server that ends every watch at once must not be asked a thousand times a second.
                    if !heard {
                        tokio::time::sleep(backoff.failed()).await;
                    }
                    return Ok(Ending::Resume);
                }
                Ok(read) => read.map_err(Error::ReadEvents)?,
            };
            let Some(change) = Line::read(&line, &self.read)? else { continue };
            match change {
                Line::Error { code: 410, .. } => return Ok(Ending::Relist),
                Line::Error { code, message } => {
                    warn!(kind = self.kind, code, message, "the watch was ended");
                    tokio::time::sleep(backoff.failed()).await;
                    return Ok(Ending::Resume);
                }
                Line::Change { event, at: reached } => {
                    heard = true;
                    silence.broken();
                    backoff.reset();
                    let at = Instant::now();
                    tell(event).await;
                    self.heard(at);
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
