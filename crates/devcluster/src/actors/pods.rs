//! Reads the state of pods, and creates pods from templates.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Whether the pod has been ready for this long. With 0 seconds, no timestamp is needed.
pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod) && available_in(pod, min_ready_seconds, now).is_none()
}

/// How long a ready pod must stay ready until it is available. `None` if it is available already, or not ready.
pub(crate) fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    if min_ready_seconds <= 0 {
        return None;
    }
    let since = ready.last_transition_time.as_ref().map_or(now, |time| time.0);
    let at = since + Duration::from_secs(u64::from(min_ready_seconds.unsigned_abs()));
    (at > now).then(|| Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Succeeded or Failed.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod counts as a replica: it is neither terminal nor terminating.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        status.container_statuses.iter().flatten().chain(init)
    });
    statuses.map(|container| container.restart_count).sum()
}

pub(crate) fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// The owner that is the controller of this object.
pub(crate) fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// An owner reference that makes this owner the controller.
pub(crate) fn controller_ref(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Creates a pod from a template. Of the template's metadata, only labels, annotations and finalizers are copied.
pub(crate) fn from_template(template: &Value, controller: &Value) -> Value {
    let mut metadata = Map::new();
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template.pointer(&format!("/metadata/{field}")).filter(|value| !value.is_null())
        {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    metadata.insert("ownerReferences".to_owned(), json!([controller]));
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
    })
}

/// Sets a label (or, by `field`, an annotation) in an object's JSON.
pub(crate) fn set(object: &mut Value, field: &str, name: &str, value: &str) {
    let metadata = entry(object, "metadata");
    let fields = entry(metadata, field);
    if let Some(map) = fields.as_object_mut() {
        map.insert(name.to_owned(), Value::String(value.to_owned()));
    }
}

fn entry<'a>(value: &'a mut Value, field: &str) -> &'a mut Value {
    if !value.is_object() {
        *value = json!({});
    }
    let child = &mut value[field];
    if !child.is_object() {
        *child = json!({});
    }
    child
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_takes_labels_annotations_finalizers_and_the_whole_spec() {
        let template = json!({
            "metadata": {"name": "no", "labels": {"a": "b"}, "annotations": null,
                         "ownerReferences": [{"name": "ignored by the real ones too"}]},
            "spec": {"containers": [], "schedulingGroup": {"podGroupName": "newer than our types"}},
        });
        let owner = controller_ref("apps/v1", "ReplicaSet", "web", "u1");
        let pod = from_template(&template, &owner);
        assert_eq!(pod["metadata"], json!({"labels": {"a": "b"}, "ownerReferences": [owner]}));
        assert_eq!(pod["spec"], template["spec"]);
    }

    #[test]
    fn a_pod_is_available_only_after_min_ready_seconds() {
        let pod: Pod = serde_json::from_value(json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert!(is_available(&pod, 0, at("2026-01-01T00:00:00Z")));
        assert!(!is_available(&pod, 10, at("2026-01-01T00:00:09Z")));
        assert_eq!(available_in(&pod, 10, at("2026-01-01T00:00:09Z")), Some(Duration::from_secs(1)));
        assert!(is_available(&pod, 10, at("2026-01-01T00:00:10Z")));
    }
}
