//! Pods.

use std::time::Duration;

use quorate_engine::basics::{GroupKind, ObjectKey, Version};
use quorate_engine::facts::{Link, Phase, Pod, WorkloadSource};
use quorate_intake::{fingerprint, objects};
use serde_json::{Value, json};

use crate::data::{before_ten, load, pod, with};

fn fact(value: Value) -> Pod {
    objects::pod(&pod(value)).unwrap()
}

#[test]
fn the_facts_of_a_pod_are_read_from_its_fields() {
    let pod = fact(load("pod.json"));
    assert_eq!(pod.key, ObjectKey::new("inference", "llm-1-3"));
    assert_eq!(&*pod.uid, "5f1d0c52-7f0e-4a53-9d2e-0d5b9d3b1a01");
    assert_eq!(pod.version, Version(48213));
    assert_eq!(pod.labels.get("app"), Some("llm"));
    assert_eq!(pod.node.as_deref(), Some("worker-2"));
    assert_eq!(pod.phase, Phase::Running);
    assert!(pod.ready && pod.consistent && !pod.terminating);
    assert_eq!(pod.ready_since, Some(before_ten(59)));
    assert_eq!(pod.group_size, Some(4));
    assert_eq!(pod.link, None);
    assert_eq!(pod.owners.len(), 2);
    assert_eq!(pod.controller().map(|owner| owner.kind.clone()), Some(GroupKind::new("apps", "StatefulSet")));
    assert_eq!(pod.owners[1].kind, GroupKind::new("batch.example.com", "JobGroup"));
    assert!(!pod.owners[1].controller);
}

#[test]
fn the_probe_result_is_read_from_its_condition() {
    let probe = fact(load("pod.json")).probe.unwrap();
    assert_eq!(probe.malformed, None);
    assert_eq!(probe.disruptable, Some(false));
    assert_eq!(probe.message.as_deref(), Some("resharding, 40 % done"));
    assert_eq!(probe.probed, Some(before_ten(30)));
    assert_eq!(probe.since, Some(before_ten(40)));
    // The start of the probed container, rounded up: probe times are in whole seconds. Another container started later.
    assert_eq!(probe.started, Some(before_ten(50).after(Duration::from_secs(1))));

    let silent = with(load("pod.json"), "/status/conditions", json!([]));
    assert_eq!(fact(silent).probe.unwrap().disruptable, None);
    let unknown = with(load("pod.json"), "/status/conditions/2/status", json!("Unknown"));
    assert_eq!(fact(unknown).probe.unwrap().disruptable, Some(false));
    let none = with(load("pod.json"), "/metadata/annotations", json!({}));
    assert_eq!(fact(none).probe, None);
    // A container that does not run has no result, whatever the condition shows.
    let crashed = with(load("pod.json"), "/status/containerStatuses/0/state", json!({"waiting": {}}));
    assert_eq!(fact(crashed).probe.unwrap().disruptable, None);
    let unknown = with(load("pod.json"), "/status/containerStatuses", json!([]));
    assert_eq!(fact(unknown).probe.unwrap().disruptable, None);
}

#[test]
fn a_malformed_probe_counts_as_a_probe() {
    for text in ["", "{}", "[]", "{\"httpGet\":{\"port\":0}}", "{\"exec\":{\"command\":[]}}"] {
        let at = "/metadata/annotations/quorate.dev~1disruption-probe.server";
        let probe = fact(with(load("pod.json"), at, json!(text))).probe.unwrap();
        assert!(probe.malformed.is_some(), "{text}");
    }
}

#[test]
fn links_have_a_fixed_precedence() {
    let own = [
        ("quorate.dev/workload", "train"),
        ("quorate.dev/pod-group", "workers"),
        ("quorate.dev/pod-group-replica", "3"),
    ];
    let own: Value = own.into_iter().collect();
    let upstream = json!({ "name": "gang", "podGroup": "w", "podGroupReplicaKey": "1" });
    let replica = |source, workload: &str, group: &str, replica: &str| {
        Some(Link::Replica {
            source,
            workload: workload.into(),
            group: group.into(),
            replica: replica.into(),
        })
    };
    let link = |pod: Value| fact(pod).link.map(|link| *link);
    let labelled = with(load("pod.json"), "/metadata/labels", own);
    assert_eq!(link(labelled.clone()), replica(WorkloadSource::Own, "train", "workers", "3"));
    let referring = with(labelled, "/spec/workloadRef", upstream);
    assert_eq!(link(referring.clone()), replica(WorkloadSource::Upstream, "gang", "w", "1"));
    let scheduled = with(referring, "/spec/schedulingGroup", json!({ "podGroupName": "pg-7" }));
    assert_eq!(link(scheduled), Some(Link::PodGroup("pg-7".into())));
    // Without a replica there is only one.
    let single = with(load("pod.json"), "/spec/workloadRef", json!({ "name": "gang", "podGroup": "w" }));
    assert_eq!(link(single), replica(WorkloadSource::Upstream, "gang", "w", ""));
}

