//! Tests of the gang-scheduling API, which differs between releases and must be enabled.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::WorkloadApi;
use quorate_testbed::{Cluster, Kubernetes, Options, Patch, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, pod, text};

stories!(Private(Options { workload_api: true, ..Options::default() }):
    each_release_serves_its_own_kinds,
    a_group_has_a_minimum_count,
    a_group_is_immutable,
    a_pod_is_linked_as_in_its_release,
    a_gang_of_the_devcluster_is_accepted,
    the_template_of_a_pod_group_must_exist,
);

/// Tests on a default cluster of any release.
mod switched_off {
    use super::*;

    stories!(ApiServer: the_link_of_a_pod_is_dropped);

    async fn the_link_of_a_pod_is_dropped(cluster: Cluster) {
        let ns = TestNamespace::new(&cluster, "unlinked").await;
        for (name, field, link) in links() {
            let made = ns.create("pods", &linked(name, field, &link)).await;
            assert_eq!(made["spec"].get(field), None);
        }
        assert_eq!(served(&ns).await, [""; 0]);
    }
}

/// The ways to link a pod in all releases: a pod name, the field, and the value of the field.
fn links() -> [(&'static str, &'static str, Value); 2] {
    let reference = json!({"name": "train", "podGroup": "group", "podGroupReplicaKey": "0"});
    [
        ("by-workload", "workloadRef", reference),
        ("by-group", "schedulingGroup", json!({"podGroupName": "gang"})),
    ]
}

fn linked(name: &str, field: &str, link: &Value) -> Value {
    let mut object = pod(name);
    object["spec"][field] = link.clone();
    object
}

/// The served kinds, of the kinds of all releases.
async fn served(ns: &TestNamespace) -> Vec<&'static str> {
    let mut found = Vec::new();
    for kind in [
        "v1alpha1/workloads",
        "v1alpha1/podgroups",
        "v1alpha2/workloads",
        "v1alpha2/podgroups",
        "v1beta1/podgroups",
    ] {
        let (version, plural) = kind.split_once('/').expect("a version");
        let path = ns.path(&format!("scheduling.k8s.io/{version}"), plural);
        if ns.code(&path).await == 200 {
            found.push(kind);
        }
    }
    found
}

/// A Workload with one gang, in the version of the release.
fn workload(api: WorkloadApi, min_count: u32) -> Option<Value> {
    Gang { min_count, ..Gang::new("train", 1, 3) }.workload(api).into_iter().next()
}

/// The path for creating objects of this kind.
fn path_of(ns: &TestNamespace, object: &Value) -> String {
    let plural = format!("{}s", text(object, "/kind").to_lowercase());
    ns.path(text(object, "/apiVersion"), &plural)
}

async fn each_release_serves_its_own_kinds(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "kinds").await;
    let expected: &[&str] = match cluster.kubernetes() {
        Kubernetes::V1_32 => &[],
        Kubernetes::V1_35 => &["v1alpha1/workloads"],
        Kubernetes::V1_36 => &["v1alpha2/workloads", "v1alpha2/podgroups"],
    };
    assert_eq!(served(&ns).await, expected);
}

