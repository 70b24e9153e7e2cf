//! Updates and resizes: which of them disrupt a pod, and when they are over.

use quorate_engine::claims::{ContainerChange, Target};
use quorate_engine::facts::{Operation, Pod};
use quorate_intake::admission::{Harmless, ReviewedOperation};
use quorate_intake::{fingerprint, objects};
use serde_json::{Value, json};

use crate::data::{load, pod, with};
use crate::reviews::{disruption, harmless};

fn update(pointer: &str, value: Value) -> Value {
    with(load("review/update.json"), &format!("/request/object{pointer}"), value)
}

fn resize(pointer: &str, value: Value) -> Value {
    with(load("review/resize.json"), &format!("/request/object{pointer}"), value)
}

fn id(text: &str) -> Option<u64> {
    Some(fingerprint::container_id(Some(text)))
}

/// A pod as it is after something else was stored.
fn later(value: Value) -> Pod {
    let mut fact = objects::pod(&pod(value)).unwrap();
    fact.version.0 += 1;
    fact
}

fn target(review: &Value, operation: Operation) -> Target {
    let request = disruption(review).request;
    assert_eq!(request.operation, operation);
    assert!(request.object.is_some_and(|pod| !pod.terminating));
    request.target
}

#[test]
fn an_update_that_restarts_nothing_is_no_disruption() {
    let cases = [
        ("/metadata/labels/app", json!("other")),
        ("/metadata/labels/canary", json!("yes")),
        ("/metadata/annotations/a", json!("b")),
        ("/spec/tolerations/1", json!({ "operator": "Exists" })),
        ("/spec/terminationGracePeriodSeconds", json!(1)),
        ("/metadata/finalizers", json!(["example.com/hold"])),
        ("/status/phase", json!("Failed")),
    ];
    for (pointer, value) in cases {
        assert_eq!(harmless(&update(pointer, value)), Harmless::NoRestart, "{pointer}");
    }
    // A label that was there already, and one that goes.
    let label = "metadata/labels/unavailable-pod.kruise.io~1rollout";
    let old = with(load("review/update.json"), &format!("/request/oldObject/{label}"), json!("true"));
    assert_eq!(harmless(&old), Harmless::NoRestart);
    assert_eq!(
        harmless(&with(old, &format!("/request/object/{label}"), json!("false"))),
        Harmless::NoRestart
    );
    // An end that moves away.
    let deadline = |new, old| {
        let review = update("/spec/activeDeadlineSeconds", new);
        with(review, "/request/oldObject/spec/activeDeadlineSeconds", old)
    };
    assert_eq!(harmless(&deadline(json!(20), json!(10))), Harmless::NoRestart);
    assert_eq!(harmless(&deadline(json!(null), json!(10))), Harmless::NoRestart);
}

#[test]
fn a_new_image_replaces_the_container() {
    let image = "registry.example.com/llm/server:v2";
    let target = self::target(&update("/spec/containers/0/image", json!(image)), Operation::Update);
    let change = ContainerChange {
        name: "server".into(),
        replaces: id("containerd://aa01"),
        image: Some(fingerprint::image(Some(image))),
        resources: None,
    };
    let base = objects::pod(&pod(load("pod.json"))).unwrap().version;
    assert_eq!(target, Target { base: Some(base), containers: [change].into(), ..Target::default() });

    // Over once another container runs it, and not before.
    let requested = with(load("pod.json"), "/spec/containers/0/image", json!(image));
    let restarted =
        with(requested.clone(), "/status/containerStatuses/0/containerID", json!("containerd://bb01"));
    let runs = with(restarted.clone(), "/status/containerStatuses/0/image", json!(image));
    for (value, is_requested, is_reached) in [
        (load("pod.json"), false, false),
        (requested, true, false),
        (restarted, true, false),
        (runs, true, true),
    ] {
        let fact = later(value);
        assert_eq!((target.is_stored(&fact), target.is_reached(&fact)), (is_requested, is_reached));
    }
}

