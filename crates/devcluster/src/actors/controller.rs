//! The loop that every controller runs: a key from the queue, one look at it, and again later if that failed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Error;
use kube::core::{Selector, SelectorExt};

use super::cache::Key;
use super::queue::{Outcome, Queue};
use super::request::Meaning;

/// Keys that a controller works on at the same time.
const AT_ONCE: usize = 8;

/// What a reconciliation answers: when to look again though nothing changed, if at all.
pub(crate) type Reconciled = Result<Option<Duration>, Error>;

/// Works through the queue for ever.
pub(crate) async fn run<F, Fut>(name: &'static str, queue: Arc<Queue<Key>>, reconcile: F)
where
    F: Fn(Key) -> Fut,
    Fut: Future<Output = Reconciled> + Send + 'static,
{
    let look = move |key: Key| {
        let label = key.clone();
        let looking = reconcile(key);
        async move {
            match looking.await {
                Ok(None) => Outcome::Done,
                Ok(Some(pause)) => Outcome::After(pause),
                // Nothing new is taken there; what is left goes with the namespace.
                Err(error) if error.is_namespace_ending() => Outcome::Done,
                Err(error) => {
                    if error.is_conflict() {
                        tracing::trace!(controller = name, key = %label, "conflict, will look again");
                    } else {
                        tracing::debug!(controller = name, key = %label, %error, "will try again");
                    }
                    Outcome::Failed
                }
            }
        }
    };
    queue.work(AT_ONCE, look).await;
}

/// Whether labels match a selector. An empty selector matches everything here; one that cannot be read matches nothing.
pub(crate) fn matcher(
    selector: &LabelSelector,
) -> impl Fn(&std::collections::BTreeMap<String, String>) -> bool + use<> {
    let selector: Option<Selector> = selector.clone().try_into().ok();
    move |labels| selector.as_ref().is_some_and(|selector| selector.matches(labels))
}
