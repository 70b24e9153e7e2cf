//! How a watch does: when it last heard from the API server, and since when it cannot read, and why.
//!
//! A watch never ends by itself. Whether a kind that cannot be read is to be dropped is not for the watch to decide: a 403
//! is often no more than an API server that has just started, and a 404 may be. So the watch reports, and goes on trying.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::Error;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Shows how a watch does. Clones show the same one.
#[derive(Clone, Debug, Default)]
pub struct Health {
    progress: Arc<watch::Sender<Progress>>,
    /// A list is wanted now.
    wanted: Arc<Notify>,
    /// How many lists have been asked for.
    begun: Arc<AtomicU64>,
}

/// How far a watch has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// When it last heard from the API server: a list, a change or a bookmark. `None` before the first list.
    pub heard: Option<Instant>,
    /// The number of the last list that was told; they are counted as they are asked for, from 1.
    pub listed: u64,
    /// Why nothing can be read now, and since when.
    pub failing: Option<Failing>,
}

/// Why nothing can be read, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// When the first of the failures in a row happened.
    pub since: Instant,
    /// What the last of them was.
    pub why: Why,
}

/// Why a kind cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// 404: there is no such kind, or not yet.
    #[error("the API server does not serve it")]
    NotServed,
    /// 403: access is denied, or not granted yet.
    #[error("{0}")]
    Forbidden(String),
    /// Any other error, or no answer in time.
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

    /// Whether it is the same sort of failure; the words of one sort may differ each time.
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether the API server answered, and the answer was that there is nothing to read here.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::NotServed | Self::Forbidden(_))
    }
}

impl Health {
    /// How the watch does now.
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Follows the watch. Wakes for each list and whenever reading begins to fail, fails otherwise or succeeds again;
    /// not for each event.
    pub fn follow(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Has the watch list again, and waits until such a list was told. It may never be: then this never ends.
    pub async fn list_again(&self) {
        let begun = self.begun.load(Ordering::SeqCst);
        self.wanted.notify_one();
        // It cannot fail: the sender is here.
        let _ = self.follow().wait_for(|progress| progress.listed > begun).await;
    }

    /// Waits until a list is wanted.
    pub(super) async fn is_wanted(&self) {
        self.wanted.notified().await;
    }

    /// A list is asked for; its number.
    pub(super) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The list of this number, which was asked for at this time, was told.
    pub(super) fn listed(&self, number: u64, sent: Instant) -> Option<Failing> {
        let mut healed = None;
        self.progress.send_modify(|progress| {
            (progress.heard, progress.listed) = (Some(sent), number);
            healed = progress.failing.take();
        });
        healed
    }

    /// Something was heard at this time. Whether it was the first after failures, and since when they lasted.
    pub(super) fn heard(&self, at: Instant) -> Option<Failing> {
        let mut healed = None;
        self.progress.send_if_modified(|progress| {
            progress.heard = Some(at);
            healed = progress.failing.take();
            healed.is_some()
        });
        healed
    }

    /// The API server answers again, though it has said nothing new yet.
    pub(super) fn answered(&self) -> Option<Failing> {
        let mut healed = None;
        self.progress.send_if_modified(|progress| {
            healed = progress.failing.take();
            healed.is_some()
        });
        healed
    }

    /// Reading failed; whether that is new, or was of another sort before.
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