#[test]
fn an_image_that_runs_under_its_full_name_is_the_requested_one() {
    for (requested, shown) in [
        ("redis", "docker.io/library/redis:latest"),
        ("docker.io/redis:8", "docker.io/library/redis:8"),
        ("docker.io/library/redis:8", "redis:8"),
        ("index.docker.io/bitnami/redis:8", "docker.io/bitnami/redis:8"),
        ("redis:8@sha256:3333", "docker.io/library/redis@sha256:3333"),
    ] {
        let target = self::target(&update("/spec/containers/0/image", json!(requested)), Operation::Update);
        let value = with(load("pod.json"), "/spec/containers/0/image", json!(requested));
        let value = with(value, "/status/containerStatuses/0/containerID", json!("containerd://bb01"));
        let runs = with(value.clone(), "/status/containerStatuses/0/image", json!(shown));
        assert!(target.is_reached(&later(runs)), "{requested} as {shown}");
        let other = with(value, "/status/containerStatuses/0/image", json!("docker.io/library/redis:7"));
        assert!(!target.is_reached(&later(other)), "{requested} is not redis:7");
    }
}

#[test]
fn sidecars_labels_and_deadlines_disrupt_a_pod_too() {
    let names = |review: &Value| -> Vec<String> {
        target(review, Operation::Update).containers.iter().map(|change| change.name.to_string()).collect()
    };
    assert_eq!(names(&update("/spec/initContainers/1/image", json!("proxy:2"))), ["proxy"], "a sidecar");
    assert_eq!(
        names(&update("/spec/initContainers/0/image", json!("fetch:2"))),
        [""; 0],
        "it has ended: nothing to see"
    );
    let labelled = update("/metadata/labels/unavailable-pod.kruise.io~1rollout", json!("true"));
    assert_eq!(names(&labelled), [""; 0]);
    let label = target(&labelled, Operation::Update).label;
    assert_eq!(label.as_deref(), Some("unavailable-pod.kruise.io/rollout"), "over only after it was seen");
    let all = ["metrics", "proxy", "server"];
    assert_eq!(names(&update("/spec/activeDeadlineSeconds", json!(1))), all, "the pod will end");
    let nearer = with(
        update("/spec/activeDeadlineSeconds", json!(1)),
        "/request/oldObject/spec/activeDeadlineSeconds",
        json!(9),
    );
    assert_eq!(names(&nearer), all);
    assert_eq!(
        target(&nearer, Operation::Update).deadline,
        Some(1),
        "the deadline shows whether the API server stored the update"
    );
    // `nginx` and `nginx:latest` are the same image, but to a kubelet it is a change.
    assert_eq!(names(&update("/spec/containers/1/image", json!("nginx:latest"))), ["metrics"]);
    let both = with(
        update("/spec/containers/1/image", json!("a")),
        "/request/object/spec/containers/0/image",
        json!("b"),
    );
    assert_eq!(names(&both), ["metrics", "server"], "in the order of their names");
}

#[test]
fn a_resize_without_a_restart_is_no_disruption() {
    let cases = [
        ("/spec/containers/0/resources/requests/cpu", json!("750m")),
        ("/spec/containers/0/resources/limits/cpu", json!("2")),
        // The same amount in another writing.
        ("/spec/containers/0/resources/requests/memory", json!("131072Ki")),
        ("/spec/containers/1/resources", json!({ "requests": { "memory": "1Gi" } })),
        ("/spec/initContainers/1/resources/requests/cpu", json!("20m")),
    ];
    for (pointer, value) in cases {
        assert_eq!(harmless(&resize(pointer, value.clone())), Harmless::NoRestart, "{pointer} = {value}");
    }
}

