//! Pods that controllers create.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use quorate_intake::admission::{PodCreation, give_owners, read};
use serde_json::{Value, json};

use crate::data::{object, with};

fn review() -> Value {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "etl", "uid": "j", "controller": true});
    let pod = json!({"metadata": {"generateName": "etl-", "ownerReferences": [job],
        "annotations": {"quorate.dev/owner-references": "[]"}}});
    let user = json!({"username": "job-controller", "uid": "u", "groups": ["system:authenticated"],
        "extra": {"authentication.kubernetes.io/node-name": ["n"]}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "r", "operation": "CREATE", "userInfo": user, "namespace": "lab", "dryRun": true,
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": pod}})
}

fn creation(review: &Value) -> Option<PodCreation> {
    let body = review.to_string();
    read(body.as_bytes(), 1 << 20).unwrap().creation().unwrap()
}

#[test]
fn the_creation_of_a_pod_is_read() {
    let found = creation(&review()).unwrap();
    assert_eq!((found.namespace.as_str(), found.controller.uid.as_str()), ("lab", "j"));
    assert_eq!((found.annotation.as_deref(), found.dry_run), (Some("[]"), true));
    assert_eq!((found.creator.user.as_str(), found.creator.uid.as_deref()), ("job-controller", Some("u")));
    assert_eq!(found.creator.groups, ["system:authenticated"]);
    assert_eq!(found.creator.extra["authentication.kubernetes.io/node-name"], ["n"]);
    let minimal =
        with(review(), "/request/userInfo", json!({"username": "x", "groups": null, "extra": null}));
    assert_eq!(creation(&minimal).unwrap().creator.groups, [""; 0]);
}

#[test]
fn other_requests_are_no_pod_creation() {
    for (pointer, value) in [
        ("/request/operation", json!("UPDATE")),
        ("/request/subResource", json!("status")),
        ("/request/object/metadata/ownerReferences/0/controller", json!(false)),
        ("/request/object/metadata/ownerReferences", json!(null)),
    ] {
        assert_eq!(creation(&with(review(), pointer, value)), None, "{pointer}");
    }
    let odd = with(review(), "/request/object/metadata/ownerReferences", json!("x")).to_string();
    assert_eq!(read(odd.as_bytes(), 1 << 20).unwrap().creation().unwrap_err().uid.as_deref(), Some("r"));
}

#[test]
fn owners_are_appended_to_the_existing_ones() {
    let group: OwnerReference =
        object(json!({"apiVersion": "example.com/v1", "kind": "JobGroup", "name": "g", "uid": "g"}));
    let answer = give_owners("r", std::slice::from_ref(&group));
    assert_eq!(
        (&answer["response"]["uid"], &answer["response"]["patchType"]),
        (&json!("r"), &json!("JSONPatch"))
    );
    let patch: k8s_openapi::ByteString = object(answer["response"]["patch"].clone());
    let mut pod = review()["request"]["object"].clone();
    let patch: json_patch::Patch = serde_json::from_slice(&patch.0).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    let owners: Vec<OwnerReference> = object(pod["metadata"]["ownerReferences"].clone());
    assert_eq!((owners[0].uid.as_str(), &owners[1]), ("j", &group));

    let none = give_owners("r", &[]);
    assert_eq!(
        none["response"],
        json!({"uid": "r", "allowed": true}),
        "no patch where there is nothing to add"
    );
}
