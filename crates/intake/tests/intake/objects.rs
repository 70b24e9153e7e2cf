//! Everything that is watched besides pods and budgets.

use std::time::Duration;

use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Time};
use quorate_engine::facts::{Activity, Agent, Counts, Namespace};
use quorate_engine::selector::Selector;
use quorate_intake::objects;
use serde_json::json;

use crate::data::{TEN, load, object, with};

#[test]
fn pod_groups_of_both_versions_are_read() {
    let (key, group) = objects::pod_group(&object(load("pod-group-v1alpha2.json"))).unwrap();
    assert_eq!(key, ObjectKey::new("batch", "train-0"));
    assert_eq!((group.min_count, group.falls_whole), (8, true));
    assert_eq!(group.template, Some(("train".into(), "workers".into())));
    assert_eq!(group.controller.map(|owner| owner.kind), Some(GroupKind::new("batch", "Job")));

    let (_, group) = objects::pod_group(&object(load("pod-group-v1beta1.json"))).unwrap();
    assert_eq!((group.min_count, group.falls_whole), (1, true));
    assert_eq!(group.template, Some(("train".into(), "workers".into())));
    assert_eq!(group.controller, None);

    for (file, mode) in
        [("pod-group-v1alpha2.json", json!("Pod")), ("pod-group-v1beta1.json", json!({ "single": {} }))]
    {
        let value = with(load(file), "/spec/disruptionMode", mode);
        assert!(!objects::pod_group(&object(value)).unwrap().1.falls_whole, "{file}");
    }
    let nonsense = with(load("pod-group-v1alpha2.json"), "/spec/schedulingPolicy/gang/minCount", json!(0));
    assert_eq!(
        objects::pod_group(&object(nonsense)).unwrap_err().to_string(),
        "PodGroup batch/train-0: spec.schedulingPolicy.gang.minCount: 0 must be a whole number from 1 up"
    );
}

#[test]
fn upstream_and_own_workloads_are_read() {
    let (key, workload) = objects::upstream_workload(&object(load("workload-v1alpha1.json"))).unwrap();
    assert_eq!(key, ObjectKey::new("batch", "train"));
    let groups: Vec<_> = workload.groups.iter().map(|g| (&*g.name, g.min_count, g.replicas)).collect();
    assert_eq!(groups, [("workers", 4, None), ("driver", 1, None)]);

    let ours = json!({ "podGroups": [
        { "name": "workers", "replicas": 3, "policy": { "gang": { "minCount": 8 } } },
        { "name": "driver", "replicas": 1, "policy": { "basic": {} } },
    ] });
    let meta = object::<slim::Workload>(load("workload-v1alpha1.json")).metadata;
    let (_, workload) = objects::own_workload(&meta, &ours).unwrap();
    let groups: Vec<_> = workload.groups.iter().map(|g| (&*g.name, g.min_count, g.replicas)).collect();
    assert_eq!(groups, [("workers", 8, Some(3)), ("driver", 1, Some(1))]);

    let error = objects::own_workload(&meta, &json!({ "podGroups": [{ "name": "w" }] })).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Workload batch/train: spec.podGroups[0].replicas: is missing: set the expected number of replicas of the group"
    );
}

