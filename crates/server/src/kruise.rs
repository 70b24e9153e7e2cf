//! Whether this process serves OpenKruise's budgets.
//!
//! Two servers of the same budgets would overwrite each other's ledgers. So Quorate does not serve them while
//! OpenKruise has its own webhooks for pods, and serves them when those webhooks are removed.

use std::convert::Infallible;

use kube::{Client, ResourceExt as _};
use quorate_api::names::kruise;
use quorate_api::slim;
use quorate_engine::basics::GroupKind;
use quorate_kit::watch::{self as watches, Health, Progress, WatchSource};
use tokio::sync::watch;
use tracing::info;

use crate::events::Events;
use crate::watches::WatchScope;

/// Whether to serve `PodUnavailableBudget`s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServePub {
    /// Unless OpenKruise serves them: its webhooks for pods are registered.
    #[default]
    Auto,
    /// Always. OpenKruise must have its feature gates for them off.
    Always,
    /// Never.
    Never,
}

impl ServePub {
    /// The value of `--serve-pub`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Auto, Self::Always, Self::Never].into_iter().find(|serve| serve.name() == name)
    }
}

/// Whether they are served here; `None` until that is known.
pub(crate) type ServedHere = watch::Receiver<Option<bool>>;

/// Watches OpenKruise's webhooks until the receiver is dropped. The last known value stays while they cannot be read.
/// If the API server denies the read and no value is known yet, the value is `presumed`, if that is given.
pub(crate) fn follow(
    client: Client,
    serve: ServePub,
    scope: &WatchScope,
    presumed: Option<bool>,
) -> ServedHere {
    let known = match serve {
        ServePub::Auto => None,
        ServePub::Always => Some(true),
        ServePub::Never => Some(false),
    };
    let (served, receiver) = watch::channel(known);
    if serve == ServePub::Auto {
        let health =
            scope.health(&GroupKind::new("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"));
        tokio::spawn(async move {
            tokio::select! {
                () = served.closed() => {}
                _ = watch_webhooks(client, &served, health.clone()) => {}
                () = presume(&served, &health, presumed) => {}
            }
        });
    }
    receiver
}

async fn watch_webhooks(client: Client, served: &watch::Sender<Option<bool>>, health: Health) -> Infallible {
    let source = WatchSource::<slim::ValidatingWebhookConfiguration>::all(client).reporting_to(health);
    watches::run(source, |event| {
        if let Some(theirs) = decides_on_pods(event) {
            served.send_if_modified(|served| served.replace(!theirs) != Some(!theirs));
        }
        std::future::ready(())
    })
    .await
}

/// A client that reads the cluster once cannot wait for permissions that may never come.
async fn presume(served: &watch::Sender<Option<bool>>, health: &Health, presumed: Option<bool>) {
    let Some(presumed) = presumed else { return std::future::pending().await };
    let refused =
        |progress: &Progress| progress.failing.as_ref().is_some_and(|failing| failing.why.is_refusal());
    let _ = health.follow().wait_for(refused).await;
    served.send_if_modified(|served| served.is_none() && served.replace(presumed).is_none());
    std::future::pending::<()>().await;
}

/// Whether OpenKruise's webhooks for pods are registered, if the event shows it.
fn decides_on_pods(event: watches::WatchEvent<slim::ValidatingWebhookConfiguration>) -> Option<bool> {
    let theirs = |configuration: &slim::ValidatingWebhookConfiguration| {
        let names = configuration.webhooks.iter().map(|webhook| webhook.name.as_str());
        names.into_iter().any(|name| kruise::POD_WEBHOOKS.contains(&name))
    };
    let is_it =
        |configuration: &slim::ValidatingWebhookConfiguration| configuration.name_any() == kruise::WEBHOOKS;
    match event {
        watches::WatchEvent::Listed(listed) => {
            Some(listed.objects.iter().filter(|all| is_it(all)).any(theirs))
        }
        watches::WatchEvent::Applied(configuration) => is_it(&configuration).then(|| theirs(&configuration)),
        watches::WatchEvent::Deleted(configuration) => is_it(&configuration).then_some(false),
        watches::WatchEvent::Unreadable(_) | watches::WatchEvent::Bookmark(_) => None,
    }
}

/// Logs when this process starts or stops to serve them. The leader also writes an Event, even if it became the leader
/// after the change.
pub(crate) async fn report_changes(mut served: ServedHere, mut held: watch::Receiver<bool>, events: Events) {
    let (mut logged, mut reported) = (true, true);
    loop {
        let now = served.borrow_and_update().unwrap_or(logged);
        if now != logged {
            logged = now;
            info!(served = now, "handling of PodUnavailableBudgets changed");
        }
        if *held.borrow_and_update() && now != reported {
            reported = now;
            events.kruise(now);
        }
        let changed = tokio::select! {
            changed = served.changed() => changed,
            changed = held.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_kit::watch::Listed;
    use serde_json::json;

    use super::*;

    fn configuration(name: &str, entries: &[&str]) -> slim::ValidatingWebhookConfiguration {
        let entries: Vec<_> = entries.iter().map(|name| json!({"name": name})).collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "webhooks": entries})).expect("an object")
    }

    #[test]
    fn openkruise_is_detected_by_its_webhooks_for_pods() {
        let kruise = |entries: &[&str]| configuration("kruise-validating-webhook-configuration", entries);
        let listed = |objects| {
            watches::WatchEvent::Listed(Listed {
                objects,
                unreadable: vec![],
                version: "1".into(),
                requested: tokio::time::Instant::now(),
            })
        };
        let cases = [
            (listed(vec![]), Some(false)),
            (listed(vec![configuration("quorate", &["pods.quorate.dev"])]), Some(false)),
            (listed(vec![kruise(&["vcloneset.kb.io"])]), Some(false)),
            (listed(vec![kruise(&["vcloneset.kb.io", "vpod.kb.io"])]), Some(true)),
            (watches::WatchEvent::Applied(kruise(&["vpodeviction.kb.io"])), Some(true)),
            (watches::WatchEvent::Applied(kruise(&[])), Some(false)),
            (watches::WatchEvent::Applied(configuration("another", &["vpod.kb.io"])), None),
            (watches::WatchEvent::Deleted(kruise(&["vpod.kb.io"])), Some(false)),
            (watches::WatchEvent::Deleted(configuration("another", &[])), None),
            (watches::WatchEvent::Bookmark("2".to_owned()), None),
        ];
        for (event, expected) in cases {
            let shown = format!("{event:?}");
            assert_eq!(decides_on_pods(event), expected, "{shown}");
        }
    }
}
