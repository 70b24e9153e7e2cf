//! Hollow kubelets: one task for all nodes, one watch for pods, and no containers.
//!
//! A pod that is bound to one of the nodes becomes Running and, once its readiness gates are True, Ready. It restarts
//! its containers when an image changes, and reports resized resources. It ends as on a real node: after its grace
//! period the kubelet reports that in the status, and sends a DELETE with grace period 0 and the pod's UID as the
//! node's own user.

mod lifecycle;
mod node;
mod nodes;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;

use super::ActorContext;
use super::cache::{Key, ObjectCache};
use super::identities::Identities;
use super::pods;
use super::queue::{Outcome, Queue};
use super::request::{self, Deleted, ErrorExt};
use lifecycle::{PodLifecycle, Step};

pub use lifecycle::Timing;
pub use nodes::{NodeTemplate, Nodes};
pub(crate) use status::stamp;

/// Number of pods that are processed in parallel, over all nodes.
const AT_ONCE: usize = 16;

/// The pod is not on a hollow node.
#[derive(Debug, thiserror::Error)]
#[error("pod {namespace}/{name} is not on a hollow node: bind it to one first")]
pub struct UnknownPod {
    namespace: String,
    name: String,
}

/// Controls the pods on the hollow nodes and their containers.
#[derive(Clone)]
pub struct Kubelets {
    shared: Arc<Shared>,
}

struct Shared {
    identities: Identities,
    pods: Arc<ObjectCache<Pod>>,
    queue: Arc<Queue<Key>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<String, SimulatedNode>,
    lifecycles: HashMap<Key, Tracked>,
    timing: Timing,
    addresses: u32,
}

/// A node that this process simulates.
struct SimulatedNode {
    client: Client,
    address: String,
    running: bool,
}

struct Tracked {
    lifecycle: PodLifecycle,
    address: String,
    reported: Option<Value>,
}

impl Kubelets {
    pub(crate) fn start(context: &ActorContext, timing: Timing) -> Self {
        let queue = Queue::new();
        let pods = context.view.pods().clone();
        let state = Mutex::new(State { timing, ..State::default() });
        let shared =
            Arc::new(Shared { identities: context.identities.clone(), pods, queue: queue.clone(), state });
        let (wake, of) = (queue.clone(), Arc::downgrade(&shared));
        shared.pods.listen(move |before, after| {
            let Some(shared) = of.upgrade() else { return };
            let Some(pod) = after.or(before) else { return };
            if pods::node_of(pod).is_some_and(|node| shared.state.lock().nodes.contains_key(node)) {
                wake.add(Key::of(pod.as_ref()));
            }
        });
        let working = shared.clone();
        context.tasks.spawn(queue.work(AT_ONCE, move |key| {
            let shared = working.clone();
            async move { shared.sync_pod(&key).await }
        }));
        Self { shared }
    }

    /// Changes how long pods take to start and to terminate, from now on.
    pub fn set_timing(&self, timing: Timing) {
        self.shared.state.lock().timing = timing;
    }

    /// Makes the pod's readiness probe fail, or pass again. A successor with the same name starts ready.
    ///
    /// # Errors
    /// The pod is not on a hollow node.
    pub fn set_ready(&self, namespace: &str, name: &str, ready: bool) -> Result<(), UnknownPod> {
        self.change(namespace, name, |lifecycle, _| lifecycle.wants_ready = ready)
    }

    /// Restarts a container of the pod, or all of them.
    ///
    /// # Errors
    /// The pod is not on a hollow node.
    pub fn restart(&self, namespace: &str, name: &str, container: Option<&str>) -> Result<(), UnknownPod> {
        self.change(namespace, name, |lifecycle, timing| {
            lifecycle.restart(container, timing, Timestamp::now());
        })
    }

    /// Ends the pod's containers with an exit code, as in a pod of a Job: the pod is then Succeeded or Failed.
    ///
    /// # Errors
    /// The pod is not on a hollow node.
    pub fn finish(&self, namespace: &str, name: &str, exit_code: i32) -> Result<(), UnknownPod> {
        self.change(namespace, name, |lifecycle, _| lifecycle.finish(exit_code, Timestamp::now()))
    }

    fn change(
        &self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut PodLifecycle, &Timing),
    ) -> Result<(), UnknownPod> {
        let unknown = || UnknownPod { namespace: namespace.to_owned(), name: name.to_owned() };
        let key = Key::new(namespace, name);
        let pod = self.shared.pods.get(&key).ok_or_else(unknown)?;
        {
            let mut state = self.shared.state.lock();
            let node = pods::node_of(&pod).unwrap_or_default();
            if !state.nodes.contains_key(node) {
                return Err(unknown());
            }
            let timing = state.timing.clone();
            let tracked = state.track(&key, &pod);
            // The change applies to the containers, which may not have been created yet.
            tracked.lifecycle.advance(&pod, &timing, Timestamp::now());
            change(&mut tracked.lifecycle, &timing);
        }
        self.shared.queue.add(key);
        Ok(())
    }
}

