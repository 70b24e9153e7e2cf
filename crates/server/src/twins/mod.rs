//! Twins: a native budget (`PodDisruptionBudget`) with annotations for groups gets a `DisruptionBudget` of the same
//! name, which it owns and which is kept in sync with it.
//!
//! The API server still enforces the native budget pod by pod; the twin adds the rule for groups. The result is
//! reported in the conditions and Events of the native budget, where its user looks. [`plan`] decides, [`writer`]
//! writes. Every process follows the objects; the leader writes.

mod plan;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kube::{Client, Error};
use quorate_api::budget::StoredBudget;
use quorate_api::slim;
use quorate_engine::basics::ObjectKey;
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::warn;

use crate::events::Events;
pub(crate) use plan::TwinState;
use writer::TwinWriter;

/// Delay before a reconcile: changes come in bursts.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// First and maximum pause after failed writes.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A change that the watches show.
#[derive(Debug)]
enum Change {
    Natives(HashMap<ObjectKey, slim::PodDisruptionBudget>),
    Native(ObjectKey, Option<Box<slim::PodDisruptionBudget>>),
    Budgets(HashMap<ObjectKey, TwinState>),
    Budget(ObjectKey, Option<TwinState>),
}

/// Receives changes from the watches. Only native budgets that request a twin or have a condition of ours are kept, and
/// only the names of budgets that are not twins.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    changes: mpsc::UnboundedSender<Change>,
}

impl Inbox {
    /// Replaces all native budgets.
    pub(crate) fn natives<'a>(
        &self,
        all: impl Iterator<Item = (&'a ObjectKey, Option<&'a slim::PodDisruptionBudget>)>,
    ) {
        let all = all.filter_map(|(key, native)| Some((key.clone(), native?.clone())));
        self.send(Change::Natives(all.collect()));
    }

    /// Updates a native budget; `None` if it is gone.
    pub(crate) fn native(&self, key: &ObjectKey, native: Option<slim::PodDisruptionBudget>) {
        self.send(Change::Native(key.clone(), native.map(Box::new)));
    }

    /// Replaces all budgets.
    pub(crate) fn budgets<'a>(&self, all: impl Iterator<Item = (ObjectKey, &'a StoredBudget)>) {
        self.send(Change::Budgets(all.map(|(key, budget)| (key, TwinState::of(budget))).collect()));
    }

    /// Updates a budget; `None` if it is gone.
    pub(crate) fn budget(&self, key: ObjectKey, budget: Option<&StoredBudget>) {
        self.send(Change::Budget(key, budget.map(TwinState::of)));
    }

    fn send(&self, change: Change) {
        // The reconciler may have ended.
        let _ = self.changes.send(change);
    }

    /// An inbox without a reconciler.
    pub(crate) fn unread() -> Self {
        Self { changes: mpsc::unbounded_channel().0 }
    }
}

/// Whether a native budget matters here: it requests a twin, or has a condition of ours.
pub(crate) fn concerns(native: &slim::PodDisruptionBudget) -> bool {
    quorate_intake::objects::twin(native).is_some() || plan::current_condition(native).is_some()
}

/// Starts the reconciler. It writes while `leader` is true, and ends when the inbox is dropped.
pub(crate) fn start(
    client: &Client,
    events: Events,
    leader: watch::Receiver<bool>,
) -> (Inbox, JoinHandle<()>) {
    let (changes, inbox) = mpsc::unbounded_channel();
    let writer = TwinWriter::new(client.clone(), events);
    let reconciler = TwinReconciler { writer, natives: None, budgets: None };
    (Inbox { changes }, tokio::spawn(reconciler.run(inbox, leader)))
}

struct TwinReconciler {
    writer: TwinWriter,
    /// `None` until the first list.
    natives: Option<HashMap<ObjectKey, slim::PodDisruptionBudget>>,
    budgets: Option<HashMap<ObjectKey, TwinState>>,
}

impl TwinReconciler {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Change>, mut leader: watch::Receiver<bool>) {
        let mut due: BTreeSet<ObjectKey> = BTreeSet::new();
        let mut again = None;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let retry = async {
                match again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = inbox.recv() => match change {
                    Some(change) => due.extend(self.take(change)),
                    None => return,
                },
                changed = leader.changed() => match changed {
                    // The previous leader may have left work undone.
                    Ok(()) => due.extend(self.all()),
                    Err(_) => return,
                },
                () = retry => {}
            }
            tokio::time::sleep(DEBOUNCE).await;
            while let Ok(change) = inbox.try_recv() {
                due.extend(self.take(change));
            }
            again = None;
            if !*leader.borrow() || self.natives.is_none() || self.budgets.is_none() {
                continue;
            }
            for key in std::mem::take(&mut due) {
                if let Err(error) = self.reconcile(&key).await {
                    warn!(budget = %key, error = %Plain(&error), "cannot sync a PodDisruptionBudget and its twin");
                    due.insert(key);
                }
            }
            if due.is_empty() {
                backoff.reset();
            } else {
                again = Some(Instant::now() + backoff.failed());
            }
        }
    }

    /// Applies a change; returns the keys to reconcile.
    fn take(&mut self, change: Change) -> Vec<ObjectKey> {
        match change {
            Change::Natives(natives) => {
                self.natives = Some(natives);
                self.all()
            }
            Change::Budgets(budgets) => {
                self.budgets = Some(budgets);
                self.all()
            }
            Change::Native(key, native) => {
                let natives = self.natives.get_or_insert_default();
                match native {
                    Some(native) => natives.insert(key.clone(), *native),
                    None => natives.remove(&key),
                };
                vec![key]
            }
            Change::Budget(key, budget) => {
                let budgets = self.budgets.get_or_insert_default();
                let twin = budget.as_ref().is_some_and(|known| known.twin.is_some());
                match budget {
                    Some(budget) => budgets.insert(key.clone(), budget),
                    None => budgets.remove(&key),
                };
                let native = self.natives.as_ref().is_some_and(|natives| natives.contains_key(&key));
                if twin || native { vec![key] } else { Vec::new() }
            }
        }
    }

    fn all(&self) -> Vec<ObjectKey> {
        let natives = self.natives.iter().flatten().map(|(key, _)| key);
        let twins =
            self.budgets.iter().flatten().filter(|(_, known)| known.twin.is_some()).map(|(key, _)| key);
        natives.chain(twins).cloned().collect()
    }

    /// Syncs one native budget and its twin.
    async fn reconcile(&self, key: &ObjectKey) -> Result<(), Error> {
        let native = self.natives.as_ref().and_then(|natives| natives.get(key));
        let known = self.budgets.as_ref().and_then(|budgets| budgets.get(key));
        if let Some(step) = plan::step(native, known) {
            self.writer.perform(key, step).await?;
        }
        if let Some(native) = native
            && let Some(change) = plan::condition(native, known)
        {
            self.writer.write_condition(key, native, change).await?;
        }
        Ok(())
    }
}
