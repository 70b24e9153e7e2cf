//! Watches: everything of one kind, first as a list, then change by change.
//!
//! A loop of our own over the API server's list and watch. What it does otherwise than kube's:
//! - Each object is decoded on its own. One that cannot be decoded is reported and costs no more than itself.
//! - Bookmarks come through with their version: they tell how far the watch has come though nothing happened.
//! - A list arrives whole or not at all, so whoever keeps state can swap it in; one that is interrupted leaves no trace.
//! - Lists are consistent: none shows an older state than what was shown before.
//! - What is kept of an object is made of its text at once ([`Source::read_by`]), so that a long list of large objects is
//!   never in memory as such: there is one page of text, and what was kept of the pages before.

mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use kube::api::{ListParams, WatchParams};
use kube::core::{ApiResource, Request, Resource};
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use crate::Plain;
use crate::backoff::Backoff;
pub use wire::{Identity, Unreadable};
use wire::{Line, Page};

/// Objects in one page of a list: few enough that a page is never large, many enough that few are needed.
const PAGE: u32 = 500;

/// How long one watch call lasts. The API server ends it then, and the next one goes on from there.
const WATCH_SECONDS: u32 = 290;

/// The API server sends a bookmark about once a minute. A connection that has been silent for longer than this may be
/// dead without anybody having said so.
const SILENCE: Duration = Duration::from_secs(80);

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

/// Why there is nothing to watch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// There is no such kind.
    #[error("the API server does not serve it")]
    NotServed,
    /// We may not look at it.
    #[error("{0}")]
    Forbidden(String),
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
    optional: bool,
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
        Self { client, request, kind, labels: None, fields: None, optional: false, read }
    }

    /// Reads objects in another way: what is kept of each, from its JSON text, or why that cannot be told.
    #[must_use]
    pub fn read_by<T>(self, read: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static) -> Source<T> {
        let Self { client, request, kind, labels, fields, optional, .. } = self;
        Source { client, request, kind, labels, fields, optional, read: Arc::new(read) }
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

    /// The kind may be missing, or go while it is watched; the watch then ends.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

/// How a watch came to its end.
enum Ending {
    /// Go on from this version.
    Resume,
    /// What is between here and now is lost: list again.
    Expired,
}

/// Watches, and tells everything in order. Drop the future to stop; by itself it ends only for an optional kind that is
/// not there.
pub async fn run<K, F>(source: Source<K>, mut tell: impl FnMut(Event<K>) -> F) -> Missing
where
    F: Future<Output = ()>,
{
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
    loop {
        let listed = match source.list().await {
            Ok(listed) => listed,
            Err(error) => {
                if let Some(missing) = source.missing(&error) {
                    return missing;
                }
                let wait = backoff.failed();
                warn!(kind = source.kind, error = %Plain(&error), ?wait, "cannot list");
                tokio::time::sleep(wait).await;
                continue;
            }
        };
        let mut version = listed.version.clone();
        debug!(kind = source.kind, objects = listed.objects.len(), version, "listed");
        tell(Event::Listed(listed)).await;
        loop {
            match source.watch(&mut version, &mut backoff, &mut tell).await {
                Ok(Ending::Resume) => {}
                Ok(Ending::Expired) => break,
                Err(error) if source.missing(&error).is_some() => {
                    // A list tells for sure. One that can be listed and not watched must not be listed all the time.
                    tokio::time::sleep(backoff.failed()).await;
                    break;
                }
                Err(error) => {
                    let wait = backoff.failed();
                    warn!(kind = source.kind, error = %Plain(&error), ?wait, "the watch broke off");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

impl<K> Source<K> {
    fn missing(&self, error: &Error) -> Option<Missing> {
        match error {
            Error::Api(status) if self.optional && status.code == 404 => Some(Missing::NotServed),
            Error::Api(status) if self.optional && status.code == 403 => {
                Some(Missing::Forbidden(status.message.clone()))
            }
            _ => None,
        }
    }

    /// Lists everything, page by page. Without a version a list is consistent; its later pages are of the same version
    /// as its first.
    ///
    /// # Errors
    /// The API server does not answer, or not with a list.
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
            let text = self.client.request_text(request).await?;
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
        let stream = match self.client.request_stream(request).await {
            Err(Error::Api(status)) if status.code == 410 => return Ok(Ending::Expired),
            outcome => outcome?,
        };
        let mut lines = Box::pin(stream);
        let mut line = String::new();
        let mut heard = false;
        loop {
            line.clear();
            let read = lines.read_line(&mut line);
            match tokio::time::timeout(SILENCE, read).await {
                // Silent for too long: a new connection tells whether anybody is there.
                Err(_) => return Ok(Ending::Resume),
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
                Line::Error { code: 410, .. } => return Ok(Ending::Expired),
                Line::Error { code, message } => {
                    warn!(kind = self.kind, code, message, "the watch was ended");
                    tokio::time::sleep(backoff.failed()).await;
                    return Ok(Ending::Resume);
                }
                Line::Change { event, at } => {
                    heard = true;
                    backoff.reset();
                    tell(event).await;
                    if let Some(at) = at {
                        *version = at;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
