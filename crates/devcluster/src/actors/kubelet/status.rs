//! The pod status that a hollow node reports.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::super::pods;
use super::lifecycle::{Container, PodLifecycle};

/// A timestamp in whole seconds, as the API uses it.
pub(crate) fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The status of a pod, for a strategic merge patch. It does not contain the conditions of other writers, so they stay.
pub(crate) fn report(
    pod: &Pod,
    lifecycle: &PodLifecycle,
    host_ip: &str,
    pod_ip: &str,
    now: Timestamp,
) -> Value {
    let up = lifecycle.is_up(now);
    let whole = up && lifecycle.wants_ready && !lifecycle.over;
    let ready = whole && gates_are_open(pod);
    let phase = if lifecycle.over {
        if lifecycle.containers.iter().any(|container| container.ended.is_some_and(|(code, _)| code != 0)) {
            "Failed"
        } else {
            "Succeeded"
        }
    } else if lifecycle.containers.iter().any(|container| container.up_at <= now || container.restarts > 0) {
        "Running"
    } else {
        "Pending"
    };
    let unwhole = if phase == "Succeeded" { "PodCompleted" } else { "ContainersNotReady" };
    let unready = if whole { "ReadinessGatesNotReady" } else { unwhole };
    let conditions = [
        ("PodReadyToStartContainers", !lifecycle.over, ""),
        ("Initialized", true, ""),
        ("Ready", ready, unready),
        ("ContainersReady", whole, unwhole),
        ("PodScheduled", true, ""),
    ];
    let conditions: Vec<_> =
        conditions.iter().map(|(kind, holds, reason)| condition(pod, kind, *holds, reason, now)).collect();
    let mut status = json!({
        "phase": phase,
        "conditions": conditions,
        "hostIP": host_ip, "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip, "podIPs": [{"ip": pod_ip}],
        "startTime": stamp(lifecycle.begun),
        "qosClass": pod.status.as_ref().and_then(|status| status.qos_class.as_deref()).unwrap_or("BestEffort"),
        "containerStatuses": lifecycle.containers.iter().map(|c| container(pod, c, lifecycle, now)).collect::<Vec<_>>(),
    });
    if let Some(generation) = pod.metadata.generation {
        status["observedGeneration"] = json!(generation);
    }
    json!({"metadata": {"uid": lifecycle.uid}, "status": status})
}

/// Whether the conditions of all readiness gates are True.
fn gates_are_open(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    gates.into_iter().all(|gate| {
        pods::condition(pod, &gate.condition_type).is_some_and(|condition| condition.status == "True")
    })
}

fn condition(pod: &Pod, kind: &str, holds: bool, reason: &str, now: Timestamp) -> Value {
    let status = if holds { "True" } else { "False" };
    let before = pods::condition(pod, kind).filter(|before| before.status == status);
    let since = before.and_then(|before| before.last_transition_time.as_ref()).map_or(now, |time| time.0);
    let mut condition =
        json!({"type": kind, "status": status, "lastTransitionTime": stamp(since), "lastProbeTime": null});
    // Null removes the reason of an earlier state.
    condition["reason"] = if holds || reason.is_empty() { Value::Null } else { json!(reason) };
    condition["message"] = Value::Null;
    if let Some(generation) = pod.metadata.generation {
        condition["observedGeneration"] = json!(generation);
    }
    condition
}

fn container(pod: &Pod, container: &Container, lifecycle: &PodLifecycle, now: Timestamp) -> Value {
    let up = container.up_at <= now && container.ended.is_none();
    let state = match container.ended {
        Some((code, at)) => json!({"terminated": {
            "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
            "startedAt": stamp(container.started_at), "finishedAt": stamp(at), "containerID": container.id,
        }}),
        None if up => json!({"running": {"startedAt": stamp(container.started_at)}}),
        None => json!({"waiting": {"reason": "ContainerCreating"}}),
    };
    let mut status = json!({
        "name": container.name, "image": container.image, "restartCount": container.restarts,
        "imageID": if up || container.ended.is_some() { image_id(&container.image) } else { String::new() },
        "ready": up && lifecycle.wants_ready, "started": up, "state": state, "lastState": {},
    });
    if up || container.ended.is_some() {
        status["containerID"] = json!(container.id);
    }
    if let Some((id, at)) = &container.previous {
        status["lastState"] = json!({"terminated": {
            "exitCode": 0, "reason": "Completed", "containerID": id,
            "startedAt": stamp(*at), "finishedAt": stamp(*at),
        }});
    }
    // A hollow node has room for every resize, so the requested resources are granted at once.
    let spec = pod.spec.iter().flat_map(|spec| &spec.containers).find(|spec| spec.name == container.name);
    if let Some(resources) = spec.and_then(|spec| spec.resources.as_ref()).filter(|_| up) {
        status["resources"] = json!(resources);
        if let Some(requests) = &resources.requests {
            status["allocatedResources"] = json!(requests);
        }
    }
    status
}