#[test]
fn each_state_of_a_pod_is_read() {
    type Holds = fn(&Pod) -> bool;
    let cases: [(&str, Value, Holds); 16] = [
        ("/status/phase", json!("Pending"), |pod| pod.phase == Phase::Pending),
        ("/status/phase", json!("Failed"), |pod| pod.phase == Phase::Failed),
        ("/status/phase", json!("Strange"), |pod| pod.phase == Phase::Unknown),
        ("/status", json!(null), |pod| {
            pod.phase == Phase::Unknown && !pod.ready && pod.ready_since.is_none()
        }),
        ("/metadata/deletionTimestamp", json!("2026-11-15T10:00:00Z"), |pod| pod.terminating),
        ("/status/conditions/1/status", json!("False"), |pod| !pod.ready),
        ("/metadata/labels/unavailable-pod.kruise.io~1rollout", json!("true"), |pod| !pod.consistent),
        ("/metadata/annotations/pub.kruise.io~1no-protect", json!("true"), |pod| pod.waives),
        ("/metadata/annotations/apps.kruise.io~1inplace-update-grace", json!("{}"), |pod| !pod.consistent),
        ("/metadata/annotations/leaderworkerset.sigs.k8s.io~1size", json!("four"), |pod| {
            pod.group_size.is_none()
        }),
        ("/spec/nodeName", json!(""), |pod| pod.node.is_none()),
        ("/spec/activeDeadlineSeconds", json!(600), |pod| pod.deadline == Some(600)),
        ("/spec/terminationGracePeriodSeconds", json!(600), |pod| pod.grace_seconds == 600),
        ("/spec/terminationGracePeriodSeconds", json!(-1), |pod| pod.grace_seconds == 0),
        ("/spec/terminationGracePeriodSeconds", json!(i64::MAX), |pod| pod.grace_seconds == u32::MAX),
        (
            "/status/conditions",
            json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]),
            |pod| pod.resize_infeasible,
        ),
    ];
    let deferred = json!([{ "type": "PodResizePending", "status": "True", "reason": "Deferred" }]);
    assert!(!fact(with(load("pod.json"), "/status/conditions", deferred)).resize_infeasible);
    for (pointer, value, holds) in cases {
        let pod = fact(with(load("pod.json"), pointer, value.clone()));
        assert!(holds(&pod), "{pointer} = {value}: {pod:?}");
        assert!(!holds(&fact(load("pod.json"))), "{pointer} = {value} holds anyway");
    }
}

#[test]
fn containers_have_their_running_and_requested_state() {
    let pod = fact(load("pod.json"));
    let names: Vec<&str> = pod.containers.iter().map(|container| &*container.name).collect();
    assert_eq!(names, ["server", "metrics", "proxy"], "init containers that end are not among them");
    for container in &pod.containers {
        assert_ne!(container.id, 0);
        // The spec has `nginx`, and the status shows its full name.
        assert_eq!(container.image, container.spec_image, "{}", container.name);
    }
    assert_eq!(pod.containers[0].resources, pod.containers[0].spec_resources);
    assert_ne!(pod.containers[0].resources, 0);
    assert_eq!(pod.containers[0].id, fingerprint::container_id(Some("containerd://aa01")));

    let updated =
        fact(with(load("pod.json"), "/spec/containers/0/image", json!("registry.example.com/llm/server:v2")));
    assert_ne!(updated.containers[0].image, updated.containers[0].spec_image);
    let restarted =
        fact(with(load("pod.json"), "/status/containerStatuses/0/containerID", json!("containerd://bb01")));
    assert_ne!(restarted.containers[0].id, pod.containers[0].id);
    let waiting = fact(with(load("pod.json"), "/status/containerStatuses", json!([])));
    assert_eq!((waiting.containers[0].id, waiting.containers[0].image), (0, 0));
}

/// Other replicas, and later releases, compare with these.
#[test]
fn fingerprints_never_change() {
    assert_eq!(fingerprint::container_id(Some("containerd://aa01")), 0xd4e7_7d81_c746_6802);
    assert_eq!(fingerprint::image(Some("nginx")), fingerprint::image(Some("docker.io/library/nginx:latest")));
    assert_eq!(fingerprint::image(Some("nginx")), 0xf7b4_2092_ad23_6a80);
    let pod = pod(load("pod.json"));
    assert_eq!(fingerprint::resources(&pod.spec.containers[0].resources), 0x31c1_06fb_d803_580d);
}

#[test]
fn the_error_for_a_pod_without_identity_names_the_field() {
    let cases = [
        ("/metadata/uid", json!(null), "Pod inference/llm-1-3: metadata.uid: is missing"),
        ("/metadata/name", json!(null), "Pod inference/(no name): metadata.name: is missing"),
        ("/metadata/namespace", json!(""), "Pod /llm-1-3: metadata.namespace: is missing"),
        (
            "/metadata/resourceVersion",
            json!("+7"),
            "Pod inference/llm-1-3: metadata.resourceVersion: +7 must be a number",
        ),
    ];
    for (pointer, value, message) in cases {
        let error = objects::pod(&pod(with(load("pod.json"), pointer, value))).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_damaged_pod_with_a_uid_is_still_read() {
    let (fact, wrong) = objects::any_pod(&load("pod.json").to_string()).unwrap();
    assert_eq!((fact, wrong), (objects::pod(&pod(load("pod.json"))).unwrap(), None));

    for (pointer, value) in [
        ("/spec/containers", json!("many")),
        ("/metadata/resourceVersion", json!("first")),
        ("/metadata/namespace", json!(7)),
        ("/metadata/name", json!(null)),
        ("/metadata", json!({ "uid": "u" })),
        ("/status/conditions", json!([7])),
    ] {
        let (fact, wrong) = objects::any_pod(&with(load("pod.json"), pointer, value).to_string()).unwrap();
        assert!(wrong.is_some() && !fact.ready, "{pointer}");
        assert!(!fact.uid.is_empty());
    }
    assert!(objects::any_pod(&with(load("pod.json"), "/metadata/uid", json!(null)).to_string()).is_err());
    assert!(objects::any_pod("nonsense").is_err());
}
