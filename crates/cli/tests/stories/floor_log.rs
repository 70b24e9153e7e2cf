//! An independent witness: a watch of its own that counts the healthy pods of each unit of interest after every event,
//! and remembers each time that there were too few.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use parking_lot::Mutex;
use quorate_kit::watch::{self, Event, Source};
use quorate_testbed::Cluster;
use tokio::task::JoinHandle;

/// Counts the healthy pods of one namespace by the value of a label.
pub(crate) struct FloorLog {
    watching: JoinHandle<std::convert::Infallible>,
    state: Arc<Mutex<State>>,
}

struct State {
    label: &'static str,
    floor: usize,
    pods: BTreeMap<String, Seen>,
    events: usize,
    lists: usize,
    violations: Vec<String>,
}

struct Seen {
    name: String,
    unit: String,
    healthy: bool,
}

impl FloorLog {
    /// Begins with what is there: each value of `label` must keep `floor` healthy pods.
    pub(crate) fn begin(cluster: &Cluster, namespace: &str, label: &'static str, floor: usize) -> Self {
        let state =
            State { label, floor, pods: BTreeMap::new(), events: 0, lists: 0, violations: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let source: Source<Pod> = Source::namespaced(cluster.admin(), namespace);
        let seen = state.clone();
        let watching = tokio::spawn(watch::run(source, move |event| {
            seen.lock().take(event);
            std::future::ready(())
        }));
        Self { watching, state }
    }

    /// The names of the pods that are healthy now.
    pub(crate) fn healthy(&self) -> Vec<String> {
        let state = self.state.lock();
        state.pods.values().filter(|pod| pod.healthy).map(|pod| pod.name.clone()).collect()
    }

    /// How many events and lists it has seen, and each time that a unit was below its floor.
    pub(crate) fn seen(&self) -> (usize, usize, Vec<String>) {
        assert!(!self.watching.is_finished(), "the log broke off");
        let state = self.state.lock();
        (state.events, state.lists, state.violations.clone())
    }
}

impl Drop for FloorLog {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl State {
    fn take(&mut self, event: Event<Pod>) {
        match event {
            Event::Listed(listed) => {
                self.lists += 1;
                self.pods = listed
                    .objects
                    .iter()
                    .map(|pod| (pod.uid().unwrap_or_default(), self.look(pod)))
                    .collect();
                let units: Vec<String> = self.pods.values().map(|pod| pod.unit.clone()).collect();
                for unit in units {
                    self.check(&unit, &format!("list at {}", listed.version));
                }
            }
            Event::Applied(pod) => {
                self.events += 1;
                let seen = self.look(&pod);
                let unit = seen.unit.clone();
                self.pods.insert(pod.uid().unwrap_or_default(), seen);
                self.check(&unit, &said(&pod));
            }
            Event::Deleted(pod) => {
                self.events += 1;
                if let Some(gone) = self.pods.remove(&pod.uid().unwrap_or_default()) {
                    self.check(&gone.unit, &said(&pod));
                }
            }
            Event::Unreadable(_) | Event::Bookmark(_) => {}
        }
    }

    fn look(&self, pod: &Pod) -> Seen {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
        Seen {
            name: pod.name_any(),
            unit: pod.labels().get(self.label).cloned().unwrap_or_default(),
            healthy: ready && pod.metadata.deletion_timestamp.is_none(),
        }
    }

    fn check(&mut self, unit: &str, at: &str) {
        let healthy = self.pods.values().filter(|pod| pod.unit == unit && pod.healthy).count();
        if healthy < self.floor {
            self.violations.push(format!("{unit} had {healthy} of {}: {at}", self.floor));
        }
    }
}

fn said(pod: &Pod) -> String {
    format!("{} at {}", pod.name_any(), pod.resource_version().unwrap_or_default())
}
