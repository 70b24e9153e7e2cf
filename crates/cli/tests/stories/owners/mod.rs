//! Owner references that templates add to pods. On a real control plane with real controllers and garbage collector.

mod blocking;
mod collection;
mod gate;
mod groups;
mod kinds;
mod left_out;
mod reinvocation;

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::TestNamespace;
use crate::quorate::{EVERYTHING, Quorate, RENDERED, apply, install, of_kinds};

pub(super) const GROUPS: &str = "batch.example.com/v1";

/// A namespace with a node, JobGroups that no controller handles, and a server that may read them.
impl TestNamespace {
    /// With a server that adds owner references to pods.
    pub(super) async fn with_owner_references(cluster: Cluster, prefix: &str) -> Self {
        let mut ns = Self::with_job_groups(cluster, prefix).await;
        ns.restart_server(Some(true)).await;
        ns
    }

    /// Without a server.
    pub(super) async fn with_job_groups(cluster: Cluster, prefix: &str) -> Self {
        // This comes first, because the garbage collector needs half a minute until it knows a new kind.
        let wire = cluster.wire();
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        wire.post(definitions, &definition()).await.expect(201);
        install(&cluster).await;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "job-groups", "labels": {"rbac.quorate.dev/aggregate-to-server": "true"}},
            "rules": [
                {"apiGroups": ["batch.example.com"], "resources": ["jobgroups"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
            ],
        });
        wire.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
        cluster.actors().nodes().add("node-1").await.expect("a node");
        Self::new(cluster, prefix, None).await
    }

    /// Replaces the server by one with the gate on or off, or by none, and waits until the API server uses it.
    pub(super) async fn restart_server(&mut self, gate: Option<bool>) {
        if let Some(quorate) = self.quorate.take() {
            quorate.end().await;
        }
        if let Some(on) = gate {
            // Helm uses the gate too: the API server calls the webhook for new pods only if it is on.
            let release = if on { EVERYTHING } else { RENDERED };
            apply(&self.cluster, &of_kinds(release, &["MutatingWebhookConfiguration"])).await;
            let server =
                Quorate::start_with(&self.cluster, |options| options.propagate_owner_references = on);
            self.quorate = Some(server.await);
        }
        let group = match self.get(GROUPS, "jobgroups", "known").await.code {
            200 => reference(&self.get(GROUPS, "jobgroups", "known").await.expect(200)),
            _ => self.create_job_group("known").await,
        };
        let count = if gate == Some(true) { 2 } else { 1 };
        eventually(&format!("pods have {count} owners"), || async {
            let made = self.dry_run_pod(&group).await;
            let owners = made["metadata"]["ownerReferences"].as_array().map(Vec::len);
            if owners == Some(count) { Ok(()) } else { Err(made) }
        })
        .await;
    }

    /// The result of a dry run that creates a pod of a controller that does not exist.
    pub(super) async fn dry_run_pod(&self, owner: &Value) -> Value {
        let controller = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "none", "uid": "none", "controller": true});
        let annotation = json!([owner]).to_string();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "tried", "ownerReferences": [controller], "annotations": {"quorate.dev/owner-references": annotation}},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "main:1"}]}});
        self.wire.post(&format!("{}?dryRun=All", self.path("v1", "pods")), &pod).await.expect(201)
    }

    pub(super) async fn delete_with_policy(&self, version: &str, plural: &str, name: &str, policy: &str) {
        let path = self.path(version, &format!("{plural}/{name}"));
        self.wire.delete(&path, &json!({"propagationPolicy": policy})).await.expect(200);
    }

    /// Creates a JobGroup, and returns a reference to it.
    pub(super) async fn create_job_group(&self, name: &str) -> Value {
        let group = json!({"apiVersion": GROUPS, "kind": "JobGroup", "metadata": {"name": name}});
        reference(&self.create(GROUPS, "jobgroups", &group).await)
    }

    /// Creates a workload whose template names these owners.
    pub(super) async fn create_workload(&self, kind: &str, name: &str, owners: &Value) -> Value {
        let (version, plural, object) = workload(kind, name, &json!({"ownerReferences": owners}));
        self.create(version, &plural, &object).await
    }

    /// Waits until a workload has so many pods and none is terminating.
    pub(super) async fn await_pods_of(&self, app: &str, count: usize) -> Vec<Value> {
        let path = self.path("v1", &format!("pods?labelSelector=app%3D{app}"));
        eventually(&format!("there are {count} pods of {app}"), || async {
            let all = self.wire.get(&path).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
            let steady = all.iter().all(|pod| pod["metadata"].get("deletionTimestamp").is_none());
            if steady && all.len() == count {
                Ok(all)
            } else {
                Err(all.iter().map(owners_of).collect::<Vec<_>>())
            }
        })
        .await
    }

    /// Waits until the one pod of a workload has exactly these owners, by name. Returns its UID.
    pub(super) async fn await_owners(&self, app: &str, owners: &[&str]) -> String {
        eventually(&format!("the pod of {app} has the owners {owners:?}"), || async {
            let pods = self.await_pods_of(app, 1).await;
            let names: Vec<String> = names(&pods[0]);
            if names == owners { Ok(uid(&pods[0])) } else { Err(names) }
        })
        .await
    }
}

/// The owner references of a pod.
pub(super) fn owners_of(pod: &Value) -> Vec<Value> {
    pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
}

pub(super) fn names(pod: &Value) -> Vec<String> {
    owners_of(pod).iter().map(|owner| owner["name"].as_str().unwrap_or_default().to_owned()).collect()
}

pub(super) fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

pub(super) fn reference(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": false})
}

/// A workload of one pod, with these fields in the metadata of its template.
pub(super) fn workload(kind: &str, name: &str, metadata: &Value) -> (&'static str, String, Value) {
    let mut meta = json!({"labels": {"app": name}});
    for (field, value) in metadata.as_object().into_iter().flatten() {
        meta[field] = value.clone();
    }
    let mut template = json!({"metadata": meta, "spec": {"terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "main:1"}]}});
    let selector = json!({"matchLabels": {"app": name}});
    let (version, spec) = match kind {
        "Job" => {
            template["spec"]["restartPolicy"] = json!("Never");
            ("batch/v1", json!({"template": template}))
        }
        "ReplicationController" => ("v1", json!({"replicas": 1, "template": template})),
        "DaemonSet" => ("apps/v1", json!({"selector": selector, "template": template})),
        "LeaderWorkerSet" => (
            "leaderworkerset.x-k8s.io/v1",
            json!({"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}),
        ),
        "StatefulSet" => (
            "apps/v1",
            json!({"replicas": 1, "serviceName": name, "selector": selector, "template": template}),
        ),
        _ => ("apps/v1", json!({"replicas": 1, "selector": selector, "template": template})),
    };
    let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    (version, format!("{}s", kind.to_lowercase()), object)
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "jobgroups.batch.example.com"},
        "spec": {
            "group": "batch.example.com", "scope": "Namespaced",
            "names": {"kind": "JobGroup", "plural": "jobgroups", "singular": "jobgroup", "listKind": "JobGroupList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    })
}
