//! The control loop of every controller: takes a key from the queue, reconciles it, and retries later after a failure.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Error;
use kube::core::{Selector, SelectorExt};

use super::cache::Key;
use super::queue::{Outcome, Queue};
use super::request::ErrorExt;

/// Number of keys that a controller reconciles in parallel.
const AT_ONCE: usize = 8;

/// The result of a reconciliation: when to reconcile again even without a change, if at all.
pub(crate) type Reconciled = Result<Option<Duration>, Error>;

/// Reconciles the keys of the queue forever.
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
                // A terminating namespace accepts no new objects; its remaining objects are deleted with it.
                Err(error) if error.is_namespace_ending() => Outcome::Done,
                Err(error) => {
                    if error.is_conflict() {
                        tracing::trace!(controller = name, key = %label, "conflict, retrying");
                    } else {
                        tracing::debug!(controller = name, key = %label, %error, "reconciliation failed, retrying");
                    }
                    Outcome::Failed
                }
            }
        }
    };
    queue.work(AT_ONCE, look).await;
}

/// Whether labels match a selector. Here, an empty selector matches everything, and an invalid selector matches
/// nothing.
pub(crate) fn matcher(
    selector: &LabelSelector,
) -> impl Fn(&std::collections::BTreeMap<String, String>) -> bool + use<> {
    let selector: Option<Selector> = selector.clone().try_into().ok();
    move |labels| selector.as_ref().is_some_and(|selector| selector.matches(labels))
}
