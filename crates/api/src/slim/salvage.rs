//! Partial decoding of a pod that cannot be decoded as a whole.

use kube::core::ObjectMeta;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Phase, Pod, PodSpec, PodStatus};

impl Pod {
    /// Decodes a pod part by part from its JSON text, and omits the parts that do not decode; `None` if not even the
    /// UID decodes. Conditions and container statuses are never kept, so that a damaged pod does not count as healthy.
    pub fn salvage(text: &str) -> Option<Self> {
        let object: Value = serde_json::from_str(text).ok()?;
        let meta = &object["metadata"];
        let metadata = ObjectMeta {
            uid: Some(part::<String>(&meta["uid"])?).filter(|uid| !uid.is_empty()),
            name: part(&meta["name"]),
            namespace: part(&meta["namespace"]),
            resource_version: part(&meta["resourceVersion"]),
            generation: part(&meta["generation"]),
            labels: texts(&meta["labels"]),
            annotations: texts(&meta["annotations"]).map(|mut kept| {
                kept.retain(|key, _| super::keeps_annotation(key));
                kept
            }),
            owner_references: part::<Vec<Value>>(&meta["ownerReferences"])
                .map(|owners| owners.iter().filter_map(part).collect()),
            creation_timestamp: part(&meta["creationTimestamp"]),
            deletion_timestamp: part(&meta["deletionTimestamp"]),
            ..ObjectMeta::default()
        };
        metadata.uid.as_ref()?;
        let spec = PodSpec {
            node_name: part(&object["spec"]["nodeName"]),
            scheduling_group: part(&object["spec"]["schedulingGroup"]),
            workload_ref: part(&object["spec"]["workloadRef"]),
            ..PodSpec::default()
        };
        let phase = part(&object["status"]["phase"]).unwrap_or(Phase::Unknown);
        Some(Self { metadata, spec, status: PodStatus { phase, ..PodStatus::default() } })
    }
}

fn part<T: DeserializeOwned>(value: &Value) -> Option<T> {
    Option::deserialize(value).ok().flatten()
}

/// The entries of a map whose values are strings.
fn texts(map: &Value) -> Option<std::collections::BTreeMap<String, String>> {
    let texts = map.as_object()?.iter();
    Some(texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_parts_are_kept_and_health_is_not() {
        let text = r#"{
            "metadata": {"uid": "u", "name": "a", "namespace": "shop", "resourceVersion": "7",
                "labels": {"app": "web", "odd": 7}, "annotations": {"quorate.dev/x": "y", "other": "z"},
                "ownerReferences": [7, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o"}]},
            "spec": {"nodeName": "n", "schedulingGroup": {"podGroupName": "g"}, "containers": "many"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        }"#;
        assert!(serde_json::from_str::<Pod>(text).is_err());
        let pod = Pod::salvage(text).unwrap();
        assert_eq!(pod.metadata.labels, Some([("app".to_owned(), "web".to_owned())].into()));
        assert_eq!(pod.metadata.annotations, Some([("quorate.dev/x".to_owned(), "y".to_owned())].into()));
        assert_eq!(pod.metadata.owner_references.unwrap()[0].uid, "o");
        assert_eq!((pod.metadata.uid.as_deref(), pod.spec.node_name.as_deref()), (Some("u"), Some("n")));
        assert_eq!(pod.spec.scheduling_group.unwrap().pod_group_name.as_deref(), Some("g"));
        assert_eq!((pod.status.phase, pod.status.conditions.len()), (Phase::Running, 0));
    }

    #[test]
    fn a_pod_without_a_uid_is_not_kept() {
        for text in ["7", "{", r#"{"metadata": {"uid": 7}}"#, r#"{"metadata": {"uid": ""}}"#] {
            assert_eq!(Pod::salvage(text), None, "{text}");
        }
        let odd = r#"{"metadata": {"uid": "u", "labels": 7, "deletionTimestamp": "now"}, "status": 7}"#;
        assert_eq!(Pod::salvage(odd).unwrap().metadata.uid.as_deref(), Some("u"));
    }
}
