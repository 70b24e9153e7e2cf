//! The responses to the API server.

use quorate_engine::basics::{ObjectKey, Text};
use quorate_engine::decision::{
    Allow, AllowReason, Decision, Denial, DenialReason, Departure, NO_POD, NoEffect, Noun, Numbers,
};
use quorate_engine::facts::{BudgetKey, BudgetKind};
use quorate_intake::Problem;
use quorate_intake::admission::{self, Pin};
use serde_json::{Value, json};

use crate::data::{TEN, load, with};
use crate::reviews::{disruption, reviewed_operation};

fn budget(name: &str) -> BudgetKey {
    BudgetKey { object: ObjectKey::new("inference", name), kind: BudgetKind::DisruptionBudget }
}

fn agreed(uid: &str) -> Decision {
    Decision::Allow(Allow::Agreed {
        uid: Text::from(uid),
        reasons: vec![(budget("llm"), AllowReason::Charged)],
        departures: Vec::new(),
    })
}

fn answer(review: &Value, decision: &Decision) -> Value {
    let uid = review["request"]["uid"].as_str().unwrap();
    let answer = admission::answer(uid, &disruption(review), decision, TEN);
    assert_eq!(answer["apiVersion"], json!("admission.k8s.io/v1"));
    assert_eq!(answer["kind"], json!("AdmissionReview"));
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    answer["response"].clone()
}

/// The body of the eviction, as the answer leaves it.
fn body_after(review: &Value, response: &Value) -> Value {
    let mut body = review["request"]["object"].clone();
    if let Some(patch) = response.get("patch") {
        assert_eq!(response["patchType"], json!("JSONPatch"));
        let bytes: k8s_openapi::ByteString = serde_json::from_value(patch.clone()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&bytes.0).unwrap();
        json_patch::patch(&mut body, &patch).unwrap();
    }
    body
}

#[test]
fn an_admitted_eviction_is_pinned_to_one_pod() {
    let bodies = [
        json!(null),
        json!({}),
        json!({ "gracePeriodSeconds": 5 }),
        json!({ "preconditions": null }),
        json!({ "preconditions": { "resourceVersion": "7" } }),
        json!({ "preconditions": { "uid": null } }),
    ];
    for file in ["review/drain.json", "review/autoscaler.json"] {
        for options in &bodies {
            let review = with(load(file), "/request/object/deleteOptions", options.clone());
            let response = answer(&review, &agreed("u-1"));
            assert_eq!(response["allowed"], json!(true));
            let body = body_after(&review, &response);
            assert_eq!(body["deleteOptions"]["preconditions"]["uid"], json!("u-1"), "{options}");
            for kept in ["/gracePeriodSeconds", "/preconditions/resourceVersion"] {
                assert_eq!(body["deleteOptions"].pointer(kept), options.pointer(kept), "{options}");
            }
        }
    }
    let pinned = json!({ "preconditions": { "uid": "u-1" } });
    let review = with(load("review/drain.json"), "/request/object/deleteOptions", pinned);
    assert!(answer(&review, &agreed("u-1")).get("patch").is_none(), "the caller set it already");
}

#[test]
fn an_eviction_without_effect_cannot_hit_a_new_pod_of_the_same_name() {
    let review = load("review/drain.json");
    let pinned = |reason: Allow| {
        let response = answer(&review, &Decision::Allow(reason));
        body_after(&review, &response).pointer("/deleteOptions/preconditions/uid").cloned()
    };
    let no_effect = |why, uid: Option<&str>| Allow::NoEffect { why, uid: uid.map(Text::from) };
    assert_eq!(pinned(no_effect(NoEffect::Terminating, Some("u-1"))), Some(json!("u-1")));
    assert_eq!(pinned(no_effect(NoEffect::NamespaceTerminating, None)), None);
    assert_eq!(pinned(Allow::NotCovered { uid: "u-2".into() }), Some(json!("u-2")));
    assert_eq!(pinned(Allow::Exempt("kubelet")), None);
}

#[test]
fn an_eviction_of_a_pod_that_is_gone_is_not_found() {
    let gone = Decision::Allow(Allow::NoEffect { why: NoEffect::Gone, uid: Some(NO_POD.into()) });
    let response = answer(&load("review/drain.json"), &gone);
    assert_eq!((&response["allowed"], response.get("patch")), (&json!(false), None));
    let status = &response["status"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(404), &json!("NotFound")));
    let name = load("review/drain.json")["request"]["name"].clone();
    assert_eq!(status["message"], json!(format!("pods {name} not found")));
    // A delete names the pod by its UID, so it cannot reach another one.
    assert_eq!(answer(&load("review/delete.json"), &gone)["allowed"], json!(true));
}

#[test]
fn a_validating_webhook_sends_no_patch() {
    let response = answer(&load("review/delete.json"), &agreed("u-1"));
    assert_eq!(response, json!({ "allowed": true, "uid": "705ab4f5-6393-11e8-b7cc-42010a800004" }));
}