#[test]
fn a_resize_with_a_restart_is_over_when_the_new_container_has_the_resources() {
    let review = resize("/spec/containers/0/resources/limits/memory", json!("512Mi"));
    let target = self::target(&review, Operation::Resize);
    assert_eq!(target.containers.len(), 1);
    assert_eq!(
        (&*target.containers[0].name, target.containers[0].replaces),
        ("server", id("containerd://aa01"))
    );
    assert!(target.containers[0].resources.is_some() && target.containers[0].image.is_none());

    let requested = with(load("pod.json"), "/spec/containers/0/resources/limits/memory", json!("512Mi"));
    let restarted =
        with(requested.clone(), "/status/containerStatuses/0/containerID", json!("containerd://bb01"));
    // The kubelet writes the amount its own way.
    let resized =
        with(restarted.clone(), "/status/containerStatuses/0/resources/limits/memory", json!("536870912"));
    for (value, is_requested, is_reached) in [
        (load("pod.json"), false, false),
        (requested, true, false),
        (restarted, true, false),
        (resized, true, true),
    ] {
        let fact = later(value);
        assert_eq!((target.is_stored(&fact), target.is_reached(&fact)), (is_requested, is_reached));
    }

    for (pointer, value) in [
        ("/spec/containers/0/resources/requests", json!({ "cpu": "500m" })),
        ("/spec/containers/1/resources", json!({ "limits": { "example.com/gpu": "1" } })),
    ] {
        assert_eq!(self::target(&resize(pointer, value), Operation::Resize).containers.len(), 1, "{pointer}");
    }
}

/// A resize of the pod's own limits, from one state of `spec.resources` to another. `metrics` has no resources of its own,
/// unless the case sets them, and restarts when its memory changes.
fn pod_resize(before: Value, after: Value, own: [Value; 2]) -> Value {
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    let pods = [("oldObject", before, own[0].clone()), ("object", after, own[1].clone())];
    pods.into_iter().fold(load("review/resize.json"), |review, (pod, resources, own)| {
        let review = with(review, &format!("/request/{pod}/spec/resources"), resources);
        let review = with(review, &format!("/request/{pod}/spec/containers/1/resizePolicy"), policy.clone());
        with(review, &format!("/request/{pod}/spec/containers/1/resources"), own)
    })
}

#[test]
fn a_resize_of_the_pod_restarts_the_containers_that_take_its_limits() {
    let limits = |cpu: &str, memory: &str| json!({ "limits": { "cpu": cpu, "memory": memory } });
    let own =
        |memory: &str| [json!({ "limits": { "memory": memory } }), json!({ "limits": { "memory": memory } })];
    let none = || [json!({}), json!({})];
    let before = || limits("4", "4Gi");
    let requests = |memory: &str| json!({ "requests": { "memory": memory }, "limits": { "memory": "4Gi" } });
    for (why, before, after, own, restarts) in [
        ("another memory limit", before(), limits("4", "8Gi"), none(), true),
        ("a smaller one", before(), limits("4", "2Gi"), none(), true),
        ("the same amount in another writing", before(), limits("4000m", "4096Mi"), none(), false),
        ("cpu, which needs no restart", before(), limits("8", "4Gi"), none(), false),
        ("a container has requests of its own only", requests("1Gi"), requests("2Gi"), none(), false),
        ("the container has its own limit", before(), limits("4", "8Gi"), own("1Gi"), false),
        ("its own limit is zero, which is none", before(), limits("4", "8Gi"), own("0"), true),
        ("the first limits of the pod", json!(null), before(), none(), true),
        ("a pod without limits", json!({}), json!({ "limits": { "memory": "4Gi" } }), none(), true),
        ("limits that go", before(), json!(null), none(), true),
        // Kubernetes 1.36 restarts nothing then; an earlier kubelet compares what the container itself has.
        (
            "the limit of the pod becomes its own",
            before(),
            before(),
            [json!({}), own("4Gi")[1].clone()],
            true,
        ),
    ] {
        let review = pod_resize(before, after, own);
        let updated = with(review.clone(), "/request/subResource", json!(null));
        for (review, operation) in [(review, Operation::Resize), (updated, Operation::Update)] {
            if !restarts {
                assert_eq!(harmless(&review), Harmless::NoRestart, "{why}");
                continue;
            }
            let target = self::target(&review, operation);
            let names: Vec<&str> = target.containers.iter().map(|change| &*change.name).collect();
            assert_eq!(names, ["metrics"], "{why}");
            assert_eq!(target.containers[0].replaces, id("containerd://aa02"), "{why}");
        }
    }
}

