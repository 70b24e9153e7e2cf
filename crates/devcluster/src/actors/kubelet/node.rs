//! The Node object, taints and Lease of a hollow node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::nodes::NodeTemplate;
use super::status::stamp;

/// The Node object, as a kubelet registers it.
pub(super) fn object(name: &str, template: &NodeTemplate) -> Value {
    let mut labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
    });
    for (key, value) in &template.labels {
        labels[key.as_str()] = json!(value);
    }
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": template.taints}})
}

/// The status of a healthy node, for a strategic merge patch.
pub(super) fn well(
    name: &str,
    address: &str,
    template: &NodeTemplate,
    before: Option<&Node>,
    now: Timestamp,
) -> Value {
    let room = json!({
        "cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": template.pods.to_string(),
    });
    let conditions = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(kind, status, reason, message)| condition(before, kind, status, reason, message, now))
        .collect();
    json!({"status": {
        "capacity": room, "allocatable": room, "conditions": conditions,
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": "amd64", "operatingSystem": "linux", "osImage": "hollow", "kernelVersion": "0",
            "containerRuntimeVersion": "containerd://hollow", "kubeletVersion": "v1.36.0", "kubeProxyVersion": "",
            "machineID": name, "systemUUID": name, "bootID": name,
        },
    }})
}

/// The status that the node controller writes for a node whose kubelet is silent.
pub(super) fn silent(before: Option<&Node>, now: Timestamp) -> Value {
    let message = "Kubelet stopped posting node status.";
    let kinds = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
    let conditions =
        kinds.iter().map(|kind| condition(before, kind, "Unknown", "NodeStatusUnknown", message, now));
    json!({"status": {"conditions": conditions.collect::<Vec<_>>()}})
}

fn condition(
    before: Option<&Node>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Value {
    let shown = before.and_then(|node| node.status.as_ref()).and_then(|status| status.conditions.as_ref());
    let same = shown.into_iter().flatten().find(|shown| shown.type_ == kind && shown.status == status);
    let since = same.and_then(|same| same.last_transition_time.as_ref()).map_or(now, |time| time.0);
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": stamp(now), "lastTransitionTime": stamp(since),
    })
}

/// The taint of an unreachable node.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taint that the API server adds when a node registers. It is removed once the node is ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// A patch with the desired taints of a node. It keeps the taints of other writers. `None` if nothing must change.
pub(super) fn taints(node: &Node, reachable: bool, now: Timestamp) -> Option<Value> {
    let before = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let of_ours = |key: &str| key == UNREACHABLE || key == NOT_READY;
    let mut after: Vec<Value> =
        before.iter().filter(|taint| !of_ours(&taint.key)).map(|taint| json!(taint)).collect();
    if !reachable {
        after.push(json!({"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": stamp(now)}));
        after.push(json!({"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": stamp(now)}));
    }
    if after.len() == before.len()
        && before.iter().filter(|taint| of_ours(&taint.key)).count() == 2 * usize::from(!reachable)
    {
        return None;
    }
    Some(json!({
        "metadata": {"resourceVersion": node.resource_version()},
        "spec": {"taints": if after.is_empty() { Value::Null } else { json!(after) }},
    }))
}

/// The heartbeat Lease of a kubelet.
pub(super) fn lease(name: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 40,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    })
}
