//! Responses to the API server.

use k8s_openapi::ByteString;
use quorate_engine::basics::{ObjectKey, Time};
use quorate_engine::decision::{Allow, Decision, Denial, NoEffect};
use quorate_engine::sentence;
use serde_json::{Value, json};

use super::request::{Disruption, Pin};
use super::review::{Fault, Rejected};
use crate::error::Problem;

/// The response to a disruption. An allowed eviction is pinned to the UID of the pod that was decided on; if there is no
/// such pod, there is nothing to pin it to, and the response reports that.
pub fn answer(uid: &str, disruption: &Disruption, decision: &Decision, now: Time) -> Value {
    match decision {
        Decision::Allow(Allow::NoEffect { why: NoEffect::Gone, .. }) if disruption.pin.is_some() => {
            not_found(uid, &disruption.request.pod)
        }
        Decision::Deny(denials) => deny(uid, &disruption.request.pod, denials, now),
        Decision::Allow(Allow::Agreed { departures, .. }) if !departures.is_empty() => {
            let warnings: Vec<String> = departures.iter().map(sentence::departure).collect();
            allow_with_warnings(uid, &warnings)
        }
        Decision::Allow(reason) => match (disruption.pin, reason.pin()) {
            (Some(pin), Some(pod)) if pin != Pin::Pinned => allow_with_patch(uid, &pin_patch(pin, pod)),
            _ => allow(uid),
        },
    }
}

/// Allows the request.
pub fn allow(uid: &str) -> Value {
    review(uid, json!({ "allowed": true }))
}

/// Allows the request with warnings for the client.
pub fn allow_with_warnings(uid: &str, warnings: &[String]) -> Value {
    if warnings.is_empty() {
        return allow(uid);
    }
    review(uid, json!({ "allowed": true, "warnings": warnings }))
}

/// Allows the request with a JSON patch.
pub fn allow_with_patch(uid: &str, patch: &Value) -> Value {
    let patch = ByteString(patch.to_string().into_bytes());
    review(uid, json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch }))
}

/// Denies the request for now. Status 429 makes `kubectl drain` and the autoscalers retry. With `retryAfterSeconds` the
/// client libraries would retry by themselves, and would not show the message to the user.
pub fn deny(uid: &str, pod: &ObjectKey, denials: &[Denial], now: Time) -> Value {
    let causes: Vec<Value> = denials
        .iter()
        .map(|denial| json!({ "reason": "DisruptionBudget", "message": sentence::denial(denial, now) }))
        .collect();
    let status = json!({
        "status": "Failure",
        "code": 429,
        "reason": "TooManyRequests",
        "message": sentence::refusal(denials, now),
        "details": { "name": &*pod.name, "kind": "pods", "causes": causes },
    });
    review(uid, json!({ "allowed": false, "status": status }))
}

/// Answers an eviction of a pod that is gone, as the API server does. Allowed, the eviction could reach a new pod of the
/// same name. Pinned to a UID that no pod has, it would fail with a conflict as soon as there is a new pod, and
/// `kubectl drain` gives up after a conflict. Status 404 means that the pod it wanted to evict is gone.
fn not_found(uid: &str, pod: &ObjectKey) -> Value {
    let status = json!({
        "status": "Failure",
        "code": 404,
        "reason": "NotFound",
        "message": format!("pods \"{}\" not found", pod.name),
        "details": { "name": &*pod.name, "kind": "pods" },
    });
    review(uid, json!({ "allowed": false, "status": status }))
}

/// Rejects an invalid object, with a cause for each of its problems. `kind` is the resource's plural name.
pub fn refuse(uid: &str, group: &str, kind: &str, name: &str, problems: &[Problem]) -> Value {
    let causes: Vec<Value> = problems
        .iter()
        .map(|problem| {
            let what = Problem { path: String::new(), ..problem.clone() }.to_string();
            let message = what.trim_start_matches(": ");
            json!({ "reason": "FieldValueInvalid", "field": problem.path, "message": message })
        })
        .collect();
    let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let status = json!({
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": sentences.join("; "),
        "details": { "name": name, "group": group, "kind": kind, "causes": causes },
    });
    review(uid, json!({ "allowed": false, "status": status }))
}

/// Rejects a review that cannot be read.
pub fn reject(rejected: &Rejected) -> Value {
    let (code, reason) = match &rejected.fault {
        Fault::TooLarge { .. } => (413, "RequestEntityTooLarge"),
        Fault::Busy => (429, "TooManyRequests"),
        Fault::Slow => (408, "Timeout"),
        Fault::Malformed(_)
        | Fault::Version { .. }
        | Fault::Missing(_)
        | Fault::Object { .. }
        | Fault::Pod(_) => (400, "BadRequest"),
    };
    let status = json!({
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": rejected.to_string(),
    });
    review(rejected.uid.as_deref().unwrap_or_default(), json!({ "allowed": false, "status": status }))
}

/// The JSON patch that pins an eviction to one pod; empty if the client has already pinned it.
pub fn pin_patch(pin: Pin, pod: &str) -> Value {
    let add = |path: &str, value: Value| json!([{ "op": "add", "path": path, "value": value }]);
    match pin {
        Pin::NoOptions => add("/deleteOptions", json!({ "preconditions": { "uid": pod } })),
        Pin::NoPreconditions => add("/deleteOptions/preconditions", json!({ "uid": pod })),
        Pin::NoUid => add("/deleteOptions/preconditions/uid", json!(pod)),
        Pin::Pinned => json!([]),
    }
}

fn review(uid: &str, mut response: Value) -> Value {
    response["uid"] = json!(uid);
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}
