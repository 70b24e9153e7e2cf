//! Shared objects and paths.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quorate_testbed::{Cluster, Patch, Wire, eventually};
use serde_json::{Value, json};

/// A namespace of one test, with a client for its objects.
pub(crate) struct TestNamespace {
    pub(crate) wire: Wire,
    pub(crate) name: String,
}

impl TestNamespace {
    pub(crate) async fn new(cluster: &Cluster, stem: &str) -> Self {
        Self { wire: cluster.wire(), name: cluster.namespace(stem).await.expect("a namespace") }
    }

    /// The path of a resource in this namespace: `configmaps`, `pods/a/eviction`.
    pub(crate) fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.name)
    }

    /// The path of a resource outside the core group: `policy/v1`.
    pub(crate) fn path(&self, group_version: &str, rest: &str) -> String {
        format!("/apis/{group_version}/namespaces/{}/{rest}", self.name)
    }

    pub(crate) fn budgets(&self, rest: &str) -> String {
        self.path("policy/v1", &format!("poddisruptionbudgets{rest}"))
    }

    pub(crate) async fn create(&self, rest: &str, object: &Value) -> Value {
        self.wire.post(&self.core(rest), object).await.expect(201)
    }

    pub(crate) async fn config_map(&self, name: &str, data: Value) -> Value {
        self.create("configmaps", &config_map(name, data)).await
    }

    /// Creates a pod in the phase `phase`, ready or not.
    pub(crate) async fn pod(&self, name: &str, phase: &str, ready: Option<bool>) -> Value {
        self.create("pods", &pod(name)).await;
        self.set_phase(name, phase, ready).await
    }

    pub(crate) async fn set_phase(&self, name: &str, phase: &str, ready: Option<bool>) -> Value {
        let mut status = json!({"phase": phase});
        if let Some(ready) = ready {
            let word = if ready { "True" } else { "False" };
            status["conditions"] = json!([{"type": "Ready", "status": word}]);
        }
        let path = self.core(&format!("pods/{name}/status"));
        self.wire.patch(&path, Patch::Merge, &json!({"status": status})).await.expect(200)
    }

    /// Waits until the API server's cache is as new as the store. A deletion first uses the cached object, and also
    /// sends it to webhooks.
    pub(crate) async fn settle(&self, rest: &str) {
        let stored = self.wire.get(&self.core(rest)).await.expect(200);
        let path = self.core(&format!("{rest}?resourceVersion=0"));
        eventually("the cache is as new as the store", || async {
            let cached = self.wire.get(&path).await;
            if version_of(&cached.body) == version_of(&stored) { Ok(()) } else { Err(cached) }
        })
        .await;
    }

    pub(crate) async fn code(&self, path: &str) -> u16 {
        self.wire.get(path).await.code
    }
}

pub(crate) fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// A pod with the label `a: "true"`. The clusters of these tests have no free node, so it is never scheduled.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"a": "true"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    })
}

/// The same pod on a node, so that its deletion has a grace period.
pub(crate) fn pod_on(name: &str, node: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

pub(crate) fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "none"}]},
            },
        },
    })
}

pub(crate) fn stateful_set(name: &str, replicas: u32) -> Value {
    let mut set = deployment(name, replicas);
    set["kind"] = json!("StatefulSet");
    set["spec"]["serviceName"] = json!(name);
    set
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A value of a query parameter.
pub(crate) fn encoded(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

pub(crate) fn version_of(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

pub(crate) fn uid_of(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// The names of the items of a list, in the order of the list.
pub(crate) fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().map(|item| text(item, "/metadata/name")).collect()
}
