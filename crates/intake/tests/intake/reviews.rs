//! Reviews, and the operations that they request.

use quorate_engine::basics::ObjectKey;
use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::facts::Operation;
use quorate_intake::admission::{self, Disruption, Fault, Harmless, Pin, Rejected, ReviewedOperation};
use serde_json::{Value, json};

use crate::data::{load, with};

const LIMIT: usize = 3 << 20;

pub(crate) fn reviewed_operation(review: &Value) -> Result<ReviewedOperation, Rejected> {
    admission::read(review.to_string().as_bytes(), LIMIT)?.reviewed_operation()
}

pub(crate) fn disruption(review: &Value) -> Disruption {
    match reviewed_operation(review) {
        Ok(ReviewedOperation::Disruption(disruption)) => *disruption,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn harmless(review: &Value) -> Harmless {
    match reviewed_operation(review) {
        Ok(ReviewedOperation::NoDisruption(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn pod() -> ObjectKey {
    ObjectKey::new("inference", "llm-1-3")
}

#[test]
fn an_eviction_by_kubectl_drain_is_read() {
    let Disruption { request, pin } = disruption(&load("review/drain.json"));
    assert_eq!(request.operation, Operation::Evict);
    assert_eq!(request.pod, pod());
    assert_eq!(request.caller, Caller::named("alice"));
    assert_eq!((request.object, request.precondition, request.dry_run), (None, None, false));
    assert_eq!(request.target, Target::default());
    assert_eq!(pin, Some(Pin::NoPreconditions));
}

#[test]
fn an_eviction_of_policy_v1beta1_without_a_name_is_read() {
    let Disruption { request, pin } = disruption(&load("review/autoscaler.json"));
    assert_eq!(request.pod, pod());
    assert_eq!(pin, Some(Pin::NoOptions));
    // The name may be only in the body, and the body may lack its types.
    let review = with(load("review/drain.json"), "/request/name", json!(""));
    assert_eq!(disruption(&review).request.pod, pod());
    let review = with(load("review/drain.json"), "/request/namespace", json!(null));
    assert_eq!(disruption(&review).request.pod, pod());
    let review = with(load("review/drain.json"), "/request/object/apiVersion", json!(null));
    assert_eq!(disruption(&with(review, "/request/object/kind", json!(null))).request.pod, pod());
}

#[test]
fn a_dry_run_is_read_from_the_request_or_from_the_body() {
    let drain = load("review/drain.json");
    let cases = [
        ("/request/dryRun", json!(true), true),
        ("/request/object/deleteOptions/dryRun", json!(["All"]), true),
        ("/request/object/deleteOptions/dryRun", json!([]), false),
        ("/request/dryRun", json!(null), false),
    ];
    for (pointer, value, dry) in cases {
        let review = with(drain.clone(), pointer, value.clone());
        assert_eq!(disruption(&review).request.dry_run, dry, "{pointer} = {value}");
    }
    let delete = with(load("review/delete.json"), "/request/options/dryRun", json!(["All"]));
    assert!(disruption(&delete).request.dry_run);
}

#[test]
fn the_pin_shows_which_preconditions_exist() {
    let cases = [
        (json!(null), Pin::NoOptions, None),
        (json!({}), Pin::NoPreconditions, None),
        (json!({ "gracePeriodSeconds": 5 }), Pin::NoPreconditions, None),
        (json!({ "preconditions": null }), Pin::NoPreconditions, None),
        (json!({ "preconditions": {} }), Pin::NoUid, None),
        (json!({ "preconditions": { "resourceVersion": "7" } }), Pin::NoUid, None),
        (json!({ "preconditions": { "uid": "u" } }), Pin::Pinned, Some("u")),
    ];
    for (options, pin, uid) in cases {
        let review = with(load("review/drain.json"), "/request/object/deleteOptions", options.clone());
        let found = disruption(&review);
        assert_eq!((found.pin, found.request.precondition.as_deref()), (Some(pin), uid), "{options}");
    }
}

#[test]
fn a_delete_carries_the_pod() {
    let Disruption { request, pin } = disruption(&load("review/delete.json"));
    assert_eq!((request.operation, pin), (Operation::Delete, None));
    let object = request.object.unwrap();
    assert_eq!((&request.pod, &*object.uid), (&pod(), "5f1d0c52-7f0e-4a53-9d2e-0d5b9d3b1a01"));
    assert_eq!(request.caller, Caller::named("alice"));
    // The API server sends the delete of a collection pod by pod, without a name.
    let review = with(load("review/delete.json"), "/request/name", json!(null));
    assert_eq!(disruption(&review).request.pod, pod());
}

#[test]
fn uid_and_grace_period_of_a_delete_are_read() {
    let precise = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": "u" } });
    let request = disruption(&with(load("review/delete.json"), "/request/options", precise)).request;
    assert!(request.caller.names_uid && request.caller.no_grace);
    assert_eq!(request.precondition.as_deref(), Some("u"));
    for options in
        [json!(null), json!({}), json!({ "gracePeriodSeconds": 30, "preconditions": { "uid": "" } })]
    {
        let request = disruption(&with(load("review/delete.json"), "/request/options", options)).request;
        assert_eq!((request.caller, request.precondition), (Caller::named("alice"), None));
    }
}

/// I5: an exempt caller is not denied because of an object that cannot be read.
#[test]
fn exempt_callers_pass_with_an_unreadable_object() {
    let broken = with(load("review/delete.json"), "/request/oldObject", json!("not a pod"));
    assert!(reviewed_operation(&broken).is_err());
    for user in [
        "system:node:worker-2",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:kube-scheduler",
    ] {
        let review = with(broken.clone(), "/request/userInfo/username", json!(user));
        assert_eq!(&*disruption(&review).request.caller.user, user);
    }
    // The controller manager only where it is precise.
    let manager = with(broken, "/request/userInfo/username", json!("system:kube-controller-manager"));
    assert!(reviewed_operation(&manager).is_err());
    disruption(&with(manager, "/request/options/gracePeriodSeconds", json!(0)));
}

#[test]
fn changing_a_terminating_pod_is_no_disruption() {
    for (file, pointer) in [
        ("review/delete.json", "/request/oldObject/metadata/deletionTimestamp"),
        ("review/update.json", "/request/oldObject/metadata/deletionTimestamp"),
    ] {
        let review = with(load(file), pointer, json!("2026-11-15T10:00:00Z"));
        let review = match file {
            "review/update.json" => with(review, "/request/object/spec/containers/0/image", json!("x")),
            _ => review,
        };
        assert_eq!(harmless(&review), Harmless::Terminating, "{file}");
        // Even one that has lost its identity.
        assert_eq!(
            harmless(&with(review, "/request/oldObject/metadata/uid", json!(null))),
            Harmless::Terminating
        );
    }
}

#[test]
fn requests_for_other_resources_are_no_disruption() {
    for (pointer, value) in [
        ("/request/resource/resource", json!("services")),
        ("/request/resource/group", json!("example.com")),
        ("/request/subResource", json!("status")),
        ("/request/operation", json!("CREATE")),
        ("/request/operation", json!("CONNECT")),
    ] {
        let review = with(load("review/delete.json"), pointer, value);
        assert_eq!(harmless(&review), Harmless::OtherResource, "{pointer}");
    }
}

fn rejected(review: &Value) -> Rejected {
    reviewed_operation(review).map(|operation| panic!("{operation:?}")).unwrap_err()
}

#[test]
fn an_unreadable_review_is_rejected_with_its_uid() {
    let drain = load("review/drain.json");
    let uid = Some("705ab4f5-6393-11e8-b7cc-42010a800002");
    let delete = Some("705ab4f5-6393-11e8-b7cc-42010a800004");
    let cases = [
        (
            with(drain.clone(), "/apiVersion", json!("admission.k8s.io/v1beta1")),
            uid,
            "is not supported: send an AdmissionReview of admission.k8s.io/v1",
        ),
        (with(drain.clone(), "/kind", json!("Eviction")), uid, "is not supported"),
        (with(drain.clone(), "/request", json!(null)), None, "request is missing"),
        (with(drain.clone(), "/request/uid", json!("")), None, "request.uid is missing"),
        (with(drain.clone(), "/request/dryRun", json!("yes")), uid, "cannot be read"),
        (with(drain.clone(), "/request/userInfo", json!("alice")), uid, "cannot be read"),
        (with(drain.clone(), "/request/object", json!(null)), uid, "object is missing"),
        (with(drain.clone(), "/request/object", json!([])), uid, "object cannot be read"),
        (
            with(drain.clone(), "/request/object/apiVersion", json!("policy/v2")),
            uid,
            "policy/v2 Eviction is not supported",
        ),
        (with(drain.clone(), "/request/object/deleteOptions", json!("now")), uid, "object cannot be read"),
        (with(load("review/delete.json"), "/request/oldObject", json!(null)), delete, "oldObject is missing"),
        (
            with(load("review/delete.json"), "/request/oldObject/metadata/uid", json!(null)),
            delete,
            "Pod inference/llm-1-3: metadata.uid: is missing",
        ),
        (
            with(load("review/delete.json"), "/request/options", json!(["now"])),
            delete,
            "options cannot be read",
        ),
    ];
    for (review, uid, message) in cases {
        let rejected = rejected(&review);
        assert_eq!(rejected.uid.as_deref(), uid, "{rejected}");
        assert!(rejected.to_string().contains(message), "{rejected} lacks {message}");
    }
    let nameless = with(with(drain, "/request/name", json!(null)), "/request/object/metadata", json!({}));
    assert!(rejected(&nameless).to_string().contains("request.name is missing"));
}

#[test]
fn an_oversized_or_malformed_body_is_rejected() {
    let body = load("review/drain.json").to_string();
    let large = admission::read(body.as_bytes(), 100).unwrap_err();
    assert!(matches!(large.fault, Fault::TooLarge { limit: 100 }));
    // Cut off, as a server that stops reading has it. API servers write the UID first.
    let uid = "705ab4f5-6393-11e8-b7cc-42010a800002";
    let written = format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"{uid}","kind":{{"#
    );
    for limit in [100, LIMIT] {
        let cut = admission::read(written.as_bytes(), limit).unwrap_err();
        assert_eq!(cut.uid.as_deref(), Some(uid));
    }
    for odd in [r#""request":{"uid":"#, r#""request":{"uid":"a\"b"}"#, r#""request":{"uid":""}"#] {
        assert_eq!(admission::read(odd.as_bytes(), LIMIT).unwrap_err().uid, None, "{odd}");
    }
    for body in [&b""[..], b"{", b"\xff\xfe", b"null", b"[]", b"\"x\""] {
        let rejected = admission::read(body, LIMIT).unwrap_err();
        assert_eq!(rejected.uid, None);
    }
    // A document nested without end is no review either.
    let deep = "[".repeat(1 << 20);
    assert!(admission::read(deep.as_bytes(), LIMIT).is_err());
    let deep = format!(
        "{{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\",\"request\":{{\"uid\":\"u\",\"object\":{deep}}}}}"
    );
    assert!(admission::read(deep.as_bytes(), LIMIT).is_err());
}

#[test]
fn validation_gets_operation_resource_user_and_objects() {
    let body = load("review/resize.json").to_string();
    let review = admission::read(body.as_bytes(), LIMIT).unwrap();
    assert_eq!(
        (review.operation(), review.resource().as_str(), review.user()),
        ("UPDATE", "pods/resize", "alice")
    );
    assert_eq!(review.object().unwrap(), load("pod.json"));
    assert_eq!(review.old_object().unwrap(), load("pod.json"));
}
