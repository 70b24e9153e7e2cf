//! The label on namespaces where a budget enforces. It selects the webhooks that fail closed: if no server answers, the
//! API server denies the request.
//!
//! The leader sets the label, restores it if it is removed, and removes it with a delay: a budget that is deleted and
//! created again must not be unprotected in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error, ResourceExt};
use parking_lot::Mutex;
use quorate_api::names::ENFORCED;
use quorate_api::slim;
use quorate_engine::basics::{Text, Time};
use quorate_engine::facts::{Budget, BudgetKey};
use quorate_kit::Plain;
use quorate_kit::election::Election;
use quorate_kit::watch::{self as watches, WatchSource};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::calls::FIELD_MANAGER;
use crate::clock;
use crate::watches::EXCLUDED;

/// How long the label stays after the last enforcing budget is gone.
const REMOVAL_DELAY: Duration = Duration::from_secs(600);

/// Pause after a failed write, and interval to check for labels that are due to be removed.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether a budget can deny a request. A budget that cannot be read can.
fn enforces(budget: &Budget) -> bool {
    budget.spec.as_ref().map_or(true, |rules| !rules.observe)
}

/// The namespaces in which a budget enforces, updated budget by budget.
#[derive(Debug, Default)]
pub(crate) struct Enforcing {
    budgets: BTreeSet<BudgetKey>,
    counts: BTreeMap<Text, usize>,
}

impl Enforcing {
    /// Updates a budget, or removes it if it is gone; returns whether that changes the set of namespaces.
    pub(crate) fn note(&mut self, key: &BudgetKey, budget: Option<&Budget>) -> bool {
        let namespace = &key.object.namespace;
        if budget.is_some_and(enforces) {
            if !self.budgets.insert(key.clone()) {
                return false;
            }
            let count = self.counts.entry(namespace.clone()).or_default();
            *count += 1;
            return *count == 1;
        }
        if !self.budgets.remove(key) {
            return false;
        }
        let count = self.counts.get_mut(namespace).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if count == 0 {
            self.counts.remove(namespace);
        }
        count == 0
    }

    /// The namespaces.
    pub(crate) fn namespaces(&self) -> BTreeSet<Text> {
        self.counts.keys().cloned().collect()
    }
}

/// The namespaces to label and to unlabel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    set: Vec<Text>,
    unset: Vec<Text>,
}

/// Since when each labelled namespace has had no enforcing budget.
#[derive(Debug, Default)]
struct Idle(BTreeMap<Text, Time>);

impl Idle {
    fn due(&mut self, wanted: &BTreeSet<Text>, labelled: &BTreeSet<Text>, now: Time) -> Due {
        self.0.retain(|namespace, _| labelled.contains(namespace) && !wanted.contains(namespace));
        let mut due = Due { set: wanted.difference(labelled).cloned().collect(), unset: Vec::new() };
        for namespace in labelled.difference(wanted) {
            let since = *self.0.entry(namespace.clone()).or_insert(now);
            if now >= since.after(REMOVAL_DELAY) {
                due.unset.push(namespace.clone());
            }
        }
        due
    }
}

