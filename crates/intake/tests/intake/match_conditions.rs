//! Match conditions, run as the API server runs them.

use std::collections::HashMap;
use std::sync::Arc;

use cel::objects::{Key, Map};
use cel::{Context, Env};
use quorate_engine::callers::{EXEMPT, When, Who};
use quorate_intake::admission::ReviewedOperation;
use quorate_intake::match_conditions::{Entry, match_conditions};
use serde_json::{Value, json};

use crate::data::{load, with};
use crate::reviews::reviewed_operation;

fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(flag) => cel::Value::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => cel::Value::Int(whole),
            None => cel::Value::Float(number.as_f64().unwrap()),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(list) => cel::Value::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let map: HashMap<Key, cel::Value> =
                map.iter().map(|(key, value)| (Key::from(key.as_str()), to_cel(value))).collect();
            cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}

/// The first condition that skips the webhook for a request.
fn skipped_by(entry: Entry, review: &Value) -> Option<String> {
    // The API server omits empty fields.
    let mut request = review["request"].clone();
    let (object, old_object) = (request["object"].take(), request["oldObject"].take());
    request.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let env = Arc::new(Env::stdlib());
    match_conditions(entry).into_iter().find_map(|condition| {
        let program =
            env.compile(&condition.expression).unwrap_or_else(|e| panic!("{}: {e:?}", condition.expression));
        let mut context = Context::with_env(env.clone());
        context.add_variable_from_value("request", to_cel(&request));
        context.add_variable_from_value("object", to_cel(&object));
        context.add_variable_from_value("oldObject", to_cel(&old_object));
        let answer = program.execute(&context).unwrap_or_else(|e| panic!("{}: {e:?}", condition.expression));
        (answer == cel::Value::Bool(false)).then_some(condition.name)
    })
}

fn entry_of(review: &Value) -> Entry {
    match review["request"]["subResource"].as_str() {
        Some("eviction") => Entry::Evictions,
        Some("status") => Entry::Announcements,
        _ => Entry::Changes,
    }
}

fn by(user: &str, review: Value) -> Value {
    with(review, "/request/userInfo/username", json!(user))
}

#[test]
fn exempt_callers_are_not_sent_to_the_webhook() {
    for exempt in EXEMPT.iter().filter(|exempt| exempt.when != When::OwnerChanges) {
        let user = match exempt.who {
            Who::User(user) => user.to_owned(),
            Who::Prefix(prefix) => format!("{prefix}x"),
        };
        let delete = by(&user, load("review/delete.json"));
        let precise = with(delete.clone(), "/request/options/preconditions", json!({ "uid": "u" }));
        let no_grace = with(delete.clone(), "/request/options/gracePeriodSeconds", json!(0));
        let update = by(
            &user,
            with(load("review/update.json"), "/request/object/spec/containers/0/image", json!("x")),
        );
        let evict = by(&user, load("review/drain.json"));
        let name = Some(format!("not-{}", exempt.name));
        let out = |review: &Value| skipped_by(entry_of(review), review);
        assert_eq!(out(&precise), name);
        assert_eq!(out(&no_grace), name);
        let (always, deletes) = (exempt.when == When::Always, exempt.when != When::PreciseDeletes);
        assert_eq!(out(&delete), name.clone().filter(|_| deletes));
        assert_eq!(out(&update), name.clone().filter(|_| always));
        assert_eq!(out(&evict), name.clone().filter(|_| always));
    }
}

