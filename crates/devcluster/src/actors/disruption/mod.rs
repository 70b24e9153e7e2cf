//! The status of native PodDisruptionBudgets. The eviction subresource decides by this status.

mod controllers;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use kube::core::{Selector, SelectorExt};
use kube::{Client, Error, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::controller::{Reconciled, run};
use super::identities::controller;
use super::kubelet::stamp;
use super::pods;
use super::queue::{Outcome, Queue};
use super::recorder::Recorder;
use super::request::{self, ErrorExt};
use controllers::Controllers;
use status::{closed, disrupted, expected, healthy, is_shown, needs_scale, stale_in, status};

pub(crate) fn start(context: &ActorContext) {
    let client = context.identities.client(&controller("disruption-controller"));
    let queue: Arc<Queue<Key>> = Queue::new();
    let reconciler = Arc::new(Reconciler {
        controllers: Controllers {
            client: client.clone(),
            replica_sets: context.view.replica_sets().clone(),
            deployments: context.view.deployments().clone(),
            stateful_sets: context.view.stateful_sets().clone(),
            resources: Mutex::default(),
        },
        recorder: Recorder::new(client.clone(), "controllermanager"),
        client,
        budgets: context.view.budgets().clone(),
        pods: context.view.pods().clone(),
    });
    let wake = queue.clone();
    reconciler.budgets.listen(move |before, after| {
        if let Some(budget) = after.or(before) {
            wake.add(Key::of(budget.as_ref()));
        }
    });
    let stale: Arc<Queue<Key>> = Queue::new();
    let (wake, wake_stale, budgets) = (queue.clone(), stale.clone(), reconciler.budgets.clone());
    reconciler.pods.listen(move |before, after| {
        let Some(pod) = after.or(before) else { return };
        // Only the first budget, as in the real controller. A pod with more than one budget is an error, and its
        // eviction fails.
        if let Some(budget) = covering(&budgets, pod).first() {
            wake.add(Key::of(budget.as_ref()));
        }
        if stale_in(pod, Timestamp::now()).is_some() {
            wake_stale.add(Key::of(pod.as_ref()));
        }
    });
    let freshening = reconciler.clone();
    context.tasks.spawn(stale.work(1, move |key| {
        let reconciler = freshening.clone();
        async move { reconciler.take_off_stale_mark(&key).await }
    }));
    context.tasks.spawn(async move {
        reconciler.budgets.filled().await;
        reconciler.pods.filled().await;
        reconciler.controllers.replica_sets.filled().await;
        reconciler.controllers.deployments.filled().await;
        reconciler.controllers.stateful_sets.filled().await;
        run("disruption", queue, move |key| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&key).await }
        })
        .await;
    });
}

struct Reconciler {
    client: Client,
    recorder: Recorder,
    controllers: Controllers,
    budgets: Arc<ObjectCache<PodDisruptionBudget>>,
    pods: Arc<ObjectCache<Pod>>,
}

/// The budget's selector. A missing selector selects nothing; an empty selector selects everything.
fn selector(budget: &PodDisruptionBudget) -> Result<Option<Selector>, String> {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    selector
        .map(|selector| {
            selector.try_into().map_err(|error: kube::core::ParseExpressionError| error.to_string())
        })
        .transpose()
}

fn covering(budgets: &ObjectCache<PodDisruptionBudget>, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
    let mut budgets = budgets.in_namespace(&pod.namespace().unwrap_or_default());
    budgets.retain(|budget| {
        let selector = selector(budget).ok().flatten();
        selector.is_some_and(|selector| selector.matches(pod.labels()))
    });
    budgets
}