#[test]
fn controllers_are_read() {
    let deployment = objects::deployment(&object(load("deployment.json"))).unwrap();
    assert_eq!(deployment.kind, GroupKind::new("apps", "Deployment"));
    assert_eq!((deployment.replicas, deployment.recreate, deployment.deleting), (Some(3), true, false));
    assert_eq!(deployment.counts, Counts::Pods);

    let rolling = with(load("deployment.json"), "/spec/strategy/type", json!("RollingUpdate"));
    assert!(!objects::deployment(&object(rolling)).unwrap().recreate);
    // Any object with replicas has this shape.
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true }]);
    let set = with(load("deployment.json"), "/metadata/ownerReferences", owner);
    let set = with(
        with(set, "/spec/replicas", json!(null)),
        "/metadata/deletionTimestamp",
        json!("2026-11-15T10:00:00Z"),
    );
    let fact = objects::replica_set(&object(set.clone())).unwrap();
    assert_eq!(fact.kind, GroupKind::new("apps", "ReplicaSet"));
    assert_eq!((fact.replicas, fact.deleting), (Some(1), true), "no number is 1");
    assert_eq!(fact.owner.map(|owner| owner.uid), Some("d".into()));
    assert_eq!(objects::stateful_set(&object(set.clone())).unwrap().kind.kind, "StatefulSet".into());

    let kind = GroupKind::new("apps.kruise.io", "CloneSet");
    let scaled = |value: &serde_json::Value, path: Option<&slim::ReplicasPath>| {
        objects::any_controller(&kind, &value.to_string(), path).unwrap()
    };
    let path = slim::ReplicasPath::default();
    assert_eq!(scaled(&load("deployment.json"), Some(&path)).replicas, Some(3));
    assert_eq!(scaled(&load("deployment.json"), Some(&path)).kind, kind);
    assert_eq!(scaled(&set, Some(&path)).replicas, None, "its default is not known");
    assert_eq!(scaled(&load("deployment.json"), None).replicas, None, "it has no scale");

    let negative = with(load("deployment.json"), "/spec/replicas", json!(-1));
    assert_eq!(
        objects::deployment(&object(negative)).unwrap_err().to_string(),
        "Deployment shop/web: spec.replicas: -1 must be a whole number from 0 up"
    );
}

#[test]
fn a_leader_worker_set_counts_groups() {
    let cases = [
        (json!("RecreateGroupOnPodRestart"), true),
        (json!("RecreateGroupAfterStart"), true),
        (json!(null), true),
        (json!("None"), false),
        (json!("Default"), false),
    ];
    for (policy, falls_whole) in cases {
        let set =
            with(load("leader-worker-set.json"), "/spec/leaderWorkerTemplate/restartPolicy", policy.clone());
        let fact = objects::leader_worker_set(&object(set)).unwrap();
        assert_eq!(fact.replicas, Some(3));
        assert_eq!(fact.counts, Counts::Groups { size: Some(4), falls_whole }, "{policy}");
    }
    let empty = with(load("leader-worker-set.json"), "/spec/leaderWorkerTemplate/size", json!(0));
    assert!(objects::leader_worker_set(&object(empty)).is_err());
}

#[test]
fn the_labels_of_pod_templates_are_read() {
    let labels = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied());
    let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": {} });
    let object = |spec: serde_json::Value| json!({ "metadata": { "namespace": "a", "name": "b", "uid": "u" }, "spec": spec, "status": null });
    let of_web: Option<Box<[Labels]>> = Some([labels(&[("app", "web")])].into());
    let plain = object(json!({ "template": template }));
    let read = |value: &serde_json::Value| serde_json::from_value(value.clone()).unwrap();
    assert_eq!(objects::deployment(&read(&plain)).unwrap().templates, of_web);
    let any = |group: &str, kind: &str, value: &serde_json::Value| {
        objects::any_controller(&GroupKind::new(group, kind), &value.to_string(), None).unwrap()
    };
    for (group, kind) in [("batch", "Job"), ("", "ReplicationController"), ("apps.kruise.io", "CloneSet")] {
        assert_eq!(any(group, kind, &plain).templates, of_web, "{kind}");
    }
    assert_eq!(any("example.com", "Game", &plain).templates, None, "it is not known to create pods from it");
    let odd = object(json!({ "template": "a name", "suspend": "yes" }));
    assert_eq!(any("example.com", "Game", &odd).templates, None);

    let name = ("leaderworkerset.sigs.k8s.io/name", "b");
    let leader = json!({ "metadata": { "labels": { "role": "leader" } } });
    let set = |size: i32, leader: serde_json::Value| {
        let set = json!({ "size": size, "leaderTemplate": leader, "workerTemplate": template });
        objects::leader_worker_set(
            &serde_json::from_value(object(json!({ "leaderWorkerTemplate": set }))).unwrap(),
        )
        .unwrap()
        .templates
    };
    let (leaders, workers) = (labels(&[("role", "leader"), name]), labels(&[("app", "web"), name]));
    assert_eq!(set(2, leader.clone()), Some([leaders.clone(), workers.clone()].into()));
    assert_eq!(set(1, leader), Some([leaders].into()));
    assert_eq!(set(1, json!(null)), Some([workers].into()));
}