/// Which updates are sent because of the labels and owners that they change. All others never are: not those of
/// annotations and finalizers, and not those of the status.
#[test]
fn only_changes_of_labels_and_owners_are_sent_as_relabels() {
    let update = |pointer: &str, value: Value| {
        with(load("review/update.json"), &format!("/request/object{pointer}"), value)
    };
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u" }]);
    let unsent = Some("changes-labels-or-owners");
    let controller = "system:serviceaccount:kube-system:replicaset-controller";
    let bare = |review: Value| with(review, "/request/oldObject/metadata/labels", json!(null));
    for (review, expected) in [
        (update("/metadata/labels/app", json!("other")), None),
        (update("/metadata/labels/canary", json!("yes")), None),
        (update("/metadata/labels", json!(null)), None),
        (bare(update("/metadata/labels/app", json!("web"))), None),
        (bare(update("/metadata/labels", json!(null))), unsent),
        (update("/metadata/ownerReferences", owner.clone()), None),
        (update("/metadata/ownerReferences", json!(null)), None),
        (update("/metadata/annotations/a", json!("b")), unsent),
        (update("/metadata/annotations", json!(null)), unsent),
        (update("/metadata/finalizers", json!(["example.com/hold"])), unsent),
        (update("/spec/containers/0/image", json!("x")), unsent),
        (update("/status/phase", json!("Failed")), unsent),
        (by(controller, update("/metadata/ownerReferences", owner)), Some("not-adoption")),
        (by(controller, update("/metadata/labels/app", json!("other"))), None),
        (
            by("system:kube-controller-manager", update("/metadata/ownerReferences", json!(null))),
            Some("not-adoption-by-controller-manager"),
        ),
        (by("system:node:n", update("/metadata/labels/app", json!("other"))), Some("not-kubelet")),
        (
            with(
                update("/metadata/labels/app", json!("other")),
                "/request/oldObject/metadata/deletionTimestamp",
                json!("2026-11-15T10:00:00Z"),
            ),
            Some("not-terminating"),
        ),
    ] {
        assert_eq!(skipped_by(Entry::Relabels, &review).as_deref(), expected, "{review:#}");
        // What is not sent would be allowed.
        let body = review.to_string();
        let requested = quorate_intake::admission::read(body.as_bytes(), 1 << 20).unwrap();
        let requested = requested.reviewed_relabel().unwrap();
        let passes = match &requested {
            ReviewedOperation::NoDisruption(_) => true,
            ReviewedOperation::Disruption(disruption) => {
                let request = &disruption.request;
                quorate_engine::callers::Exempt::find(&request.caller, request.operation).is_some()
            }
        };
        assert_eq!(passes, expected.is_some(), "{review:#}");
    }
}

#[test]
fn all_other_callers_are_sent_to_the_webhook() {
    for user in
        ["alice", "system:nodes", "mallory:system:node:x", "system:kube-controller-manager", "it's me"]
    {
        for file in ["review/drain.json", "review/delete.json"] {
            let review = by(user, load(file));
            assert_eq!(skipped_by(entry_of(&review), &review), None, "{user} {file}");
        }
    }
}

#[test]
fn a_terminating_pod_is_not_sent_to_the_webhook() {
    let gone = json!("2026-11-15T10:00:00Z");
    let review = with(load("review/delete.json"), "/request/oldObject/metadata/deletionTimestamp", gone);
    assert_eq!(skipped_by(Entry::Changes, &review).as_deref(), Some("not-terminating"));
}

/// The conditions and intake must agree: intake would allow every skipped request. The conditions skip all but a few of
/// the updates that intake allows.
#[test]
fn a_skipped_request_is_one_that_would_be_allowed() {
    let update = |pointer: &str, value: Value| {
        with(load("review/update.json"), &format!("/request/object{pointer}"), value)
    };
    let resize = |pointer: &str, value: Value| {
        with(load("review/resize.json"), &format!("/request/object{pointer}"), value)
    };
    let plain = |review: Value| {
        let bare = with(review, "/request/object/spec/containers/0/resizePolicy", json!(null));
        with(bare, "/request/oldObject/spec/containers/0/resizePolicy", json!(null))
    };
    let unlabelled = |review: Value| with(review, "/request/oldObject/metadata/labels", json!(null));
    let unavailable = "/metadata/labels/unavailable-pod.kruise.io~1x";
    let memory = "/spec/containers/0/resources/limits/memory";
    // The limit of the pod, which the container takes if it has none of its own.
    let of_pod = "/spec/resources/limits/memory";
    let limited = |review: Value| {
        let bare = with(review, "/request/object/spec/containers/0/resources", json!(null));
        with(bare, "/request/oldObject/spec/containers/0/resources", json!(null))
    };
    let cases = [
        (update("/metadata/labels/a", json!("b")), Some("not-a-harmless-update")),
        (update("/metadata/labels", json!(null)), Some("not-a-harmless-update")),
        (update("/spec/terminationGracePeriodSeconds", json!(1)), Some("not-a-harmless-update")),
        (update("/spec/initContainers", json!(null)), None),
        (update("/spec/containers/0/image", json!("x")), None),
        (update("/spec/containers/1/image", json!(null)), None),
        (update("/spec/initContainers/0/image", json!("x")), None),
        (update("/spec/initContainers/1/image", json!("x")), None),
        (update("/spec/activeDeadlineSeconds", json!(5)), None),
        (update(memory, json!("512Mi")), None),
        (update(unavailable, json!("true")), None),
        (unlabelled(update(unavailable, json!("true"))), None),
        (
            with(update(unavailable, json!("true")), &format!("/request/oldObject{unavailable}"), json!("x")),
            Some("not-a-harmless-update"),
        ),
        (resize(memory, json!("512Mi")), None),
        (plain(resize(memory, json!("512Mi"))), Some("not-a-harmless-resize")),
        (limited(resize(of_pod, json!("512Mi"))), None),
        (limited(update(of_pod, json!("512Mi"))), None),
        (plain(limited(resize(of_pod, json!("512Mi")))), Some("not-a-harmless-resize")),
    ];
    for (review, expected) in cases {
        let out = skipped_by(Entry::Changes, &review);
        assert_eq!(out.as_deref(), expected, "{}", review["request"]["object"]);
        let is_disruption = matches!(reviewed_operation(&review).unwrap(), ReviewedOperation::Disruption(_));
        assert_eq!(out.is_none(), is_disruption, "{}", review["request"]["object"]);
    }
}