/// Reconciles the labels while this process is the leader.
pub(crate) async fn run(
    client: Client,
    own: String,
    mut wanted: watch::Receiver<BTreeSet<Text>>,
    election: Arc<Election>,
) {
    let labelled: Arc<Mutex<Option<BTreeSet<Text>>>> = Arc::default();
    let changed = Arc::new(Notify::new());
    let source: WatchSource<slim::Namespace> =
        WatchSource::all(client.clone()).selected_by(ENFORCED.to_owned());
    let watching = watches::run(source, |event| {
        note(&labelled, event);
        changed.notify_one();
        std::future::ready(())
    });
    let writing = async {
        let mut idle = Idle::default();
        loop {
            let is_reviewed = |name: &Text| **name != *EXCLUDED && **name != *own;
            let mut names = wanted.borrow_and_update().clone();
            names.retain(is_reviewed);
            let seen = labelled.lock().clone();
            if let Some(seen) = seen.filter(|_| election.is_held()) {
                let Due { set, unset } = idle.due(&names, &seen, clock::now());
                for (namespace, value) in set
                    .iter()
                    .map(|name| (name, json!("true")))
                    .chain(unset.iter().map(|name| (name, json!(null))))
                {
                    // The writes before this one took time.
                    let is_wanted = is_reviewed(namespace) && wanted.borrow().contains(namespace);
                    if !election.is_held() || is_wanted == value.is_null() {
                        continue;
                    }
                    if let Err(error) = label(&client, namespace, &value).await {
                        warn!(%namespace, error = %Plain(&error), "cannot label the namespace");
                    }
                }
            }
            tokio::select! {
                outcome = wanted.changed() => if outcome.is_err() { return },
                () = changed.notified() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    };
    tokio::join!(watching, writing);
}

fn note(labelled: &Mutex<Option<BTreeSet<Text>>>, event: watches::WatchEvent<slim::Namespace>) {
    let mut labelled = labelled.lock();
    match event {
        watches::WatchEvent::Listed(listed) => {
            *labelled = Some(listed.objects.iter().map(|object| object.name_any().into()).collect());
        }
        watches::WatchEvent::Applied(object) => {
            labelled.get_or_insert_default().insert(object.name_any().into());
        }
        // Also a namespace that lost the label: the watch selects by the label.
        watches::WatchEvent::Deleted(object) => {
            labelled.get_or_insert_default().remove(object.name_any().as_str());
        }
        watches::WatchEvent::Unreadable(_) | watches::WatchEvent::Bookmark(_) => {}
    }
}

async fn label(client: &Client, namespace: &str, value: &serde_json::Value) -> Result<(), Error> {
    let patch = json!({ "metadata": { "labels": { ENFORCED: value } } });
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match Api::<Namespace>::all(client.clone()).patch(namespace, &params, &Patch::Merge(patch)).await {
        Ok(_) => {
            info!(namespace, enforced = !value.is_null(), "labelled the namespace");
            Ok(())
        }
        // The namespace is gone, so there is nothing to label.
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<Text> {
        names.iter().map(|name| Text::from(*name)).collect()
    }

    fn list(names: &[&str]) -> Vec<Text> {
        names.iter().map(|name| Text::from(*name)).collect()
    }

    #[test]
    fn the_label_is_set_at_once_restored_and_removed_with_a_delay() {
        let mut idle = Idle::default();
        let at = |seconds: i64| Time(seconds * 1000);
        let due = |set: &[&str], unset: &[&str]| Due { set: list(set), unset: list(unset) };
        assert_eq!(idle.due(&names(&["a"]), &names(&[]), at(0)), due(&["a"], &[]));
        assert_eq!(idle.due(&names(&["a"]), &names(&["a"]), at(1)), due(&[], &[]));
        // A user removes the label.
        assert_eq!(idle.due(&names(&["a"]), &names(&[]), at(2)), due(&["a"], &[]));
        // The budget is gone.
        assert_eq!(idle.due(&names(&[]), &names(&["a"]), at(10)), due(&[], &[]));
        assert_eq!(idle.due(&names(&[]), &names(&["a"]), at(609)), due(&[], &[]));
        // The budget comes back, and goes again: the delay starts again.
        assert_eq!(idle.due(&names(&["a"]), &names(&["a"]), at(609)), due(&[], &[]));
        assert_eq!(idle.due(&names(&[]), &names(&["a"]), at(610)), due(&[], &[]));
        assert_eq!(idle.due(&names(&[]), &names(&["a"]), at(1209)), due(&[], &[]));
        assert_eq!(idle.due(&names(&[]), &names(&["a"]), at(1210)), due(&[], &["a"]));
    }
}
