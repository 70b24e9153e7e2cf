//! Owner references that reach the pods, with real controllers and the real garbage collector where there are some.

mod again;
mod blocking;
mod collection;
mod gate;
mod groups;
mod kinds;
mod left_out;

use quorate_testbed::{Answer, Cluster, Patch, Wire, eventually};
use serde_json::{Value, json};

use crate::quorate::{EVERYTHING, Quorate, RENDERED, apply, install, of_kinds};

pub(super) const GROUPS: &str = "batch.example.com/v1";

/// A namespace with a node, JobGroups that nobody controls, and a server that may read them.
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) wire: Wire,
    quorate: Option<Quorate>,
}

impl Lab {
    /// With owners given to pods.
    pub(super) async fn open(cluster: Cluster, stem: &str) -> Self {
        let mut lab = Self::without_server(cluster, stem).await;
        lab.switch(Some(true)).await;
        lab
    }

    pub(super) async fn without_server(cluster: Cluster, stem: &str) -> Self {
        // First of all: the garbage collector takes half a minute to learn of a new kind.
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
        let namespace = cluster.namespace(stem).await.expect("a namespace");
        Self { cluster, namespace, wire, quorate: None }
    }

    /// Replaces the server by one with the gate on or off, or by none, and waits until the API server goes by it.
    pub(super) async fn switch(&mut self, gate: Option<bool>) {
        if let Some(quorate) = self.quorate.take() {
            quorate.end().await;
        }
        if let Some(on) = gate {
            // Helm goes by the gate too: the API server asks about new pods only where it is on.
            let release = if on { EVERYTHING } else { RENDERED };
            apply(&self.cluster, &of_kinds(release, &["MutatingWebhookConfiguration"])).await;
            let server =
                Quorate::start_with(&self.cluster, |options| options.propagate_owner_references = on);
            self.quorate = Some(server.await);
        }
        let group = match self.get(GROUPS, "jobgroups", "known").await.code {
            200 => reference(&self.get(GROUPS, "jobgroups", "known").await.expect(200)),
            _ => self.group("known").await,
        };
        let count = if gate == Some(true) { 2 } else { 1 };
        eventually(&format!("pods have {count} owners"), || async {
            let made = self.tried(&group).await;
            let owners = made["metadata"]["ownerReferences"].as_array().map(Vec::len);
            if owners == Some(count) { Ok(()) } else { Err(made) }
        })
        .await;
    }

    /// A pod as it would be stored if it were made now, by a controller that is not there.
    pub(super) async fn tried(&self, owner: &Value) -> Value {
        let controller = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "none", "uid": "none", "controller": true});
        let annotation = json!([owner]).to_string();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "tried", "ownerReferences": [controller], "annotations": {"quorate.dev/owner-references": annotation}},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "main:1"}]}});
        self.wire.post(&format!("{}?dryRun=All", self.path("v1", "pods")), &pod).await.expect(201)
    }

    pub(super) fn path(&self, version: &str, rest: &str) -> String {
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/namespaces/{}/{rest}", self.namespace)
    }

    /// Makes an object; a kind that was defined a moment ago may take another one.
    pub(super) async fn create(&self, version: &str, plural: &str, object: &Value) -> Value {
        let path = self.path(version, plural);
        eventually("the object is made", || async {
            let answer = self.wire.post(&path, object).await;
            if answer.code == 404 { Err(answer.body) } else { Ok(answer) }
        })
        .await
        .expect(201)
    }

    pub(super) async fn get(&self, version: &str, plural: &str, name: &str) -> Answer {
        self.wire.get(&self.path(version, &format!("{plural}/{name}"))).await
    }

    pub(super) async fn delete(&self, version: &str, plural: &str, name: &str, policy: &str) {
        let path = self.path(version, &format!("{plural}/{name}"));
        self.wire.delete(&path, &json!({"propagationPolicy": policy})).await.expect(200);
    }

    pub(super) async fn patch(&self, version: &str, rest: &str, patch: &Value) -> Value {
        self.wire.patch(&self.path(version, rest), Patch::Merge, patch).await.expect(200)
    }

    /// Makes a JobGroup; a reference to it.
    pub(super) async fn group(&self, name: &str) -> Value {
        let group = json!({"apiVersion": GROUPS, "kind": "JobGroup", "metadata": {"name": name}});
        reference(&self.create(GROUPS, "jobgroups", &group).await)
    }

    /// Makes a workload whose template names these owners.
    pub(super) async fn workload(&self, kind: &str, name: &str, owners: &Value) -> Value {
        let (version, plural, object) = workload(kind, name, &json!({"ownerReferences": owners}));
        self.create(version, &plural, &object).await
    }

    /// The pods of a workload, once there are so many and none is ending.
    pub(super) async fn pods(&self, app: &str, count: usize) -> Vec<Value> {
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

    /// Waits until the one pod of a workload has exactly these owners, by their names; its UID.
    pub(super) async fn owned(&self, app: &str, owners: &[&str]) -> String {
        eventually(&format!("the pod of {app} has the owners {owners:?}"), || async {
            let pods = self.pods(app, 1).await;
            let names: Vec<String> = names(&pods[0]);
            if names == owners { Ok(uid(&pods[0])) } else { Err(names) }
        })
        .await
    }
}

/// The owner references of a pod, as they are.
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

/// A workload of one pod, with this in the metadata of its template.
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