/// The conditions and intake must agree: of all writes of a status, only those that announce an update are sent.
#[test]
fn only_a_status_that_announces_an_update_is_sent_to_the_webhook() {
    let gate = |name: &str| json!([{"conditionType": "example.com/lb"}, {"conditionType": name}]);
    let conditions = |status: &str| json!([{"type": "Ready", "status": "True"}, {"type": "InPlaceUpdateReady", "status": status}]);
    let pod = |gates: Value, conditions: Value| {
        let pod = with(load("pod.json"), "/spec/readinessGates", gates);
        with(pod, "/status/conditions", conditions)
    };
    let kruise = || gate("InPlaceUpdateReady");
    let hooked = || gate("KruisePodReady");
    let hook = |status: &str| json!([{"type": "KruisePodReady", "status": status}]);
    let none = || json!(null);
    let health = |status: &str| json!([{"type": "example.com/lb", "status": status}]);
    let cases = [
        // What OpenKruise's updater writes, and what amounts to the same.
        (pod(kruise(), conditions("True")), pod(kruise(), conditions("False")), true),
        (pod(kruise(), conditions("True")), pod(kruise(), conditions("Unknown")), true),
        (pod(kruise(), conditions("True")), pod(kruise(), json!([])), true),
        (pod(kruise(), conditions("True")), pod(kruise(), none()), true),
        // What a lifecycle hook with markPodNotReady writes.
        (pod(hooked(), hook("True")), pod(hooked(), hook("False")), true),
        (pod(kruise(), hook("True")), pod(kruise(), hook("False")), false),
        (pod(hooked(), hook("False")), pod(hooked(), hook("True")), false),
        // The end of it, and everything else that is written into a status.
        (pod(kruise(), conditions("False")), pod(kruise(), conditions("True")), false),
        (pod(kruise(), conditions("False")), pod(kruise(), conditions("False")), false),
        (pod(kruise(), conditions("True")), pod(kruise(), conditions("True")), false),
        // Not ready before either.
        (pod(kruise(), none()), pod(kruise(), conditions("False")), false),
        (pod(kruise(), json!([])), pod(kruise(), conditions("False")), false),
        // Without the gate a kubelet does not look at the condition.
        (pod(none(), conditions("True")), pod(none(), conditions("False")), false),
        (pod(gate("example.com/other"), conditions("True")), pod(kruise(), conditions("False")), false),
        // A load balancer that reports health.
        (pod(kruise(), health("True")), pod(kruise(), health("False")), false),
    ];
    for (old, new, expected) in cases {
        let review = with(load("review/update.json"), "/request/subResource", json!("status"));
        let review = with(with(review, "/request/oldObject", old), "/request/object", new);
        let out = skipped_by(Entry::Announcements, &review);
        let kept = (!expected).then_some("announces-an-update");
        assert_eq!(out.as_deref(), kept, "{}", review["request"]["object"]["status"]);
        let is_disruption = matches!(reviewed_operation(&review).unwrap(), ReviewedOperation::Disruption(_));
        assert_eq!(is_disruption, expected, "{}", review["request"]["object"]["status"]);
        let kubelets = by("system:node:worker-1", review.clone());
        assert_eq!(skipped_by(Entry::Announcements, &kubelets).as_deref(), Some("not-kubelet"));
        let gone = json!("2026-11-15T10:00:00Z");
        let terminating = with(review, "/request/oldObject/metadata/deletionTimestamp", gone);
        let out = skipped_by(Entry::Announcements, &terminating);
        assert_eq!(out.as_deref(), Some("not-terminating"));
    }
}

/// A pod without a status, which the API server never stores.
#[test]
fn a_missing_status_announces_nothing() {
    let bare = json!({"metadata": {}, "spec": {"readinessGates": [{"conditionType": "InPlaceUpdateReady"}]}});
    let review = json!({"request": {
        "operation": "UPDATE", "subResource": "status", "userInfo": {"username": "alice"},
        "object": bare, "oldObject": bare}});
    assert_eq!(skipped_by(Entry::Announcements, &review).as_deref(), Some("announces-an-update"));
}

