//! Validation of our own objects, and of the probes that pods declare.

use quorate_intake::admission;
use quorate_intake::budget::KnownNumbers;
use serde_json::{Value, json};

use crate::data::{load, with};

fn review(group: &str, resource: &str, operation: &str, object: &Value, old: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r", "operation": operation, "name": "llm", "namespace": "inference",
            "resource": { "group": group, "version": "v1alpha1", "resource": resource },
            "userInfo": { "username": "alice" }, "object": object, "oldObject": old,
        },
    })
}

fn validate(review: &Value) -> Value {
    let body = review.to_string();
    admission::read(body.as_bytes(), 1 << 20).unwrap().validate(KnownNumbers::default(), &[], &[]).unwrap()["response"]
        .clone()
}

fn budget(operation: &str, object: &Value, old: &Value) -> Value {
    validate(&review("policy.quorate.dev", "disruptionbudgets", operation, object, old))
}

#[test]
fn a_budget_is_allowed_rejected_or_allowed_with_a_warning() {
    let good = load("budget.json");
    assert_eq!(budget("CREATE", &good, &json!(null)), json!({ "allowed": true, "uid": "r" }));
    let bad = with(good.clone(), "/spec/podGroupPolicy/groupLabelKey", json!("no key"));
    let refused = budget("CREATE", &bad, &json!(null));
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(422)));
    assert_eq!(
        refused["status"]["details"]["causes"][0]["field"],
        json!("spec.podGroupPolicy.groupLabelKey")
    );
    assert_eq!(refused["status"]["details"]["name"], json!("llm"));
    let odd = with(good.clone(), "/spec/maxUnavailable", json!(0));
    let warned = budget("UPDATE", &odd, &good);
    assert_eq!(warned["allowed"], json!(true));
    assert_eq!(warned["warnings"].as_array().map(Vec::len), Some(1));
    assert_eq!(budget("UPDATE", &bad, &good)["allowed"], json!(false));
}

#[test]
fn a_stored_invalid_budget_can_lose_a_finalizer() {
    let bad = with(load("budget.json"), "/spec", json!({}));
    let labelled = with(bad.clone(), "/metadata/labels", json!({ "a": "b" }));
    assert_eq!(budget("UPDATE", &labelled, &bad)["allowed"], json!(true));
    assert_eq!(budget("DELETE", &json!(null), &bad)["allowed"], json!(true));
}

#[test]
fn workloads_and_probes_are_validated() {
    let workload = |spec: &Value| {
        validate(&review(
            "scheduling.quorate.dev",
            "workloads",
            "CREATE",
            &json!({ "spec": spec }),
            &json!(null),
        ))
    };
    assert_eq!(workload(&json!({}))["allowed"], json!(false));
    let group = json!({ "name": "w", "replicas": 1, "policy": { "basic": {} } });
    assert_eq!(workload(&json!({ "podGroups": [group] }))["allowed"], json!(true));

    let pod =
        |object: &Value, operation: &str| validate(&review("", "pods", operation, object, &load("pod.json")));
    assert_eq!(pod(&load("pod.json"), "CREATE")["allowed"], json!(true));
    let at = "/metadata/annotations/quorate.dev~1disruption-probe.server";
    let odd = with(load("pod.json"), at, json!("{\"httpGet\":{}}"));
    let refused = pod(&odd, "CREATE");
    assert_eq!(
        refused["status"]["message"],
        json!(
            "metadata.annotations[quorate.dev/disruption-probe.server].httpGet.port: is missing: set the port to probe"
        )
    );
    assert_eq!(pod(&odd, "UPDATE")["status"], refused["status"], "it was another one before");
    let labelled = with(odd.clone(), "/metadata/labels/a", json!("b"));
    let stored = validate(&review("", "pods", "UPDATE", &labelled, &odd));
    assert_eq!(stored["allowed"], json!(true), "it was like this before");
    let reworded = with(odd.clone(), at, json!("{\"tcpSocket\":{}}"));
    assert_eq!(validate(&review("", "pods", "UPDATE", &reworded, &odd))["allowed"], json!(false));
    assert_eq!(validate(&review("", "services", "CREATE", &json!({}), &json!(null)))["allowed"], json!(true));
}