#[test]
fn a_denial_is_a_429_that_clients_retry() {
    let denials = vec![
        Denial { budget: Some(budget("llm")), reason: DenialReason::NotOpen },
        Denial { budget: Some(budget("web")), reason: DenialReason::TooManyClaims },
    ];
    for file in ["review/drain.json", "review/delete.json"] {
        let response = answer(&load(file), &Decision::Deny(denials.clone()));
        assert_eq!(response["allowed"], json!(false));
        assert!(response.get("patch").is_none());
        let status = &response["status"];
        assert_eq!((&status["code"], &status["reason"]), (&json!(429), &json!("TooManyRequests")));
        assert!(status["message"].as_str().unwrap().starts_with("inference/llm: not now"));
        assert!(status["details"].get("retryAfterSeconds").is_none());
        let causes = status["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.len(), 2);
        for (cause, name) in causes.iter().zip(["inference/llm", "inference/web"]) {
            assert_eq!(cause["reason"], json!("DisruptionBudget"));
            assert!(cause["message"].as_str().unwrap().starts_with(name), "{cause}");
        }
    }
}

#[test]
fn an_unsupported_review_is_rejected() {
    let review = with(load("review/drain.json"), "/apiVersion", json!("admission.k8s.io/v2"));
    let answer = admission::reject(&reviewed_operation(&review).unwrap_err());
    insta::assert_snapshot!(answer["response"], @r#"{"allowed":false,"status":{"code":400,"message":"\"admission.k8s.io/v2 AdmissionReview\" is not supported: send an AdmissionReview of admission.k8s.io/v1","reason":"BadRequest","status":"Failure"},"uid":"705ab4f5-6393-11e8-b7cc-42010a800002"}"#);
    let large = admission::read(&[b' '; 10], 5).unwrap_err();
    assert_eq!(admission::reject(&large)["response"]["status"]["code"], json!(413));
}

#[test]
fn an_invalid_object_is_rejected_with_a_cause_for_each_field() {
    let problems = [
        Problem::with("spec.minAvailable", -1, "must be a whole number"),
        Problem::at("spec", "covers no pods"),
    ];
    let answer = admission::refuse("r", "policy.quorate.dev", "disruptionbudgets", "llm", &problems);
    let status = &answer["response"]["status"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
    assert_eq!(
        status["message"],
        json!("spec.minAvailable: -1 must be a whole number; spec: covers no pods")
    );
    assert_eq!(
        status["details"]["causes"],
        json!([
            { "reason": "FieldValueInvalid", "field": "spec.minAvailable", "message": "-1 must be a whole number" },
            { "reason": "FieldValueInvalid", "field": "spec", "message": "covers no pods" },
        ])
    );
    let warned = admission::allow_with_warnings("r", &["mind the gap".to_owned()]);
    assert_eq!(warned["response"], json!({ "allowed": true, "uid": "r", "warnings": ["mind the gap"] }));
    assert!(admission::allow_with_warnings("r", &[])["response"].get("warnings").is_none());
    assert_eq!(admission::pin_patch(Pin::Pinned, "u"), json!([]));
}

#[test]
fn a_pod_that_leaves_without_a_decision_causes_a_warning() {
    let review = load("review/delete.json");
    let departure = |budget: BudgetKey, group: Option<&str>, noun| Departure {
        pod: "llm-0".into(),
        is_twin: &*budget.object.name == "twin",
        budget,
        group: group.map(Into::into),
        noun,
        numbers: Numbers { allowed: 0, current: 1, desired: 2, expected: 3 },
    };
    let kruise = BudgetKey { kind: BudgetKind::PodUnavailableBudget, ..budget("llm") };
    let decision = Decision::Allow(Allow::Agreed {
        uid: "u".into(),
        reasons: vec![(budget("llm"), AllowReason::Leaves), (kruise.clone(), AllowReason::Leaves)],
        departures: vec![
            departure(budget("llm"), Some("a"), Noun::Group),
            departure(budget("twin"), Some("a"), Noun::Group),
            departure(kruise, None, Noun::Pod),
        ],
    });
    let response = answer(&review, &decision);
    assert_eq!(response["allowed"], json!(true));
    assert_eq!(
        response["warnings"],
        json!([
            "pod llm-0 leaves group a of inference/llm: 1 group is healthy without it, 2 must stay. \
             The budget does not decide this; to let it, add Relabel to its operations.",
            "pod llm-0 leaves group a of inference/twin: 1 group is healthy without it, 2 must stay. \
             The budget does not decide this; to let it, replace the PodDisruptionBudget with a DisruptionBudget \
             that has Relabel in its operations.",
            "pod llm-0 leaves PodUnavailableBudget inference/llm: 1 pod is healthy without it, 2 must stay. \
             The budget does not decide this; to let it, add RELABEL to its annotation \
             kruise.io/pub-protect-operations.",
        ])
    );
}