/// An ID that depends only on the image, like a registry's digest.
fn image_id(image: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut digest = String::new();
    for part in 0..4_u8 {
        let mut hasher = DefaultHasher::new();
        (image, part).hash(&mut hasher);
        digest.push_str(&format!("{:016x}", hasher.finish()));
    }
    let name = image.split('@').next().unwrap_or(image);
    format!("{}@sha256:{digest}", name.rsplit_once(':').map_or(name, |(repository, _)| repository))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lifecycle::{Step, Timing};
    use super::*;

    fn pod(image: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 3},
            "spec": {"containers": [{"name": "app", "image": image}, {"name": "side", "image": "side:1"}]},
        }))
        .unwrap()
    }

    fn at(second: u32) -> Timestamp {
        format!("2026-01-01T00:00:{second:02}Z").parse().unwrap()
    }

    fn ready(report: &Value) -> &str {
        let conditions = report["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == "Ready").unwrap()["status"].as_str().unwrap()
    }

    fn show(pod: &Pod, lifecycle: &PodLifecycle, now: Timestamp) -> Value {
        report(pod, lifecycle, "192.0.2.1", "198.51.100.1", now)
    }

    #[test]
    fn a_pod_is_pending_then_running_and_ready() {
        let timing = Timing { start: Duration::from_secs(2), ..Timing::default() };
        let pod = pod("app:1");
        let mut lifecycle = PodLifecycle::begin(&pod, at(0));
        assert_eq!(lifecycle.advance(&pod, &timing, at(0)), Step::Rest(Some(at(2))));
        let waiting = show(&pod, &lifecycle, at(0));
        assert_eq!((waiting["status"]["phase"].as_str(), ready(&waiting)), (Some("Pending"), "False"));
        assert_eq!(lifecycle.advance(&pod, &timing, at(2)), Step::Rest(None));
        let running = show(&pod, &lifecycle, at(2));
        assert_eq!((running["status"]["phase"].as_str(), ready(&running)), (Some("Running"), "True"));
        assert_eq!(running["status"]["observedGeneration"], 3);
        let app = &running["status"]["containerStatuses"][0];
        assert!(app["containerID"].as_str().unwrap().starts_with("containerd://"));
        assert_eq!(app["restartCount"], 0);
        assert_eq!(app["started"], true);
        lifecycle.wants_ready = false;
        assert_eq!(ready(&show(&pod, &lifecycle, at(3))), "False");
    }

    #[test]
    fn a_pod_is_ready_once_its_readiness_gates_are_true() {
        let mut pod = pod("app:1");
        let mut lifecycle = PodLifecycle::begin(&pod, at(0));
        lifecycle.advance(&pod, &Timing::default(), at(0));
        let gates = json!([{"conditionType": "example.com/lb"}]);
        pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
        for (shown, expected) in [(None, "False"), (Some("False"), "False"), (Some("True"), "True")] {
            let conditions = shown.map(|status| json!([{"type": "example.com/lb", "status": status}]));
            pod.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
            let report = show(&pod, &lifecycle, at(1));
            assert_eq!(ready(&report), expected, "{shown:?}");
            let conditions = report["status"]["conditions"].as_array().unwrap();
            let containers = conditions.iter().find(|c| c["type"] == "ContainersReady").unwrap();
            assert_eq!(containers["status"], "True");
        }
    }

    #[test]
    fn a_new_image_restarts_that_container_and_no_other() {
        let timing = Timing::default();
        let mut lifecycle = PodLifecycle::begin(&pod("app:1"), at(0));
        lifecycle.advance(&pod("app:1"), &timing, at(0));
        let before = show(&pod("app:1"), &lifecycle, at(0));
        lifecycle.advance(&pod("app:2"), &timing, at(5));
        let after = show(&pod("app:2"), &lifecycle, at(5));
        let (old, new) = (&before["status"]["containerStatuses"], &after["status"]["containerStatuses"]);
        assert_ne!(old[0]["containerID"], new[0]["containerID"]);
        assert_ne!(old[0]["imageID"], new[0]["imageID"]);
        assert_eq!(new[0]["image"], "app:2");
        assert_eq!(new[0]["restartCount"], 1);
        assert_eq!(new[0]["lastState"]["terminated"]["containerID"], old[0]["containerID"]);
        assert_eq!(old[1], new[1]);
    }

    #[test]
    fn termination_takes_at_most_the_grace_period() {
        let timing = Timing { termination: Duration::from_secs(20), ..Timing::default() };
        let mut pod = pod("app:1");
        let mut lifecycle = PodLifecycle::begin(&pod, at(0));
        lifecycle.advance(&pod, &timing, at(0));
        pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(30)));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        assert_eq!(lifecycle.advance(&pod, &timing, at(1)), Step::Rest(Some(at(21))));
        pod.metadata.deletion_grace_period_seconds = Some(5);
        assert_eq!(lifecycle.advance(&pod, &timing, at(3)), Step::Rest(Some(at(8))));
        assert_eq!(lifecycle.advance(&pod, &timing, at(8)), Step::Remove);
        let ended = show(&pod, &lifecycle, at(8));
        assert_eq!(ended["status"]["phase"], "Succeeded");
        assert_eq!(ready(&ended), "False");
    }

    #[test]
    fn a_restarted_kubelet_does_not_restart_running_containers() {
        let timing = Timing::default();
        let mut pod = pod("app:1");
        let mut lifecycle = PodLifecycle::begin(&pod, at(0));
        lifecycle.advance(&pod, &timing, at(0));
        pod.status = serde_json::from_value(show(&pod, &lifecycle, at(0))["status"].clone()).unwrap();
        let mut again = PodLifecycle::begin(&pod, at(9));
        again.advance(&pod, &timing, at(9));
        assert_eq!(again.containers[0].id, lifecycle.containers[0].id);
        assert_eq!(ready(&show(&pod, &again, at(9))), "True");
    }
}
