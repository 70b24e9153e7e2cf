//! A watch that observes the pods independently of Quorate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use quorate_kit::watch::{self, WatchSource};
use tokio::sync::watch as watch_channel;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::{GROUP, SIZE};

/// An observed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedPod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) app: String,
    /// The group of the pod, if it has one.
    pub(super) group: Option<String>,
    pub(super) node: Option<String>,
    /// Ready, and not terminating.
    pub(super) ready: bool,
    pub(super) terminating: bool,
}

/// Watches the pods of one namespace. Clones share the same state.
#[derive(Clone)]
pub(super) struct Witness {
    state: Arc<Mutex<State>>,
    changed: Arc<watch_channel::Sender<u64>>,
    _watching: Arc<AbortOnDropHandle<()>>,
}

#[derive(Default)]
struct State {
    pods: BTreeMap<String, ObservedPod>,
    /// The smallest number of whole groups since [`Witness::begin`].
    fewest: usize,
}

impl Witness {
    pub(super) fn start(client: Client, namespace: &str) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let changed = Arc::new(watch_channel::Sender::new(0));
        let (log, notifier) = (state.clone(), changed.clone());
        let source = WatchSource::<Pod>::namespaced(client, namespace);
        let watching = tokio::spawn(async move {
            watch::run(source, |event| {
                log.lock().take(event);
                notifier.send_modify(|count| *count += 1);
                std::future::ready(())
            })
            .await;
        });
        Self { state, changed, _watching: Arc::new(AbortOnDropHandle::new(watching)) }
    }

    /// All pods, by name.
    pub(super) fn pods(&self) -> Vec<ObservedPod> {
        let mut pods: Vec<ObservedPod> = self.state.lock().pods.values().cloned().collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods
    }

    /// The number of whole groups.
    pub(super) fn whole(&self) -> usize {
        whole(self.state.lock().pods.values())
    }

    /// Restarts the count of `fewest`.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        state.fewest = whole(state.pods.values());
    }

    /// The smallest number of whole groups after any event since [`Witness::begin`].
    pub(super) fn fewest(&self) -> usize {
        self.state.lock().fewest
    }

    /// The node with pods of the most groups.
    pub(super) fn busiest_node(&self) -> Option<String> {
        let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in self.pods() {
            if let (Some(node), Some(group)) = (pod.node, pod.group) {
                groups.entry(node).or_default().insert(group);
            }
        }
        groups.into_iter().max_by_key(|(_, groups)| groups.len()).map(|(node, _)| node)
    }

    /// Notifies of every change.
    pub(super) fn changes(&self) -> watch_channel::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl State {
    fn take(&mut self, event: watch::WatchEvent<Pod>) {
        match event {
            watch::WatchEvent::Listed(listed) => {
                self.pods =
                    listed.objects.iter().map(|pod| (pod.uid().unwrap_or_default(), observed(pod))).collect();
            }
            watch::WatchEvent::Applied(pod) => {
                drop(self.pods.insert(pod.uid().unwrap_or_default(), observed(&pod)));
            }
            watch::WatchEvent::Deleted(pod) => drop(self.pods.remove(&pod.uid().unwrap_or_default())),
            watch::WatchEvent::Unreadable(_) | watch::WatchEvent::Bookmark(_) => return,
        }
        self.fewest = self.fewest.min(whole(self.pods.values()));
    }
}

fn observed(pod: &Pod) -> ObservedPod {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let terminating = pod.metadata.deletion_timestamp.is_some();
    ObservedPod {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        app: pod.labels().get("app").cloned().unwrap_or_default(),
        group: pod.labels().get(GROUP).cloned(),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ready: is_ready && !terminating,
        terminating,
    }
}

/// The number of groups whose pods all exist and are ready.
fn whole<'a>(pods: impl Iterator<Item = &'a ObservedPod>) -> usize {
    let mut ready: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods.filter(|pod| pod.ready) {
        if let Some(group) = &pod.group {
            *ready.entry(group).or_default() += 1;
        }
    }
    ready.values().filter(|ready| **ready >= SIZE).count()
}