impl Reconciler {
    async fn reconcile(&self, key: &Key) -> Reconciled {
        let Some(budget) = self.budgets.get(key) else { return Ok(None) };
        let now = Timestamp::now();
        let selected = match self.selected(key, &budget) {
            Ok(selected) => selected,
            Err(why) => {
                self.write(&budget, closed(&budget, &why, now)).await?;
                return Ok(None);
            }
        };
        if selected.is_empty() {
            self.recorder.normal(budget.as_ref(), &(), "NoPods", "No matching pods found").await;
        }
        self.warn_of_overlap(&key.namespace, &selected).await;
        let mut scale = 0;
        if needs_scale(&budget) {
            match self.controllers.tally(&key.namespace, &selected).await {
                Ok(tally) => {
                    scale = tally.scale;
                    if tally.unmanaged > 0 {
                        let message = format!(
                            "{} of the selected pods have no controller, so their expected number is not known: \
                             give minAvailable as a whole number to count them",
                            tally.unmanaged
                        );
                        self.recorder.warn(budget.as_ref(), &(), "UnmanagedPods", &message).await;
                    }
                }
                Err(why) => {
                    let message = format!("Failed to calculate the number of expected pods: {why}");
                    self.recorder
                        .warn(budget.as_ref(), &(), "CalculateExpectedPodCountFailed", &message)
                        .await;
                    self.write(&budget, closed(&budget, &why, now)).await?;
                    return Ok(None);
                }
            }
        }
        let expected = expected(&budget, selected.len(), scale);
        let disrupted = disrupted(&budget, &selected, now);
        for pod in &disrupted.failed {
            let message = format!("Pod was to be deleted by an eviction under PDB {key}, but was not");
            self.recorder.warn(pod.as_ref(), &(), "NotDeleted", &message).await;
        }
        let current = healthy(&selected, &disrupted.under_way);
        let recheck_in = disrupted.recheck_in;
        self.write(&budget, status(&budget, expected, current, disrupted.under_way, now)).await?;
        Ok(recheck_in)
    }

    fn selected(&self, key: &Key, budget: &PodDisruptionBudget) -> Result<Vec<Arc<Pod>>, String> {
        let Some(selector) = selector(budget)? else { return Ok(Vec::new()) };
        let mut selected = self.pods.in_namespace(&key.namespace);
        selected.retain(|pod| selector.matches(pod.labels()));
        Ok(selected)
    }

    async fn warn_of_overlap(&self, namespace: &str, selected: &[Arc<Pod>]) {
        if self.budgets.in_namespace(namespace).len() < 2 {
            return;
        }
        for pod in selected {
            let budgets = covering(&self.budgets, pod);
            if let [first, _, ..] = budgets.as_slice() {
                let message = format!(
                    "Pod {} matches several PodDisruptionBudgets; only {} is looked at",
                    Key::of(pod.as_ref()),
                    first.name_any()
                );
                self.recorder.warn(pod.as_ref(), &(), "MultiplePodDisruptionBudgets", &message).await;
            }
        }
    }

    async fn write(
        &self,
        budget: &PodDisruptionBudget,
        status: PodDisruptionBudgetStatus,
    ) -> Result<(), Error> {
        if is_shown(budget, &status) {
            return Ok(());
        }
        let mut whole = budget.clone();
        whole.status = Some(status);
        // Update the whole object at the version that was read: an eviction in between makes this write fail. The
        // write never undoes an eviction.
        let mut whole = serde_json::to_value(&whole).map_err(Error::SerdeError)?;
        whole["apiVersion"] = json!("policy/v1");
        whole["kind"] = json!("PodDisruptionBudget");
        let written = request::replace::<PodDisruptionBudget>(
            &self.client,
            &(),
            &Key::of(budget),
            Some("status"),
            &whole,
        )
        .await;
        match written {
            Ok(written) => {
                self.budgets.wrote(written);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn take_off_stale_mark(&self, key: &Key) -> Outcome {
        let now = Timestamp::now();
        let Some(pod) = self.pods.get(key) else { return Outcome::Done };
        let Some(left) = stale_in(&pod, now) else { return Outcome::Done };
        if !left.is_zero() {
            return Outcome::After(left);
        }
        let patch = json!({
            "metadata": {"uid": pods::uid(pod.as_ref()), "resourceVersion": pod.resource_version()},
            "status": {"conditions": [
                {"type": "DisruptionTarget", "status": "False", "lastTransitionTime": stamp(now)}]},
        });
        match request::strategic::<Pod>(&self.client, &(), key, Some("status"), &patch).await {
            Ok(written) => {
                self.pods.wrote(written);
                Outcome::Done
            }
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(_) => Outcome::Failed,
        }
    }
}
