//! Pods from templates.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use quorate_intake::template::{pod_from_template, propagated};
use serde_json::{Value, json};

use crate::data::object;

fn owner(kind: &str, uid: &str, controller: Option<bool>) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: kind.to_owned(),
        name: format!("{kind}-{uid}").to_lowercase(),
        uid: uid.to_owned(),
        controller,
        block_owner_deletion: None,
    }
}

fn template(owners: &[OwnerReference]) -> PodTemplateSpec {
    object(json!({
        "metadata": {
            "name": "ignored", "namespace": "ignored", "uid": "ignored",
            "labels": { "app": "etl" }, "annotations": { "a": "b" }, "finalizers": ["example.com/f"],
            "ownerReferences": owners,
        },
        "spec": { "containers": [{ "name": "main", "image": "etl:1" }] },
    }))
}

fn owners(pod: &Pod) -> Vec<(String, Option<bool>)> {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .map(|owner| (owner.uid.clone(), owner.controller))
        .collect()
}

/// The example of the proposal.
#[test]
fn a_job_group_beside_the_job() {
    let job = owner("Job", "xyz-789", Some(true));
    let template = template(&[owner("JobGroup", "abcd-1234", Some(false))]);
    let pod = pod_from_template(&template, Some(&job), true);
    assert_eq!(owners(&pod), [("xyz-789".to_owned(), Some(true)), ("abcd-1234".to_owned(), Some(false))]);
    assert_eq!(
        owners(&pod_from_template(&template, Some(&job), false)),
        [("xyz-789".to_owned(), Some(true))]
    );
}

#[test]
fn everything_else_is_as_before() {
    let pod = pod_from_template(&template(&[]), None, true);
    let expected: Value = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "labels": { "app": "etl" }, "annotations": { "a": "b" }, "finalizers": ["example.com/f"] },
        "spec": { "containers": [{ "name": "main", "image": "etl:1" }] },
    });
    assert_eq!(json!(pod), expected);
    assert_eq!(pod_from_template(&PodTemplateSpec::default(), None, true), Pod::default());
}

#[test]
fn a_pod_has_one_controller_and_each_owner_once() {
    let job = owner("Job", "j", Some(true));
    let nameless = OwnerReference { name: String::new(), ..owner("JobGroup", "n", None) };
    let named = [
        owner("Other", "o", Some(true)),
        owner("JobGroup", "g", None),
        owner("JobGroup", "g", Some(false)),
        owner("Job", "j", Some(false)),
        nameless,
        owner("Team", "t", None),
    ];
    let pod = pod_from_template(&template(&named), Some(&job), true);
    let uids: Vec<String> = owners(&pod).into_iter().map(|(uid, _)| uid).collect();
    assert_eq!(uids, ["j", "g", "t"]);
    assert_eq!(propagated(&named, pod.metadata.owner_references.as_deref().unwrap()), [], "nothing twice");
}