/// The status of a container shows the limits that it takes from the pod only in part, and that of the pod rounds them. So
/// the kubelet's report decides.
#[test]
fn a_resize_of_the_pod_is_over_when_the_kubelet_reports_that_it_is() {
    let limits = |memory: &str| json!({ "limits": { "cpu": "4", "memory": memory } });
    let target =
        target(&pod_resize(limits("4Gi"), limits("100M"), [json!({}), json!({})]), Operation::Resize);
    let stored =
        with(with(load("pod.json"), "/spec/resources", limits("100M")), "/metadata/generation", json!(2));
    let old = with(load("pod.json"), "/spec/resources", limits("4Gi"));
    let seen = with(stored.clone(), "/status/observedGeneration", json!(2));
    let reports = |name: &str, status: &str| {
        let condition = json!({ "type": name, "status": status, "reason": "Deferred" });
        with(seen.clone(), "/status/conditions/3", condition)
    };
    let restarted =
        |value: Value| with(value, "/status/containerStatuses/1/containerID", json!("containerd://bb02"));
    let crashed = || with(restarted(stored.clone()), "/status/observedGeneration", json!(1));
    for (why, value, is_stored, is_reached) in [
        ("not stored", old, false, false),
        ("the kubelet has not seen it", stored.clone(), true, false),
        ("nor when the container crashes", crashed(), true, false),
        ("nor if it does not say what it has seen", restarted(stored.clone()), true, false),
        ("the node has no room", restarted(reports("PodResizePending", "True")), true, false),
        ("the kubelet is at it", restarted(reports("PodResizeInProgress", "True")), true, false),
        ("the container that runs need not be replaced", seen.clone(), true, false),
        ("the container was replaced", restarted(seen.clone()), true, true),
        ("nothing is pending", restarted(reports("PodResizePending", "False")), true, true),
    ] {
        let fact = later(value);
        assert_eq!((target.is_stored(&fact), target.is_reached(&fact)), (is_stored, is_reached), "{why}");
    }
    // The engine drops such a token: the container runs what was requested, and nothing replaced it.
    let fact = later(seen.clone());
    assert_eq!(fact.containers[1].resources, fact.containers[1].spec_resources);
    let pending = later(reports("PodResizePending", "True"));
    assert_ne!(pending.containers[1].resources, pending.containers[1].spec_resources);
}

/// A container with some limits of its own: the runtime shows the other limits too, and a cpu request that follows from
/// them. No pod shows that for what it sets itself.
#[test]
fn a_container_that_takes_a_limit_of_the_pod_can_reach_its_own() {
    let of_pod = || json!({ "limits": { "cpu": "4" } });
    let own = |memory: &str| json!({ "requests": { "memory": "1Gi" }, "limits": { "memory": memory } });
    let target = target(&pod_resize(of_pod(), of_pod(), [own("1Gi"), own("2Gi")]), Operation::Resize);
    let stored =
        with(with(load("pod.json"), "/spec/resources", of_pod()), "/spec/containers/1/resources", own("2Gi"));
    let runs = with(stored, "/status/containerStatuses/1/containerID", json!("containerd://bb02"));
    let shown =
        json!({ "requests": { "memory": "1Gi", "cpu": "4" }, "limits": { "memory": "2Gi", "cpu": "4" } });
    let runs = with(runs, "/status/containerStatuses/1/resources", shown);
    for (observed, is_reached) in [(0, false), (1, true)] {
        let fact = later(with(runs.clone(), "/status/observedGeneration", json!(observed)));
        assert_eq!((target.is_stored(&fact), target.is_reached(&fact)), (true, is_reached));
    }
}

