//! Callers, and the operation of each request.

use std::rc::Rc;

use super::decode::{Disruption, LWS_NAME, Operation, Pod};
use super::states::Effect;
use crate::history::Request;

/// Controllers whose requests always pass, whatever they are.
const ALWAYS: [&str; 3] = ["generic-garbage-collector", "namespace-controller", "pod-garbage-collector"];

/// Controllers whose deletes always pass.
const DELETES: [&str; 3] =
    ["taint-eviction-controller", "device-taint-eviction-controller", "node-controller"];

const ACCOUNT: &str = "system:serviceaccount:kube-system:";

/// The controllers of Kubernetes, with the API group and the kind whose pods each of them manages.
const CONTROLLERS: [(&str, &str, &str); 5] = [
    ("replicaset-controller", "apps", "ReplicaSet"),
    ("statefulset-controller", "apps", "StatefulSet"),
    ("daemon-set-controller", "apps", "DaemonSet"),
    ("job-controller", "batch", "Job"),
    ("replication-controller", "", "ReplicationController"),
];

/// Whether the request is of a caller that always passes.
///
/// A delete of `system:kube-controller-manager` passes only with a precondition or without grace, which a history does
/// not show: all of them count as passed.
pub(super) fn exempt(request: &Request) -> bool {
    let user = request.user.as_str();
    let deletes = matches!(request.verb.as_str(), "delete" | "deletecollection");
    let account = user.strip_prefix(ACCOUNT).unwrap_or_default();
    user.starts_with("system:node:")
        || ALWAYS.contains(&account)
        || (deletes && DELETES.contains(&account))
        || (deletes && matches!(user, "system:kube-scheduler" | "system:kube-controller-manager"))
}

/// Whether the request is a delete by a controller of workloads.
pub(super) fn by_controller(request: &Request) -> bool {
    let user = request.user.as_str();
    let account = user.strip_prefix(ACCOUNT).is_some_and(|account| account.ends_with("-controller"));
    let other = ["system:serviceaccount:lws-system:", "system:serviceaccount:kruise-system:"];
    let other = other.iter().any(|prefix| user.starts_with(prefix));
    request.verb == "delete" && (account || other)
}

/// The operation of the request, if it is one that budgets protect against.
pub(super) fn operation(request: &Request) -> Option<Operation> {
    match (request.verb.as_str(), request.subresource.as_str()) {
        ("create", "eviction") => Some(Operation::Evict),
        ("delete" | "deletecollection", "") => Some(Operation::Delete),
        ("update" | "patch", "" | "status") => Some(Operation::Update),
        ("update" | "patch", "resize") => Some(Operation::Resize),
        _ => None,
    }
}

/// The operation of the request, if it had this effect.
pub(super) fn operation_of(request: &Request, effect: Disruption) -> Option<Operation> {
    match effect {
        Disruption::Relabelled => Some(Operation::Relabel),
        _ => operation(request),
    }
}

/// Whether the request may move a pod whatever the budgets say. A change of labels passes if no server answers. A
/// controller of Kubernetes adopts and releases pods, and a pod's own controller does with it what it wants.
pub(super) fn moves_freely(request: &Request, effect: &Effect) -> bool {
    let user = request.user.as_str();
    let manager = user == "system:kube-controller-manager";
    let after = effect.after.as_ref();
    let only_owners = after.is_some_and(|after| after.meta.labels == effect.pod.meta.labels);
    let own = |pod: &Rc<Pod>| {
        let owner = pod.meta.controller();
        let of = |(name, group, kind): &(&str, &str, &str)| {
            user.strip_prefix(ACCOUNT) == Some(*name)
                && owner.is_some_and(|owner| owner.group == *group && owner.kind == *kind)
        };
        CONTROLLERS.iter().any(of)
            || (manager && owner.is_some())
            || (user == "system:serviceaccount:lws-system:lws-controller-manager"
                && pod.label(LWS_NAME).is_some())
            || (user.ends_with(":kruise-manager")
                && owner.is_some_and(|owner| owner.group == "apps.kruise.io"))
    };
    request.failed_open
        || (only_owners && (manager || user.starts_with(ACCOUNT)))
        || own(&effect.pod)
        || after.is_some_and(own)
}

/// Whether a request like this one can have had this effect.
pub(super) fn can_cause(request: &Request, effect: Disruption) -> bool {
    match (effect, operation(request)) {
        (Disruption::Removed, Some(Operation::Evict | Operation::Delete)) => true,
        (Disruption::Updated | Disruption::Labelled, Some(Operation::Update)) => {
            request.subresource.is_empty()
        }
        (Disruption::Relabelled, Some(Operation::Update)) => true,
        (Disruption::Announced | Disruption::Paused, Some(Operation::Update)) => {
            request.subresource == "status"
        }
        _ => false,
    }
}

/// Whether Quorate's webhook denied the request.
pub(super) fn denied(request: &Request) -> bool {
    request.code == 429 && request.message.contains("quorate.dev\" denied the request")
}

/// Whether the denial names a native budget, which the API server itself enforces.
pub(super) fn denied_by_native(request: &Request) -> bool {
    request.message.contains("PodDisruptionBudget")
}

/// What the request did, in words.
pub(super) fn describe(request: &Request, effect: Disruption) -> &'static str {
    match operation_of(request, effect) {
        Some(Operation::Evict) => "evicted",
        Some(Operation::Delete) => "deleted",
        Some(Operation::Update) if request.subresource == "status" => "announced an update of",
        Some(Operation::Update) => "updated",
        Some(Operation::Resize) => "resized",
        Some(Operation::Relabel) => "relabelled",
        None => "changed",
    }
}
