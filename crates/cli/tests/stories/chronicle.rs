//! What happened to the pods and the budgets of a namespace, event by event: the evidence of a story that failed.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use quorate_testbed::Cluster;
use serde_json::Value;
use tokio::task::JoinSet;

/// Pause between two attempts to reach the API server.
const RETRY: Duration = Duration::from_millis(100);

/// Watches pods and DisruptionBudgets, and keeps a line of each event.
pub(crate) struct Chronicle {
    lines: Arc<Mutex<Vec<Line>>>,
    _watching: JoinSet<()>,
}

#[derive(Clone)]
struct Line {
    name: String,
    text: String,
}

impl Chronicle {
    pub(crate) fn start(cluster: &Cluster, namespace: &str) -> Self {
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        let mut watching = JoinSet::new();
        for (group, version, kind) in
            [("", "v1", "Pod"), ("policy.quorate.dev", "v1alpha1", "DisruptionBudget")]
        {
            let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind));
            watching.spawn(watch(cluster.admin(), namespace.to_owned(), kind, lines.clone()));
        }
        Self { lines, _watching: watching }
    }

    /// The events of a budget and of the pods whose names begin with its name.
    pub(crate) fn about(&self, budget: &str) -> Vec<String> {
        let pods = format!("{budget}-");
        let is_about = |line: &&Line| line.name == budget || line.name.starts_with(&pods);
        self.lines.lock().iter().filter(is_about).map(|line| line.text.clone()).collect()
    }
}

/// Watches for ever. After a watch that ended, it lists again.
async fn watch(client: Client, namespace: String, kind: ApiResource, lines: Arc<Mutex<Vec<Line>>>) {
    let objects: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
    let record = |event: &str, object: &DynamicObject| {
        let version = object.resource_version().unwrap_or_default();
        let (name, what) = (object.name_any(), describe(object));
        let text = format!("{} {version} {event} {} {name} {what}", Timestamp::now(), kind.kind);
        lines.lock().push(Line { name, text });
    };
    loop {
        if let Ok(listed) = objects.list(&ListParams::default()).await {
            listed.items.iter().for_each(|object| record("listed", object));
            let version = listed.metadata.resource_version.unwrap_or_default();
            if let Ok(events) = objects.watch(&WatchParams::default(), &version).await {
                pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    match &event {
                        WatchEvent::Added(object) => record("added", object),
                        WatchEvent::Modified(object) => record("modified", object),
                        WatchEvent::Deleted(object) => record("deleted", object),
                        WatchEvent::Bookmark(_) => {}
                        WatchEvent::Error(_) => break,
                    }
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// What decisions depend on.
fn describe(object: &DynamicObject) -> String {
    let status = &object.data["status"];
    if !status["phase"].is_string() {
        return status.to_string();
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready =
        conditions.filter(|condition| condition["type"] == "Ready").map(|condition| &condition["status"]);
    let ready: Vec<&Value> = ready.collect();
    let deleted = object.metadata.deletion_timestamp.is_some();
    format!("{} {} ready {ready:?} terminating {deleted}", object.uid().unwrap_or_default(), status["phase"])
}