/// The conditions and intake must agree: intake would allow every skipped request.
#[test]
fn only_a_new_probe_is_sent_to_the_webhook() {
    let probe = "/metadata/annotations/quorate.dev~1disruption-probe.server";
    let pod = || load("pod.json");
    let odd = with(pod(), probe, json!("{}"));
    let bare = || with(pod(), "/metadata/annotations", json!(null));
    let lone = with(pod(), "/metadata/annotations", json!({"quorate.dev/disruption-probe.server": "{}"}));
    let nothing = json!(null);
    for (operation, object, old, sent) in [
        ("CREATE", &odd, &nothing, true),
        ("CREATE", &bare(), &nothing, false),
        ("UPDATE", &odd, &pod(), true),
        ("UPDATE", &lone, &bare(), true),
        ("UPDATE", &odd, &odd, false),
        ("UPDATE", &with(odd.clone(), "/metadata/labels/a", json!("b")), &odd, false),
        ("UPDATE", &bare(), &odd, false),
        ("UPDATE", &bare(), &bare(), false),
    ] {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "r", "operation": operation, "userInfo": {"username": "alice"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": object, "oldObject": old}});
        let out = skipped_by(Entry::Probes, &review);
        assert_eq!(out.is_none(), sent, "{operation} {} {}", object["metadata"], old["metadata"]);
        assert_eq!(out.as_deref().unwrap_or("declares-a-probe"), "declares-a-probe");
        let body = review.to_string();
        let review = quorate_intake::admission::read(body.as_bytes(), 1 << 20).unwrap();
        let answer = review.validate(quorate_intake::budget::KnownNumbers::default(), &[], &[]).unwrap();
        assert_eq!(answer["response"]["allowed"] == false, sent, "{answer}");
    }
    let kubelets = by(
        "system:node:worker-1",
        json!({"request": {
        "operation": "CREATE", "userInfo": {}, "object": odd, "oldObject": null}}),
    );
    assert_eq!(skipped_by(Entry::Probes, &kubelets).as_deref(), Some("not-kubelet"), "a static pod's mirror");
}

/// The condition and intake must agree: intake would allow every skipped request unchanged.
#[test]
fn only_a_pod_with_a_controller_is_sent_to_the_webhook() {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "etl", "uid": "j"});
    let made = with(job.clone(), "/controller", json!(true));
    let shared = with(job.clone(), "/controller", json!(false));
    for (owners, sent) in [
        (json!([made]), true),
        (json!([shared, made]), true),
        (json!([shared]), false),
        (json!([job]), false),
        (json!([]), false),
        (json!(null), false),
    ] {
        let pod = with(json!({"metadata": {"generateName": "etl-"}}), "/metadata/ownerReferences", owners);
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "r", "operation": "CREATE", "userInfo": {"username": "alice"}, "namespace": "lab",
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": pod, "oldObject": null}});
        let out = skipped_by(Entry::Owners, &review);
        assert_eq!(out.as_deref(), (!sent).then_some("has-a-controller"), "{pod}");
        let body = review.to_string();
        let read = quorate_intake::admission::read(body.as_bytes(), 1 << 20).unwrap();
        assert_eq!(read.creation().unwrap().is_some(), sent, "{pod}");
        let mirror = by("system:node:worker-1", review.clone());
        assert_eq!(
            skipped_by(Entry::Owners, &mirror).as_deref(),
            Some("not-kubelet"),
            "a static pod's mirror"
        );
    }
}

#[test]
fn match_conditions_are_within_the_limits_of_the_api_server() {
    for entry in [Entry::Evictions, Entry::Changes, Entry::Announcements, Entry::Probes, Entry::Owners] {
        let conditions = match_conditions(entry);
        assert!(conditions.len() <= 64);
        let mut names: Vec<&str> = conditions.iter().map(|condition| condition.name.as_str()).collect();
        assert!(
            names
                .iter()
                .all(|name| name.len() <= 63 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), conditions.len());
    }
}

#[test]
fn match_conditions_for_evictions_are_stable() {
    let text: Vec<String> = match_conditions(Entry::Evictions)
        .into_iter()
        .map(|condition| format!("{}: {}", condition.name, condition.expression))
        .collect();
    insta::assert_snapshot!(text.join("\n"), @r"
    not-kubelet: !(request.userInfo.username.startsWith('system:node:'))
    not-garbage-collector: !(request.userInfo.username == 'system:serviceaccount:kube-system:generic-garbage-collector')
    not-namespace-controller: !(request.userInfo.username == 'system:serviceaccount:kube-system:namespace-controller')
    not-pod-garbage-collector: !(request.userInfo.username == 'system:serviceaccount:kube-system:pod-garbage-collector')
    ");
}
