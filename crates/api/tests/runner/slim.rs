//! The slim forms, read from objects of each supported Kubernetes version.

use kube::{Resource, ResourceExt};
use quorate_api::slim::{
    Condition, CustomResourceDefinition, Deployment, DisruptionMode, LeaderWorkerSet, Lease, Namespace, Node,
    Phase, Pod, PodDisruptionBudget, PodGroup, ReplicaSet, StatefulSet, Workload,
};
use serde::de::DeserializeOwned;

use crate::data;

/// Reads one object of a file, from JSON text as a watch does.
fn read<T: DeserializeOwned>(file: &str, name: &str) -> T {
    let object = &data(&format!("slim/{file}.yaml"))[name];
    assert!(!object.is_null(), "{file}.yaml has no {name:?}");
    serde_json::from_str(&object.to_string()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_pod_keeps_what_matters() {
    let pod: Pod = read("pods", "running");
    assert_eq!(pod.spec.node_name.as_deref(), Some("node-a"));
    assert_eq!(pod.spec.init_containers[0].restart_policy.as_deref(), Some("Always"));
    let server = &pod.spec.containers[0];
    assert_eq!((server.name.as_str(), server.image.as_deref()), ("server", Some("example.com/llm:2")));
    assert_eq!(server.resources.requests["memory"].0, "64Gi");
    let restarting: Vec<_> = server
        .resize_policy
        .iter()
        .filter(|policy| policy.restart_policy == "RestartContainer")
        .map(|policy| policy.resource_name.as_str())
        .collect();
    assert_eq!(restarting, ["memory"]);
    assert_eq!(pod.spec.resources.limits["cpu"].0, "16");
    assert_eq!((pod.metadata.generation, pod.status.observed_generation), (Some(2), Some(2)));

    assert_eq!(pod.status.phase, Phase::Running);
    assert!(Condition::find(&pod.status.conditions, "Ready").unwrap().is_true());
    let probe = Condition::find(&pod.status.conditions, "Disruptable").unwrap();
    assert!(!probe.is_true());
    assert_eq!((probe.reason.as_deref(), probe.message.as_deref()), (Some("ProbeFailed"), Some("busy")));
    assert_eq!(probe.last_probe_time.as_ref().unwrap().0.to_string(), "2026-11-15T20:59:00Z");
    assert_eq!(Condition::find(&pod.status.conditions, "PodScheduled"), None);
    let running = &pod.status.container_statuses[0];
    assert!(running.ready);
    assert_eq!(running.container_id.as_deref(), Some("containerd://4f7d"));
    assert_eq!(running.image_id.as_deref(), Some("example.com/llm@sha256:1a2b"));
    let started = running.state.running.as_ref().unwrap().started_at.as_ref().unwrap();
    assert_eq!(started.0.to_string(), "2026-11-15T20:00:05Z");
    assert_eq!(running.resources.as_ref().unwrap().requests["cpu"].0, "8");
    assert_eq!(pod.status.init_container_statuses[0].state.running, None);
}

#[test]
fn metadata_keeps_what_matters() {
    let pod: Pod = read("pods", "running");
    assert_eq!((pod.name_any().as_str(), pod.namespace().as_deref()), ("llm-1-3", Some("inference")));
    assert_eq!(pod.uid().as_deref(), Some("5f0c6c1e-3a54-4e5f-9a3c-0c9d0a6f2b11"));
    assert_eq!(pod.resource_version().as_deref(), Some("48211"));
    assert_eq!(pod.metadata.generation, Some(2));
    assert!(pod.metadata.deletion_timestamp.is_some());
    assert!(pod.metadata.creation_timestamp.is_some());
    assert_eq!(pod.labels()["leaderworkerset.sigs.k8s.io/group-index"], "1");
    assert_eq!(
        pod.annotations().keys().collect::<Vec<_>>(),
        [
            "leaderworkerset.sigs.k8s.io/size",
            "pub.kruise.io/no-protect",
            "quorate.dev/disruption-probe.server"
        ]
    );
    let owners: Vec<_> = pod.owner_references().iter().map(|o| (o.kind.as_str(), o.controller)).collect();
    assert_eq!(owners, [("StatefulSet", Some(true)), ("JobGroup", None)]);
    assert_eq!(pod.metadata.managed_fields, None);
    assert_eq!(pod.metadata.finalizers, None);
}

#[test]
fn a_pod_names_its_group_in_the_words_of_its_version() {
    let pod: Pod = read("pods", "1.35");
    let reference = pod.spec.workload_ref.unwrap();
    assert_eq!((reference.name.as_str(), reference.pod_group.as_str()), ("train", "worker"));
    assert_eq!(reference.pod_group_replica_key.as_deref(), Some("3"));
    let pod: Pod = read("pods", "1.35, a group without replicas");
    assert_eq!(pod.spec.workload_ref.unwrap().pod_group_replica_key, None);
    for version in ["1.36", "1.37"] {
        let pod: Pod = read("pods", version);
        assert_eq!(pod.spec.scheduling_group.unwrap().pod_group_name.as_deref(), Some("train-worker-0"));
        assert_eq!(pod.spec.workload_ref, None);
    }
}

#[test]
fn phases_are_read() {
    let terminal = |name| read::<Pod>("pods", name).status.phase.is_terminal();
    assert!(terminal("1.35, a group without replicas"));
    assert!(terminal("1.36"));
    assert!(!terminal("running"));
    assert!(!terminal("1.35"));
    for odd in ["null everywhere", "nothing at all", "a phase that is not known"] {
        assert_eq!(read::<Pod>("pods", odd).status.phase, Phase::Unknown, "{odd}");
    }
}

#[test]
fn null_is_nothing() {
    assert_eq!(read::<Pod>("pods", "nothing at all"), Pod::default());
    let pod: Pod = read("pods", "null everywhere");
    assert_eq!(pod.metadata.labels, None);
    assert_eq!(pod.metadata.annotations, None);
    assert_eq!(pod.spec.init_containers, []);
    assert_eq!(pod.spec.containers[0].image, None);
    assert!(!pod.status.container_statuses[0].ready);
    let group: PodGroup = read("groups", "PodGroup with nulls");
    assert_eq!((group.spec.disruption_mode, group.template()), (DisruptionMode::Single, None));
}

#[test]
fn nulls_anywhere_are_nothing() {
    // Whatever field of the full pod is null, the pod can still be read.
    let full = data("slim/pods.yaml")["running"].clone();
    let mut paths = Vec::new();
    fields(&full, "", &mut paths);
    assert!(paths.len() > 60, "{paths:?}");
    for path in paths {
        // The API server has no way to write a null for a value of these maps, or for a field of an owner.
        if ["/ownerReferences/", "/labels/", "/requests/", "/limits/"].iter().any(|part| path.contains(part))
        {
            continue;
        }
        let mut pod = full.clone();
        *pod.pointer_mut(&path).unwrap() = serde_json::Value::Null;
        let read = serde_json::from_str::<Pod>(&pod.to_string());
        assert!(read.is_ok(), "{path}: {read:?}");
    }
}

fn fields(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    let mut field = |name: &str, value| {
        let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        fields(value, &path, found);
        found.push(path);
    };
    for (name, value) in value.as_object().into_iter().flatten() {
        field(name, value);
    }
    for (n, value) in value.as_array().into_iter().flatten().enumerate() {
        // An item is there or not; it is never null.
        fields(value, &format!("{path}/{n}"), found);
    }
}

#[test]
fn pod_groups_of_each_version_say_the_same() {
    for name in ["PodGroup of 1.36", "PodGroup of 1.37"] {
        let group: PodGroup = read("groups", name);
        assert_eq!(group.spec.scheduling_policy.min_count(), 4, "{name}");
        assert_eq!(group.spec.disruption_mode, DisruptionMode::Single, "{name}");
        let template = group.template().unwrap();
        assert_eq!((template.workload_name.as_str(), template.template_name.as_str()), ("train", "worker"));
    }
    for name in ["PodGroup of 1.36 that falls whole", "PodGroup of 1.37 that falls whole"] {
        let group: PodGroup = read("groups", name);
        assert_eq!(group.spec.disruption_mode, DisruptionMode::All, "{name}");
        assert_eq!(group.spec.scheduling_policy.min_count(), 1, "{name}");
        assert_eq!(group.template(), None, "{name}");
    }
    let odd: PodGroup = read("groups", "PodGroup of a version to come");
    assert_eq!(odd.spec.disruption_mode, DisruptionMode::Single);
    assert_eq!(odd.spec.scheduling_policy.min_count(), 1);
}

#[test]
fn workloads_of_each_version_say_the_same() {
    for (name, driver) in [
        ("Workload of 1.35", DisruptionMode::Single),
        ("Workload of 1.36", DisruptionMode::All),
        ("Workload of 1.37", DisruptionMode::All),
    ] {
        let workload: Workload = read("groups", name);
        let groups: Vec<_> = workload
            .groups()
            .map(|group| (group.name.as_str(), group.scheduling_policy.min_count(), group.disruption_mode))
            .collect();
        assert_eq!(groups, [("driver", 1, driver), ("worker", 8, DisruptionMode::Single)], "{name}");
    }
}

#[test]
fn native_budgets_are_read() {
    let pdb: PodDisruptionBudget = read("others", "pdb");
    assert_eq!(
        pdb.annotations().keys().collect::<Vec<_>>(),
        ["quorate.dev/budget-scope", "quorate.dev/max-unavailable"]
    );
    let selector = pdb.spec.selector.unwrap();
    assert_eq!(selector.match_labels.unwrap()["app"], "llm");
    assert_eq!(selector.match_expressions.unwrap()[0].operator, "In");
    assert_eq!(pdb.spec.unhealthy_pod_eviction_policy.as_deref(), Some("AlwaysAllow"));
    let status = pdb.status;
    assert_eq!((status.observed_generation, status.disruptions_allowed), (2, 1));
    assert_eq!((status.current_healthy, status.desired_healthy, status.expected_pods), (16, 12, 16));
    assert!(Condition::find(&status.conditions, "DisruptionAllowed").unwrap().is_true());
}

#[test]
fn nodes_and_leases_are_read() {
    let node: Node = read("others", "node");
    assert!(node.is_ready() && node.spec.unschedulable);
    assert!(!read::<Node>("others", "lost node").is_ready());
    let lease: Lease = read("others", "lease");
    assert_eq!(lease.spec.holder_identity.as_deref(), Some("quorate-7c9"));
    assert_eq!(lease.spec.lease_duration_seconds, Some(15));
    assert_eq!(lease.spec.renew_time.unwrap().0.to_string(), "2026-11-15T21:00:00.123456Z");
    assert_eq!(lease.metadata.annotations.unwrap()["quorate.dev/seen"], "48211");
}

#[test]
fn namespaces_are_read() {
    let namespace: Namespace = read("others", "namespace");
    assert_eq!(namespace.labels()["quorate.dev/enforced"], "true");
    assert!(namespace.metadata.deletion_timestamp.is_some());
}

#[test]
fn leader_worker_sets_are_read() {
    let numbers = |name| {
        let lws: LeaderWorkerSet = read("others", name);
        (lws.replicas(), lws.size(), lws.falls_whole())
    };
    assert_eq!(numbers("lws"), (3, 4, true));
    assert_eq!(numbers("lws that repairs"), (0, 2, false));
    assert_eq!(numbers("lws that repairs, in old words"), (1, 1, false));
    assert_eq!(numbers("lws without words"), (1, 1, true));
}

#[test]
fn controllers_are_read() {
    let deployment: Deployment = read("others", "deployment");
    assert_eq!((deployment.spec.replicas, deployment.recreates()), (Some(3), true));
    assert!(deployment.metadata.deletion_timestamp.is_some());
    let rolling: Deployment = read("others", "rolling deployment");
    assert_eq!((rolling.spec.replicas, rolling.recreates()), (None, false));

    let set: ReplicaSet = read("others", "replicaset");
    assert_eq!(set.spec.replicas, Some(0));
    assert_eq!(set.owner_references()[0].kind, "Deployment");
    let template = set.spec.template.metadata;
    assert_eq!(template.owner_references[0].kind, "JobGroup");
    assert_eq!(template.annotations.unwrap().len(), 1);
    // The same object, read by someone who knows only that it is scaled.
}

#[test]
fn each_kind_is_found_where_it_is_served() {
    fn path<K: Resource<DynamicType = ()>>() -> String {
        K::url_path(&(), None)
    }
    assert_eq!(path::<Pod>(), "/api/v1/pods");
    assert_eq!(path::<Namespace>(), "/api/v1/namespaces");
    assert_eq!(path::<Node>(), "/api/v1/nodes");
    assert_eq!(path::<PodDisruptionBudget>(), "/apis/policy/v1/poddisruptionbudgets");
    assert_eq!(path::<Lease>(), "/apis/coordination.k8s.io/v1/leases");
    assert_eq!(path::<ReplicaSet>(), "/apis/apps/v1/replicasets");
    assert_eq!(path::<StatefulSet>(), "/apis/apps/v1/statefulsets");
    assert_eq!(path::<Deployment>(), "/apis/apps/v1/deployments");
    for version in PodGroup::VERSIONS {
        let found = PodGroup::url_path(&PodGroup::resource(version), Some("ml"));
        assert_eq!(found, format!("/apis/scheduling.k8s.io/{version}/namespaces/ml/podgroups"));
    }
    for version in Workload::VERSIONS {
        let found = Workload::url_path(&Workload::resource(version), None);
        assert_eq!(found, format!("/apis/scheduling.k8s.io/{version}/workloads"));
    }
}

#[test]
fn a_definition_says_where_the_replicas_are() {
    let definition: CustomResourceDefinition = read("others", "definition");
    assert_eq!(
        (definition.spec.group.as_str(), definition.spec.names.kind.as_str()),
        ("example.com", "Fleet")
    );
    assert_eq!(definition.replicas_path("v1"), Some(".spec.ships"));
    assert_eq!(definition.replicas_path("v1alpha1"), None, "no scale");
    assert_eq!(definition.replicas_path("v2"), None, "no version");
}