#[test]
fn a_job_is_active_until_it_ends_or_is_suspended() {
    let job = |kind: (&str, &str), suspend: bool, condition: &str| {
        let value = json!({
            "metadata": { "namespace": "a", "name": "b", "uid": "u" },
            "spec": { "parallelism": 3, "completions": 5, "suspend": suspend },
            "status": { "succeeded": 3, "conditions": [{ "type": condition, "status": "True" }] },
        });
        let fact =
            objects::any_controller(&GroupKind::new(kind.0, kind.1), &value.to_string(), None).unwrap();
        // Its controller deletes only pods that are not wanted any more.
        assert_eq!(fact.recreate, kind == ("batch", "Job"));
        (fact.replicas, fact.activity)
    };
    let one = ("batch", "Job");
    assert_eq!(job(one, false, "SuccessCriteriaMet"), (Some(2), Activity::Active));
    assert_eq!(job(one, true, "Suspended"), (Some(2), Activity::Suspended));
    assert_eq!(job(one, false, "Complete"), (Some(2), Activity::Complete));
    assert_eq!(job(one, false, "Failed"), (Some(2), Activity::Failed));
    let set = ("jobset.x-k8s.io", "JobSet");
    assert_eq!(job(set, true, "Suspended"), (None, Activity::Suspended));
    assert_eq!(job(set, false, "Completed"), (None, Activity::Complete));
    assert_eq!(job(set, false, "Failed"), (None, Activity::Failed));
    // That a CronJob is suspended does not end the Jobs that it made.
    assert_eq!(job(("batch", "CronJob"), true, "Failed"), (None, Activity::Active));
}

/// The controller of Jobs creates no pod for an index that has failed, and no index fails without a limit for each.
#[test]
fn a_job_does_not_want_its_failed_indexes() {
    let indexed = || json!({ "parallelism": 9, "completions": 10, "completionMode": "Indexed", "backoffLimitPerIndex": 1 });
    let limit = |spec: serde_json::Value, at_once: i32| with(spec, "/parallelism", json!(at_once));
    for (spec, succeeded, failed, wants) in [
        (indexed(), 3, json!("1,3-5,9"), 2),
        (indexed(), 3, json!("7"), 6),
        (limit(indexed(), 2), 3, json!("1,3-5"), 2),
        (indexed(), 0, json!("0-9"), 0),
        (indexed(), 5, json!("0-5"), 0),
        (indexed(), 3, json!(null), 7),
        (indexed(), 3, json!(""), 7),
        // The completions of an Indexed Job can be reduced together with its parallelism.
        (indexed(), 3, json!("8-20,30"), 5),
        (indexed(), 3, json!("10-20"), 7),
        // No index fails in such Jobs.
        (with(indexed(), "/completionMode", json!("NonIndexed")), 3, json!("1,3-5"), 7),
        (with(indexed(), "/completionMode", json!(null)), 3, json!("1,3-5"), 7),
        (with(indexed(), "/backoffLimitPerIndex", json!(null)), 3, json!("1,3-5"), 7),
        (with(indexed(), "/backoffLimitPerIndex", json!(0)), 3, json!("1,3-5"), 3),
        (with(indexed(), "/completions", json!(null)), 0, json!("1,3-5"), 9),
    ]
    .into_iter()
    // Nothing that is malformed makes the Job want less.
    .chain(
        [
            "x",
            "1,",
            ",",
            "5-3",
            "3,1",
            "1,1",
            "1-3,3",
            "-1",
            "1-",
            "1-2-3",
            "+1",
            " 1",
            "1;2",
            "99999999999",
            "0-99999999999",
        ]
        .map(|failed| (indexed(), 3, json!(failed), 7)),
    ) {
        let job = json!({
            "metadata": { "namespace": "a", "name": "b", "uid": "u" }, "spec": spec,
            "status": { "succeeded": succeeded, "failedIndexes": failed },
        });
        let fact = objects::any_controller(&GroupKind::new("batch", "Job"), &job.to_string(), None).unwrap();
        assert_eq!(fact.replicas, Some(wants), "{spec} {failed}");
    }
}

