//! The LeaderWorkerSet kind: its fields, its labels, and its CustomResourceDefinition.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{ApiResource, GroupVersionKind, Object};
use kube::{Client, Error};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::identities::LEADER_WORKER_SETS;
use super::super::request::{self, ErrorExt};

pub(crate) const GROUP: &str = "leaderworkerset.x-k8s.io";
pub(super) const NAME: &str = "leaderworkerset.sigs.k8s.io/name";
pub(super) const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
pub(super) const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
pub(super) const GROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/group-key";
pub(super) const REVISION: &str = "leaderworkerset.sigs.k8s.io/template-revision-hash";
/// An annotation, not a label.
pub(super) const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
pub(super) const REPLICAS: &str = "leaderworkerset.sigs.k8s.io/replicas";
pub(super) const LEADER_NAME: &str = "leaderworkerset.sigs.k8s.io/leader-name";

pub(crate) type LeaderWorkerSet = Object<Spec, Value>;

pub(crate) fn leader_worker_sets() -> ApiResource {
    let kind = GroupVersionKind::gvk(GROUP, "v1", "LeaderWorkerSet");
    ApiResource::from_gvk_with_plural(&kind, "leaderworkersets")
}

fn one() -> i32 {
    1
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(default = "one")]
    pub(crate) replicas: i32,
    pub(crate) leader_worker_template: Value,
    #[serde(default)]
    pub(crate) rollout_strategy: RolloutStrategy,
    #[serde(default)]
    pub(crate) startup_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RolloutStrategy {
    pub(crate) rolling_update_configuration: RollingUpdateConfiguration,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RollingUpdateConfiguration {
    pub(crate) max_unavailable: Option<IntOrString>,
    pub(crate) max_surge: Option<IntOrString>,
}

impl Spec {
    pub(super) fn restart_policy(&self) -> &str {
        let policy = self.leader_worker_template["restartPolicy"].as_str();
        policy.filter(|policy| !policy.is_empty()).unwrap_or("RecreateGroupOnPodRestart")
    }

    pub(super) fn workers_wait_for_leader(&self) -> bool {
        self.startup_policy == "LeaderReady"
    }

    /// The content of a revision: if any of it changes, the groups are updated.
    pub(super) fn revision_content(&self) -> Value {
        let template = &self.leader_worker_template;
        json!({"spec": {"leaderWorkerTemplate": {
            "leaderTemplate": template["leaderTemplate"], "workerTemplate": template["workerTemplate"],
            "size": template["size"].as_i64().unwrap_or(1),
        }}})
    }
}

/// The CustomResourceDefinition of the kind, with the fields that this controller reads.
#[must_use]
pub fn leader_worker_set_definition() -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let count = |default: i32, minimum: i32| json!({"type": "integer", "format": "int32", "default": default, "minimum": minimum});
    let share = |default: i32| {
        json!({"x-kubernetes-int-or-string": true, "default": default,
                                     "anyOf": [{"type": "integer"}, {"type": "string"}]})
    };
    let schema = json!({"type": "object", "required": ["spec"], "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": {"type": "object", "required": ["leaderWorkerTemplate"], "properties": {
            "replicas": count(1, 0),
            "startupPolicy": {"type": "string", "default": "LeaderCreated", "enum": ["LeaderCreated", "LeaderReady"]},
            "rolloutStrategy": {
                "type": "object",
                "default": {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0}},
                "properties": {
                    "type": {"type": "string", "default": "RollingUpdate", "enum": ["RollingUpdate"]},
                    "rollingUpdateConfiguration": {"type": "object", "properties": {
                        "maxUnavailable": share(1), "maxSurge": share(0)}},
                },
            },
            "leaderWorkerTemplate": {"type": "object", "required": ["workerTemplate"], "properties": {
                "size": count(1, 1),
                "restartPolicy": {"type": "string", "default": "RecreateGroupOnPodRestart",
                    "enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "Default", "None"]},
                "leaderTemplate": anything, "workerTemplate": anything,
            }},
        }},
        "status": {"type": "object", "properties": {
            "replicas": {"type": "integer", "format": "int32"},
            "readyReplicas": {"type": "integer", "format": "int32"},
            "updatedReplicas": {"type": "integer", "format": "int32"},
            "hpaPodSelector": {"type": "string"},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {"type": "array", "items": anything},
        }},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("leaderworkersets.{GROUP}"),
            // Kinds in groups under x-k8s.io must state whether their API was reviewed.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
        },
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": "LeaderWorkerSet", "listKind": "LeaderWorkerSetList", "plural": "leaderworkersets",
                      "singular": "leaderworkerset", "shortNames": ["lws"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.hpaPodSelector"}},
                "additionalPrinterColumns": [
                    {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"},
                    {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Up-to-date", "type": "integer", "jsonPath": ".status.updatedReplicas"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            }],
        },
    })
}

/// Creates the kind on an API server, and grants its controller the permissions it needs. Existing objects stay.
///
/// # Errors
/// The client lacks permission, or the API server cannot be reached.
pub async fn install_leader_worker_sets(admin: &Client) -> Result<(), Error> {
    let definition = leader_worker_set_definition();
    done(request::create::<CustomResourceDefinition>(admin, &(), "", &definition).await, false)?;
    let all = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let rule =
        |group: &str, resources: Value| json!({"apiGroups": [group], "resources": resources, "verbs": all});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "lws-manager-role"},
        "rules": [
            rule("", json!(["pods", "pods/finalizers", "events"])),
            rule("apps", json!(["statefulsets", "statefulsets/finalizers", "controllerrevisions"])),
            rule(GROUP, json!(["leaderworkersets", "leaderworkersets/status", "leaderworkersets/finalizers"])),
        ],
    });
    let (_, namespace, account) = account(LEADER_WORKER_SETS);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "lws-manager-rolebinding"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lws-manager-role"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
    });
    // A server without RBAC needs no permissions.
    done(request::create::<ClusterRole>(admin, &(), "", &role).await, true)?;
    done(request::create::<ClusterRoleBinding>(admin, &(), "", &binding).await, true)
}

fn account(user: &str) -> (&str, &str, &str) {
    let mut parts = user.rsplitn(3, ':');
    let name = parts.next().unwrap_or_default();
    let namespace = parts.next().unwrap_or_default();
    (parts.next().unwrap_or_default(), namespace, name)
}

fn done<K>(result: Result<K, Error>, may_be_missing: bool) -> Result<(), Error> {
    match result {
        Err(error) if error.is_already_exists() || (may_be_missing && error.is_not_found()) => Ok(()),
        other => other.map(|_| ()),
    }
}
