//! An independent witness: a watch of its own that counts whole groups after every single event.

use std::collections::BTreeMap;

use quorate_testbed::Cluster;
use serde_json::Value;
use tokio::task::JoinHandle;

/// The log of one namespace's groups, from a list on.
pub(crate) struct GroupLog {
    watching: JoinHandle<()>,
    moments: std::sync::Arc<std::sync::Mutex<Vec<Moment>>>,
}

/// How many groups were whole, from one version on.
#[derive(Clone)]
pub(crate) struct Moment {
    pub(crate) version: String,
    pub(crate) whole: usize,
    pub(crate) event: String,
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {} whole", self.version, self.event, self.whole)
    }
}

impl GroupLog {
    /// Begins with what is there. A group is the pods of one value of `label`; it is whole with `size` ready ones.
    pub(crate) async fn begin(cluster: &Cluster, namespace: &str, label: &'static str, size: usize) -> Self {
        let wire = cluster.wire();
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let list = wire.get(&path).await.expect(200);
        let version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
        let mut pods = BTreeMap::new();
        for pod in list["items"].as_array().expect("a list") {
            pods.insert(uid(pod), seat(pod, label));
        }
        let first = Moment { version: version.clone(), whole: whole(&pods, size), event: "list".to_owned() };
        let moments = std::sync::Arc::new(std::sync::Mutex::new(vec![first]));
        let mut watch = wire.watch(&format!("{path}?resourceVersion={version}")).await;
        let log = moments.clone();
        let watching = tokio::spawn(async move {
            // There may be nothing to see for a while.
            while let Some((kind, pod)) = watch.next_at_last().await {
                match kind.as_str() {
                    "ADDED" | "MODIFIED" => drop(pods.insert(uid(&pod), seat(&pod, label))),
                    "DELETED" => drop(pods.remove(&uid(&pod))),
                    other => panic!("the log broke off: {other} {pod}"),
                }
                let meta = &pod["metadata"];
                log.lock().expect("the log").push(Moment {
                    version: meta["resourceVersion"].as_str().unwrap_or_default().to_owned(),
                    whole: whole(&pods, size),
                    event: format!("{kind} {}", meta["name"].as_str().unwrap_or_default()),
                });
            }
        });
        Self { watching, moments }
    }

    /// Everything it saw so far.
    pub(crate) fn moments(&self) -> Vec<Moment> {
        assert!(!self.watching.is_finished(), "the log broke off");
        self.moments.lock().expect("the log").clone()
    }
}

impl Drop for GroupLog {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// The pod's group, and whether it counts there.
fn seat(pod: &Value, label: &str) -> (String, bool) {
    let group = pod["metadata"]["labels"][label].as_str().unwrap_or_default().to_owned();
    let conditions = pod["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
    (group, ready && pod["metadata"]["deletionTimestamp"].is_null())
}

fn whole(pods: &BTreeMap<String, (String, bool)>, size: usize) -> usize {
    let mut ready: BTreeMap<&str, usize> = BTreeMap::new();
    for (group, counts) in pods.values() {
        *ready.entry(group).or_default() += usize::from(*counts);
    }
    ready.values().filter(|ready| **ready >= size).count()
}
