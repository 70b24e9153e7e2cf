//! An independent witness: a watch of its own that counts the healthy pods by a label after every single event. It
//! shares no code with Quorate's watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use quorate_testbed::Cluster;
use tokio::task::JoinHandle;

use crate::fixture::is_ready;

/// Pause between two attempts to reach the API server.
const RETRY: Duration = Duration::from_millis(100);

/// Watches the pods of one namespace from a list on.
pub(crate) struct Witness {
    watching: JoinHandle<()>,
    history: Arc<Mutex<History>>,
}

/// The healthy pods after one event.
#[derive(Clone)]
pub(crate) struct HealthSample {
    pub(crate) version: String,
    event: String,
    /// By each value of the label that was ever seen.
    healthy: BTreeMap<Arc<str>, usize>,
}

struct History {
    label: &'static str,
    pods: BTreeMap<String, Seen>,
    /// After each list and each event.
    samples: Vec<HealthSample>,
    lists: usize,
}

struct Seen {
    name: String,
    group: Arc<str>,
    healthy: bool,
}

impl HealthSample {
    /// The number of groups with at least `size` healthy pods.
    pub(crate) fn whole(&self, size: usize) -> usize {
        self.healthy.values().filter(|healthy| **healthy >= size).count()
    }
}

impl std::fmt::Display for HealthSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {:?} healthy", self.version, self.event, self.healthy)
    }
}

impl Witness {
    /// Starts with a list. The pods with the same value of `label` are a group.
    pub(crate) async fn start(cluster: &Cluster, namespace: &str, label: &'static str) -> Self {
        let pods: Api<Pod> = Api::namespaced(cluster.admin(), namespace);
        let history = History { label, pods: BTreeMap::new(), samples: Vec::new(), lists: 0 };
        let history = Arc::new(Mutex::new(history));
        let version = list(&pods, &history).await.expect("a list");
        let watching = tokio::spawn(watch(pods, history.clone(), version));
        Self { watching, history }
    }

    /// The names of the pods that are healthy now.
    pub(crate) fn healthy_pods(&self) -> Vec<String> {
        let history = self.history.lock();
        history.pods.values().filter(|pod| pod.healthy).map(|pod| pod.name.clone()).collect()
    }

    /// Every list and every event so far.
    pub(crate) fn samples(&self) -> Vec<HealthSample> {
        assert!(!self.watching.is_finished(), "the watch ended");
        self.history.lock().samples.clone()
    }

    /// The number of events, and of lists. Events before a second list may be missing.
    pub(crate) fn counts(&self) -> (usize, usize) {
        assert!(!self.watching.is_finished(), "the watch ended");
        let history = self.history.lock();
        (history.samples.len() - history.lists, history.lists)
    }

    /// The groups that ever had fewer than `floor` healthy pods.
    pub(crate) fn ever_below(&self, floor: usize) -> BTreeSet<String> {
        let samples = self.samples();
        let groups = samples.iter().flat_map(|sample| &sample.healthy);
        groups.filter(|(_, healthy)| **healthy < floor).map(|(group, _)| group.to_string()).collect()
    }

    /// Each time that a group had fewer than `floor` healthy pods.
    pub(crate) fn below(&self, floor: usize) -> Vec<String> {
        let below = |sample: &HealthSample| sample.healthy.values().any(|healthy| *healthy < floor);
        self.samples().iter().filter(|sample| below(sample)).map(ToString::to_string).collect()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Lists the pods and returns the version of the list.
async fn list(pods: &Api<Pod>, history: &Mutex<History>) -> Result<String, kube::Error> {
    let listed = pods.list(&ListParams::default()).await?;
    let version = listed.metadata.resource_version.unwrap_or_default();
    let mut history = history.lock();
    history.lists += 1;
    history.pods.clear();
    for pod in &listed.items {
        history.insert(pod);
    }
    history.record(version.clone(), "list".to_owned());
    Ok(version)
}

/// Watches for ever. After a watch that ended, it lists again.
async fn watch(pods: Api<Pod>, history: Arc<Mutex<History>>, mut version: String) {
    loop {
        if let Ok(events) = pods.watch(&WatchParams::default(), &version).await {
            pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                let mut history = history.lock();
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                        history.insert(&pod);
                        history.record(pod.resource_version().unwrap_or_default(), pod.name_any());
                    }
                    WatchEvent::Deleted(pod) => {
                        history.pods.remove(&pod.uid().unwrap_or_default());
                        let event = format!("{} deleted", pod.name_any());
                        history.record(pod.resource_version().unwrap_or_default(), event);
                    }
                    WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(_) => break,
                }
            }
        }
        version = loop {
            match list(&pods, &history).await {
                Ok(version) => break version,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        };
    }
}

impl History {
    fn insert(&mut self, pod: &Pod) {
        let group = pod.labels().get(self.label).map_or("", String::as_str);
        let seen = Seen { name: pod.name_any(), group: group.into(), healthy: is_ready(pod) };
        self.pods.insert(pod.uid().unwrap_or_default(), seen);
    }

    fn record(&mut self, version: String, event: String) {
        let mut healthy = self.samples.last().map(|sample| sample.healthy.clone()).unwrap_or_default();
        healthy.values_mut().for_each(|count| *count = 0);
        for pod in self.pods.values() {
            *healthy.entry(pod.group.clone()).or_default() += usize::from(pod.healthy);
        }
        self.samples.push(HealthSample { version, event, healthy });
    }
}