#[test]
fn nodes_and_namespaces_are_read() {
    let node = json!({ "metadata": { "name": "worker-2" }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    assert!(objects::node(&object(node.clone())).unwrap().1.ready);
    let unknown = with(node, "/status/conditions/0/status", json!("Unknown"));
    assert!(!objects::node(&object(unknown)).unwrap().1.ready);

    let meta = object::<slim::Node>(json!({ "metadata": { "name": "kube-system" } })).metadata;
    let (name, namespace) = objects::namespace(&meta, &["quorate", "kube-system"]).unwrap();
    assert_eq!(&*name, "kube-system");
    assert_eq!(namespace, Namespace { terminating: false, excluded: true, guarded: false });
    let labels = json!({ "quorate.dev/enforced": "true" });
    let meta = object::<slim::Node>(json!({ "metadata": { "name": "shop", "labels": labels } })).metadata;
    let (_, namespace) = objects::namespace(&meta, &["quorate"]).unwrap();
    assert_eq!(namespace, Namespace { terminating: false, excluded: false, guarded: true });
}

#[test]
fn an_agent_is_read_from_its_lease() {
    let (node, agent) = objects::agent(&object(load("lease.json")), TEN).unwrap();
    assert_eq!(&*node, "worker-2");
    // Rounded up, because probe times are in whole seconds.
    let started = Time(TEN.0 - 60 * 60_000 + 11_000);
    assert_eq!(agent, Agent { started, renewed: TEN, holds: Duration::from_secs(40) });
    for (pointer, value) in [
        ("/spec/acquireTime", json!(null)),
        ("/spec/holderIdentity", json!("")),
        ("/spec/leaseDurationSeconds", json!(0)),
    ] {
        let lease = with(load("lease.json"), pointer, value);
        let error = objects::agent(&object(lease), TEN).unwrap_err().to_string();
        assert!(error.contains(&pointer[1..].replace('/', ".")), "{error}");
    }
}

#[test]
fn native_budgets_are_read() {
    let (key, budget) = objects::native_budget(&object(load("pdb.json"))).unwrap();
    let budget = budget.unwrap();
    assert_eq!(key, ObjectKey::new("shop", "web"));
    assert_eq!(budget.selector, Selector::labels([("app", "web")]));
    assert_eq!((budget.allowed, budget.healthy), (0, (2, 2)));
    assert!(budget.current && budget.always_allow_unready);
    let stale = with(load("pdb.json"), "/status/observedGeneration", json!(2));
    assert!(!objects::native_budget(&object(stale)).unwrap().1.unwrap().current);
    // As for the API server: no selector and a broken one select nothing, an empty one everything.
    for selector in [json!(null), json!({ "matchExpressions": [{ "key": "a", "operator": "In" }] })] {
        let none = with(load("pdb.json"), "/spec/selector", selector);
        assert_eq!(objects::native_budget(&object(none)).unwrap().1, None);
    }
    let all = with(load("pdb.json"), "/spec/selector", json!({}));
    assert_eq!(objects::native_budget(&object(all)).unwrap().1.unwrap().selector, Selector::default());
}