async fn a_group_has_a_minimum_count(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "gang").await;
    let api = cluster.kubernetes().workload_api();
    let (field, policy) = match api {
        WorkloadApi::V1Alpha1 => ("podGroups", "policy"),
        _ => ("podGroupTemplates", "schedulingPolicy"),
    };
    // 1.32 has no Workload: `each_release_serves_its_own_kinds` tests that.
    let Some(good) = workload(api, 3) else { return };
    let path = path_of(&ns, &good);
    let made = ns.wire.post(&path, &good).await.expect(201);
    assert_eq!(made["spec"][field][0][policy], json!({"gang": {"minCount": 3}}));
    assert_eq!(ns.wire.get(&path).await.expect(200)["kind"], "WorkloadList");

    let refused = async |change: fn(&mut Value)| {
        let mut bad = workload(api, 3).expect("a workload");
        bad["metadata"]["name"] = json!("bad");
        change(bad.pointer_mut(&format!("/spec/{field}")).expect("the groups"));
        let answer = ns.wire.post(&path, &bad).await;
        assert_eq!(answer.code, 422, "{:#}", answer.body);
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        causes.iter().map(|cause| text(cause, "/field").to_owned()).collect::<Vec<_>>()
    };
    let none = refused(|groups| *groups = json!([])).await;
    assert_eq!(none, [format!("spec.{field}")]);
    let zero = refused(|groups| {
        let policy = if groups[0].get("policy").is_some() { "policy" } else { "schedulingPolicy" };
        groups[0][policy]["gang"]["minCount"] = json!(0);
    });
    assert_eq!(zero.await, [format!("spec.{field}[0].{policy}.gang.minCount")]);
    let twice = refused(|groups| {
        let same = groups[0].clone();
        *groups = json!([same.clone(), same]);
    });
    assert!(!twice.await.is_empty());
}

async fn a_group_is_immutable(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "frozen").await;
    let api = cluster.kubernetes().workload_api();
    let (Some(before), Some(after)) = (workload(api, 3), workload(api, 2)) else { return };
    ns.wire.post(&path_of(&ns, &before), &before).await.expect(201);
    let path = format!("{}/train", path_of(&ns, &before));
    let answer = ns.wire.patch(&path, Patch::Merge, &json!({"spec": after["spec"]})).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{:#}", answer.body);
}

async fn a_pod_is_linked_as_in_its_release(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "linked").await;
    for (name, field, link) in links() {
        let kept = match cluster.kubernetes().workload_api() {
            WorkloadApi::Off => false,
            WorkloadApi::V1Alpha1 => field == "workloadRef",
            _ => field == "schedulingGroup",
        };
        let made = ns.create("pods", &linked(name, field, &link)).await;
        assert_eq!(made["spec"].get(field), kept.then_some(&link), "{field}");
        if kept {
            let patch = json!({"spec": {field: null}});
            let answer = ns.wire.patch(&ns.core(&format!("pods/{name}")), Patch::Merge, &patch).await;
            assert_eq!(
                (answer.code, answer.reason()),
                (422, "Invalid"),
                "a link is immutable: {:#}",
                answer.body
            );
        }
    }
}

async fn a_gang_of_the_devcluster_is_accepted(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "train").await;
    let (api, gang) = (cluster.kubernetes().workload_api(), Gang::new("train", 2, 3));
    for object in gang.workload(api) {
        ns.wire.post(&path_of(&ns, &object), &object).await.expect(201);
    }
    for set in gang.stateful_sets(api) {
        let made = ns.wire.post(&path_of(&ns, &set), &set).await.expect(201);
        let link = |set: &Value, field| set["spec"]["template"]["spec"][field].clone();
        for (_, field, _) in links() {
            assert_eq!(link(&made, field), link(&set, field), "{field}");
        }
    }
}

async fn the_template_of_a_pod_group_must_exist(cluster: Cluster) {
    // Only 1.36 has both PodGroup objects and this check.
    if cluster.kubernetes() != Kubernetes::V1_36 {
        return;
    }
    let ns = TestNamespace::new(&cluster, "orphan").await;
    let objects = Gang::new("train", 1, 3).workload(WorkloadApi::V1Alpha2);
    let [workload, group] = &objects[..] else { panic!("{objects:?}") };
    let answer = ns.wire.post(&path_of(&ns, group), group).await;
    assert_eq!((answer.code, answer.reason()), (403, "Forbidden"), "{:#}", answer.body);
    ns.wire.post(&path_of(&ns, workload), workload).await.expect(201);
    let made = ns.wire.post(&path_of(&ns, group), group).await.expect(201);
    assert_eq!(made["spec"]["schedulingPolicy"], json!({"gang": {"minCount": 3}}));
    let mut none = group.clone();
    none["metadata"]["name"] = json!("none");
    none["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(0);
    assert_eq!(ns.wire.post(&path_of(&ns, &none), &none).await.code, 422);
}
