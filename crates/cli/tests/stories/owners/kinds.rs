//! Every kind of workload.

use quorate_testbed::{Backend, Cluster};
use serde_json::{Value, json};

use super::{names, owners_of, workload};
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole: pods_of_every_kind_get_the_owners_of_their_template);

async fn pods_of_every_kind_get_the_owners_of_their_template(cluster: Cluster) {
    let ns = TestNamespace::with_owner_references(cluster, "kinds").await;
    let group = ns.create_job_group("analytics-job-group").await;
    let mut other = ns.create_job_group("other").await;
    // A reference without the field `controller` is kept as it is.
    other.as_object_mut().expect("a reference").remove("controller");
    let named = json!([group, other]);

    // The example of the proposal.
    let job = ns.create_workload("Job", "data-job", &json!([group])).await;
    let pods = ns.await_pods_of("data-job", 1).await;
    let owners = owners_of(&pods[0]);
    assert_eq!((owners.len(), &owners[1]), (2, &group), "{owners:#?}");
    let controller =
        ["apiVersion", "kind", "name", "uid", "controller"].map(|field| owners[0][field].clone());
    let name = json!("data-job");
    assert_eq!(
        controller,
        [json!("batch/v1"), json!("Job"), name, job["metadata"]["uid"].clone(), json!(true)]
    );

    let mut kinds =
        vec![("ReplicaSet", "ReplicaSet"), ("Deployment", "ReplicaSet"), ("StatefulSet", "StatefulSet")];
    if ns.cluster.backend() == Backend::Real {
        // The embedded cluster has no controllers for these.
        kinds.extend([("DaemonSet", "DaemonSet"), ("ReplicationController", "ReplicationController")]);
    }
    for (kind, _) in &kinds {
        ns.create_workload(kind, &by_field(kind), &named).await;
        annotated(&ns, kind, &by_annotation(kind), &named).await;
    }
    annotated(&ns, "Job", "by-annotation-job", &named).await;
    kinds.push(("Job", "Job"));
    for (kind, controller) in kinds {
        for name in [by_field(kind), by_annotation(kind)].iter().filter(|name| *name != "by-field-job") {
            let pods = ns.await_pods_of(name, 1).await;
            let owners = owners_of(&pods[0]);
            assert_eq!(
                (&owners[0]["kind"], &owners[0]["controller"]),
                (&json!(controller), &json!(true)),
                "{name}"
            );
            assert_eq!(owners[1..], [group.clone(), other.clone()], "{name}");
        }
    }

    // Its definition may drop owner references, and StatefulSets create its pods: only the annotation reaches them.
    annotated(&ns, "LeaderWorkerSet", "llm", &named).await;
    for pod in ns.await_pods_of("llm", 2).await {
        assert_eq!(names(&pod)[1..], ["analytics-job-group", "other"], "{pod:#}");
    }
}

fn by_field(kind: &str) -> String {
    format!("by-field-{}", kind.to_lowercase())
}

fn by_annotation(kind: &str) -> String {
    format!("by-annotation-{}", kind.to_lowercase())
}

async fn annotated(ns: &TestNamespace, kind: &str, name: &str, owners: &Value) {
    let annotations = json!({"annotations": {"quorate.dev/owner-references": owners.to_string()}});
    let (version, plural, object) = workload(kind, name, &annotations);
    ns.create(version, &plural, &object).await;
}