impl State {
    fn track(&mut self, key: &Key, pod: &Pod) -> &mut Tracked {
        if self.lifecycles.get(key).is_some_and(|tracked| tracked.lifecycle.uid != pods::uid(pod)) {
            self.lifecycles.remove(key);
        }
        let addresses = &mut self.addresses;
        self.lifecycles.entry(key.clone()).or_insert_with(|| {
            *addresses += 1;
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
            Tracked {
                lifecycle: PodLifecycle::begin(pod, Timestamp::now()),
                address: address.unwrap_or_else(|| pod_address(*addresses)),
                reported: None,
            }
        })
    }
}

/// Addresses from 10.128.0.0/9, in turn.
fn pod_address(number: u32) -> String {
    let [_, b, c, d] = number.to_be_bytes();
    format!("10.{}.{c}.{d}", 128 | b)
}

/// The work for one pod: a status to report, a pod to remove, or both.
struct PodWork {
    client: Client,
    report: Option<Value>,
    step: Step,
    uid: String,
}

impl Shared {
    async fn sync_pod(&self, key: &Key) -> Outcome {
        let Some(pod) = self.pods.get(key) else {
            self.state.lock().lifecycles.remove(key);
            return Outcome::Done;
        };
        let now = Timestamp::now();
        let Some(work) = self.work(key, &pod, now) else { return Outcome::Done };
        match self.perform(key, &pod, &work).await {
            Ok(()) => match work.step {
                Step::Rest(Some(at)) => Outcome::After(
                    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO),
                ),
                Step::Rest(None) | Step::Remove => Outcome::Done,
            },
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::debug!(%error, pod = %key, "kubelet failed to process the pod, retrying");
                Outcome::Failed
            }
        }
    }

    fn work(&self, key: &Key, pod: &Pod, now: Timestamp) -> Option<PodWork> {
        let mut state = self.state.lock();
        let host = state.nodes.get(pods::node_of(pod)?).filter(|host| host.running)?;
        let (client, host_address) = (host.client.clone(), host.address.clone());
        let timing = state.timing.clone();
        let tracked = state.track(key, pod);
        let step = tracked.lifecycle.advance(pod, &timing, now);
        // If the end of the pod is already reported and only a finalizer keeps it, there is nothing to report.
        let removed = step == Step::Remove && pod.metadata.deletion_grace_period_seconds == Some(0);
        let report = status::report(pod, &tracked.lifecycle, &host_address, &tracked.address, now);
        let wanted = tracked.reported.as_ref() != Some(&report) || !shows(pod, &report);
        let report = (wanted && !(removed && pods::is_terminal(pod))).then_some(report);
        let uid = tracked.lifecycle.uid.clone();
        Some(PodWork { client, report, step, uid })
    }

    async fn perform(&self, key: &Key, pod: &Pod, work: &PodWork) -> Result<(), kube::Error> {
        if let Some(report) = &work.report {
            let written = request::strategic::<Pod>(&work.client, &(), key, Some("status"), report).await?;
            if let Some(tracked) = self.state.lock().lifecycles.get_mut(key)
                && tracked.lifecycle.uid == work.uid
            {
                tracked.reported = Some(report.clone());
            }
            self.pods.wrote(written);
        }
        let held_by_finalizers =
            pod.metadata.deletion_grace_period_seconds == Some(0) && !pod.finalizers().is_empty();
        if work.step == Step::Remove && !held_by_finalizers {
            let params = DeleteParams::default().grace_period(0).preconditions(request::only(&work.uid));
            match request::delete::<Pod>(&work.client, &(), key, &params).await {
                Ok(Deleted::Gone) => self.pods.removed(key, &work.uid),
                Ok(Deleted::Ending(pod)) => self.pods.wrote(*pod),
                // The pod is gone, and a new pod has its name.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether the pod has the phase and the conditions of this report. Another writer may have overwritten them.
fn shows(pod: &Pod, report: &Value) -> bool {
    let conditions = report["status"]["conditions"].as_array();
    report["status"]["phase"] == pods::phase(pod)
        && conditions.into_iter().flatten().all(|wanted| {
            let kind = wanted["type"].as_str().unwrap_or_default();
            pods::condition(pod, kind).is_some_and(|shown| wanted["status"] == shown.status.as_str())
        })
}
