//! The health of a watch: when it last received something, since when it fails, and why.
//!
//! A watch never ends by itself and does not decide whether to drop a kind that cannot be read: an API server that has
//! just started often returns 403, and may return 404. So the watch reports the failure and keeps retrying.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::Error;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The health of a watch. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Health {
    progress: Arc<watch::Sender<Progress>>,
    /// Signals the watch to list again.
    wanted: Arc<Notify>,
    /// Number of lists requested so far.
    begun: Arc<AtomicU64>,
    interruptions: Interruptions,
}

/// How often watches lost the API server, all that share it together. Clones share the count.
///
/// A process that loses the API server cannot know what happens to the store until it reaches it again: etcd may be
/// restored from an older snapshot meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Interruptions {
    count: Arc<watch::Sender<u64>>,
}

impl Interruptions {
    /// How often so far.
    pub fn count(&self) -> u64 {
        *self.count.borrow()
    }

    /// Subscribes to the count.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Counts one more.
    pub fn add(&self) {
        self.count.send_modify(|count| *count += 1);
    }
}

/// The progress of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// When the watch last received a change or a bookmark, or requested the list it received. `None` before the first
    /// list.
    pub last_received: Option<Instant>,
    /// The number of the last list that was delivered. Lists are numbered from 1, in the order of their requests.
    pub listed: u64,
    /// Why reads fail now, and since when.
    pub failing: Option<Failing>,
}

/// Why reads fail, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Time of the first failure in a row.
    pub since: Instant,
    /// The last failure.
    pub why: Why,
}

/// Why a kind cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// 404: the API server does not serve the kind, or not yet.
    #[error("the API server does not serve it")]
    NotServed,
    /// 403: access is denied, or not granted yet.
    #[error("{0}")]
    Forbidden(String),
    /// Any other error, or a timeout.
    #[error("{0}")]
    Failed(String),
}

impl Why {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) if status.code == 404 => Self::NotServed,
            Error::Api(status) if status.code == 403 => Self::Forbidden(status.message.clone()),
            error => Self::Failed(crate::Plain(error).to_string()),
        }
    }

    /// Whether it is the same kind of failure. The message may differ each time.
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether the API server answered that this kind cannot be read: 403 or 404.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::NotServed | Self::Forbidden(_))
    }
}

impl Health {
    /// The health of a watch that counts its interruptions there.
    pub fn counting(interruptions: Interruptions) -> Self {
        Self { interruptions, ..Self::default() }
    }

    /// Records that a watch that the API server had accepted was lost.
    pub(super) fn interrupted(&self) {
        self.interruptions.add();
    }

    /// The present state of the watch.
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Subscribes to the state. The receiver wakes for each list, and when reads start to fail, fail for another reason
    /// or succeed again. It does not wake for each event.
    pub fn follow(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Makes the watch list again, and waits until a list requested after this call was delivered. It waits forever if
    /// no list succeeds.
    pub async fn list_again(&self) {
        let begun = self.begun.load(Ordering::SeqCst);
        self.wanted.notify_one();
        // This cannot fail: `self` keeps the sender alive.
        let _ = self.follow().wait_for(|progress| progress.listed > begun).await;
    }

    /// Waits until `list_again` is called.
    pub(super) async fn is_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Records the request of a list; returns its number.
    pub(super) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records that the list of this number, requested at `sent`, was delivered. Returns the failure that it ended.
    pub(super) fn listed(&self, number: u64, sent: Instant) -> Option<Failing> {
        let mut healed = None;
        self.progress.send_modify(|progress| {
            (progress.last_received, progress.listed) = (Some(sent), number);
            healed = progress.failing.take();
        });
        healed
    }

    /// Records that an event was received at this time. Returns the failure that it ended.
    pub(super) fn received(&self, at: Instant) -> Option<Failing> {
        let mut healed = None;
        self.progress.send_if_modified(|progress| {
            progress.last_received = Some(at);
            healed = progress.failing.take();
            healed.is_some()
        });
        healed
    }

    /// Records that the API server accepted a watch, before any event. Returns the failure that it ended.
    pub(super) fn answered(&self) -> Option<Failing> {
        let mut healed = None;
        self.progress.send_if_modified(|progress| {
            healed = progress.failing.take();
            healed.is_some()
        });
        healed
    }

    /// Records a failure. Returns whether it is new or of another kind than the last one.
    pub(super) fn failed(&self, why: Why) -> bool {
        self.progress.send_if_modified(|progress| {
            let before = progress.failing.take();
            let is_new = before.as_ref().is_none_or(|before| !before.why.is_like(&why));
            let since = before.map_or_else(Instant::now, |before| before.since);
            progress.failing = Some(Failing { since, why });
            is_new
        })
    }
}
