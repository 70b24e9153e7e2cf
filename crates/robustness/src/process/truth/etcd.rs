//! The store of a real control plane, read through etcd's JSON gateway.

use anyhow::{Context, Result, bail};
use futures::AsyncBufReadExt as _;
use k8s_openapi::ByteString;
use quorate_devcluster::apiserver::{ObservedChange, Observer};
use serde_json::{Value, json};

/// The resources that are recorded, by the begin of their keys.
const RESOURCES: &[(&str, &str)] = &[
    ("/registry/pods/", "pods"),
    ("/registry/namespaces/", "namespaces"),
    ("/registry/minions/", "nodes"),
    ("/registry/deployments/", "deployments.apps"),
    ("/registry/replicasets/", "replicasets.apps"),
    ("/registry/statefulsets/", "statefulsets.apps"),
    ("/registry/jobs/", "jobs.batch"),
    ("/registry/poddisruptionbudgets/", "poddisruptionbudgets.policy"),
    ("/registry/leaderworkerset.x-k8s.io/leaderworkersets/", "leaderworkersets.leaderworkerset.x-k8s.io"),
    ("/registry/scheduling.quorate.dev/workloads/", "workloads.scheduling.quorate.dev"),
    ("/registry/policy.quorate.dev/disruptionbudgets/", "disruptionbudgets.policy.quorate.dev"),
    ("/registry/policy.kruise.io/podunavailablebudgets/", "podunavailablebudgets.policy.kruise.io"),
];

/// A key of the recorder's own, below the keys of Kubernetes, so that the watch shows it.
const OWN_KEY: &str = "/registry/quorate-robustness";

/// A client of etcd.
#[derive(Clone)]
pub(super) struct Etcd {
    client: kube::Client,
}

/// A change of a recorded object.
#[derive(Debug, PartialEq)]
pub(super) struct RecordedChange {
    resource: &'static str,
    revision: u64,
    deleted: bool,
    object: Value,
}

impl RecordedChange {
    /// Records the change.
    pub(super) fn record(&self, observer: &dyn Observer) {
        let Self { resource, revision, deleted, object } = self;
        observer.changed(&ObservedChange { resource, revision: *revision, deleted: *deleted, object });
    }
}

impl Etcd {
    /// A client of the etcd at this URL.
    pub(super) fn at(url: &str) -> Result<Self> {
        let mut config = kube::Config::new(url.parse().with_context(|| format!("{url} is not a URL"))?);
        config.read_timeout = None;
        config.default_retry = false;
        Ok(Self { client: kube::Client::try_from(config)? })
    }

    async fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let request = http::Request::post(path).body(body.to_string().into_bytes())?;
        Ok(self.client.request(request).await?)
    }

    /// The present revision. The read is linearizable.
    pub(super) async fn revision(&self) -> Result<u64> {
        let answer = self.call("/v3/kv/range", &json!({"key": base64(OWN_KEY), "count_only": true})).await?;
        number(&answer["header"]["revision"]).context("no revision")
    }

    /// Writes the recorder's own key, and returns the revision of that.
    pub(super) async fn touch(&self) -> Result<u64> {
        let answer = self.call("/v3/kv/put", &json!({"key": base64(OWN_KEY), "value": base64("{}")})).await?;
        number(&answer["header"]["revision"]).context("no revision")
    }

    /// Shows all changes since the first revision, and the revision up to which that is all. Never ends without an error.
    pub(super) async fn watch(&self, mut each: impl FnMut(u64, Vec<RecordedChange>)) -> Result<()> {
        let create = json!({"create_request": {"key": base64("/registry/"), "range_end": base64("/registry0"),
            "start_revision": "1", "prev_kv": true}});
        let request = http::Request::post("/v3/watch").body(create.to_string().into_bytes())?;
        let mut lines = Box::pin(self.client.request_stream(request).await?);
        let mut line = String::new();
        loop {
            line.clear();
            if lines.read_line(&mut line).await? == 0 {
                bail!("etcd ended the watch");
            }
            let message: Value = serde_json::from_str(&line)?;
            let result = &message["result"];
            if result["canceled"] == true || result.is_null() {
                bail!("etcd does not watch: {message}");
            }
            let mut changes = Vec::new();
            let mut revision = 0;
            for event in result["events"].as_array().into_iter().flatten() {
                revision =
                    revision.max(number(&event["kv"]["mod_revision"]).context("an event without revision")?);
                changes.extend(recorded_change(event)?);
            }
            if revision > 0 {
                each(revision, changes);
            }
        }
    }
}

/// The change that an event shows, if its resource is recorded.
fn recorded_change(event: &Value) -> Result<Option<RecordedChange>> {
    let kv = &event["kv"];
    let key = bytes(&kv["key"])?;
    let key = String::from_utf8_lossy(&key);
    let Some((_, resource)) = RESOURCES.iter().find(|(prefix, _)| key.starts_with(prefix)) else {
        return Ok(None);
    };
    let revision = number(&kv["mod_revision"]).context("an event without revision")?;
    let deleted = event["type"] == "DELETE";
    let value = if deleted { &event["prev_kv"]["value"] } else { &kv["value"] };
    let mut object: Value =
        serde_json::from_slice(&bytes(value)?).with_context(|| format!("{key} is not stored as JSON"))?;
    object["metadata"]["resourceVersion"] = json!(revision.to_string());
    Ok(Some(RecordedChange { resource, revision, deleted, object }))
}

/// Numbers of 64 bits are strings in the JSON of etcd.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::from_value::<ByteString>(value.clone())?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_changes_of_recorded_resources() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "a"}})
            .to_string();
        let put = json!({"kv": {"key": base64("/registry/pods/a/web"), "mod_revision": "7", "value": base64(&pod)}});
        let change = recorded_change(&put).expect("an event").expect("a pod");
        assert_eq!((change.resource, change.revision, change.deleted), ("pods", 7, false));
        assert_eq!(change.object["metadata"]["resourceVersion"], "7");
        let delete = json!({"type": "DELETE", "kv": {"key": base64("/registry/pods/a/web"), "mod_revision": "9"},
            "prev_kv": {"value": base64(&pod)}});
        let change = recorded_change(&delete).expect("an event").expect("a pod");
        assert_eq!(
            (change.revision, change.deleted, &change.object["metadata"]["name"]),
            (9, true, &json!("web"))
        );
        let other = json!({"kv": {"key": base64("/registry/leases/a/b"), "mod_revision": "8", "value": base64("k8s")}});
        assert_eq!(recorded_change(&other).expect("an event"), None);
        let binary = json!({"kv": {"key": base64("/registry/pods/a/b"), "mod_revision": "8", "value": base64("k8s\u{0}")}});
        assert!(recorded_change(&binary).is_err(), "protobuf is an error, not a gap");
    }
}