/// As OpenKruise's lifecycle hooks write it: the message names the hook that keeps the pod unready.
#[test]
fn a_hook_before_a_deletion_is_decided_as_a_deletion() {
    let closed_by = |keys: &str| {
        let gates = json!([{"conditionType": "KruisePodReady"}, {"conditionType": "InPlaceUpdateReady"}]);
        let pod = |status: &str, message: &str| {
            let ready = json!({"type": "KruisePodReady", "status": status, "message": message});
            let conditions = json!([ready, {"type": "InPlaceUpdateReady", "status": "True"}]);
            with(
                with(load("pod.json"), "/spec/readinessGates", gates.clone()),
                "/status/conditions",
                conditions,
            )
        };
        let review = with(load("review/update.json"), "/request/subResource", json!("status"));
        let review = with(review, "/request/oldObject", pod("True", ""));
        with(review, "/request/object", pod("False", keys))
    };
    let delete = closed_by(r#"[{"userAgent":"Lifecycle","key":"preDeleteHook"}]"#);
    assert_eq!(target(&delete, Operation::Delete), Target::default());
    for keys in [r#"[{"userAgent":"Lifecycle","key":"preUpdateHook"}]"#, "", "anything"] {
        assert!(target(&closed_by(keys), Operation::Update).base.is_some(), "{keys}");
    }
}

/// As OpenKruise's updater does it: the readiness gate, the image, and the gate again once the container runs.
#[test]
fn an_announced_update_is_over_when_the_gate_is_true_again() {
    let gate = |value: Value, status: &str| {
        let conditions =
            json!([{"type": "Ready", "status": status}, {"type": "InPlaceUpdateReady", "status": status}]);
        let value = with(value, "/spec/readinessGates", json!([{"conditionType": "InPlaceUpdateReady"}]));
        with(value, "/status/conditions", conditions)
    };
    let review = with(load("review/update.json"), "/request/subResource", json!("status"));
    let review = with(review, "/request/oldObject", gate(load("pod.json"), "True"));
    let review = with(review, "/request/object", gate(load("pod.json"), "False"));
    let target = self::target(&review, Operation::Update);
    let before = objects::pod(&pod(gate(load("pod.json"), "True"))).unwrap();
    assert_eq!(target, Target { base: Some(before.version), ..Target::default() });
    let state = |fact: &Pod| (target.is_stored(fact), target.is_reached(fact), target.is_replaced(fact));
    assert_eq!(state(&before), (false, false, false), "not stored yet");
    assert_eq!(state(&later(gate(load("pod.json"), "False"))), (true, false, false), "under way");
    assert_eq!(state(&later(gate(load("pod.json"), "True"))), (false, true, true), "over, or never stored");
}

/// The API server stores an update on the version that it sent to the webhook, or not at all.
#[test]
fn an_update_ends_when_another_change_is_stored() {
    let image = |name: &str| with(load("pod.json"), "/spec/containers/0/image", json!(name));
    let bad = target(&update("/spec/containers/0/image", json!("bad:1")), Operation::Update);
    assert!(!bad.is_replaced(&objects::pod(&pod(load("pod.json"))).unwrap()), "it may still be stored");
    assert!(!bad.is_replaced(&later(image("bad:1"))), "it is, and not over");
    assert!(bad.is_replaced(&later(image("good:1"))));
    assert!(bad.is_replaced(&later(load("pod.json"))), "refused: something else was stored");
}

#[test]
fn a_relabel_requests_labels_and_owners_for_one_version_of_the_pod() {
    let review = update("/metadata/labels/app", json!("other"));
    let review = with(review, "/request/object/metadata/ownerReferences", json!(null));
    let body = review.to_string();
    let review = quorate_intake::admission::read(body.as_bytes(), 1 << 20).unwrap();
    let ReviewedOperation::Disruption(relabel) = review.reviewed_relabel().unwrap() else {
        panic!("a relabel is decided")
    };
    let request = relabel.request;
    let old = objects::pod(&pod(load("review/update.json")["request"]["oldObject"].clone())).unwrap();
    assert_eq!((request.operation, &request.pod), (Operation::Relabel, &old.key));
    assert_eq!(request.target, Target { base: Some(old.version), ..Target::default() });
    assert!(!request.caller.only_owners);
    let placement = request.placement.expect("where the pod belongs afterwards");
    assert_eq!(placement.labels.get("app"), Some("other"));
    assert!(placement.owners.is_empty() && !old.owners.is_empty());
    assert_eq!(relabel.pin, None);
}
