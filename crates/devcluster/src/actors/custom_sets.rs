//! Sets of custom kinds with a scale: a controller keeps the number of their pods, as for a ReplicaSet.
//!
//! A change of the pod template reaches only new pods. The real controller of CloneSets also replaces the others.

use kube::Api;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::ActorContext;
use super::replicaset;

/// A custom kind, and the user of its controller.
struct CustomSet {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    user: &'static str,
}

/// OpenKruise's CloneSet, and a kind that no other software knows.
const KINDS: [CustomSet; 2] = [
    CustomSet {
        group: "apps.kruise.io",
        version: "v1alpha1",
        kind: "CloneSet",
        plural: "clonesets",
        user: "system:serviceaccount:kruise-system:kruise-manager",
    },
    CustomSet {
        group: "example.com",
        version: "v1",
        kind: "Fleet",
        plural: "fleets",
        user: "system:serviceaccount:fleet-system:fleet-operator",
    },
];

/// The CustomResourceDefinitions of the kinds.
#[must_use]
pub fn custom_set_definitions() -> Vec<Value> {
    KINDS.iter().map(CustomSet::definition).collect()
}

pub(crate) fn start(context: &ActorContext) {
    for set in &KINDS {
        let kind = GroupVersionKind::gvk(set.group, set.version, set.kind);
        let kind = ApiResource::from_gvk_with_plural(&kind, set.plural);
        let sets = context.view.start(Api::all_with(context.identities.client(set.user), &kind), |_| None);
        replicaset::start_kind(context, set.user, set.kind, kind, sets);
    }
}

impl CustomSet {
    fn definition(&self) -> Value {
        let Self { group, version, kind, plural, .. } = self;
        let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"replicas": {"type": "integer", "format": "int32", "minimum": 0}}});
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                    "singular": kind.to_lowercase()},
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object",
                        "properties": {"spec": spec, "status": anything}}},
                    "subresources": {"status": {}, "scale": {
                        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                }],
            },
        })
    }
}
