//! The feature gate, switched on and off.

use quorate_testbed::Cluster;
use serde_json::{Value, json};

use super::names;
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole: with_the_gate_off_pods_are_unchanged);

async fn with_the_gate_off_pods_are_unchanged(cluster: Cluster) {
    let mut ns = TestNamespace::with_job_groups(cluster, "gate").await;
    let group = ns.create_job_group("nightly").await;
    ns.create_workload("StatefulSet", "db", &json!([group])).await;
    ns.await_pods_of("db", 1).await;
    let before = written(ns.dry_run_pod(&group).await);
    let mut on = before.clone();
    on["metadata"]["ownerReferences"].as_array_mut().expect("a controller").push(group.clone());
    for gate in [Some(false), Some(true), Some(false), Some(true), None] {
        ns.restart_server(gate).await;
        let expected = if gate == Some(true) { &on } else { &before };
        assert_eq!(
            written(ns.dry_run_pod(&group).await).to_string(),
            expected.to_string(),
            "{gate:?}: byte for byte"
        );

        // Existing pods stay as they are; the gate decides on new pods.
        let had = names(&ns.await_pods_of("db", 1).await[0]);
        ns.wire.delete(&ns.path("v1", "pods/db-0"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
        let owners: &[&str] = if gate == Some(true) { &["db", "nightly"] } else { &["db"] };
        ns.await_owners("db", owners).await;
        assert_ne!(had, [""; 0]);
    }
}

/// Without the fields that differ in every object.
fn written(mut pod: Value) -> Value {
    let metadata = pod["metadata"].as_object_mut().expect("metadata");
    for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
        metadata.remove(field);
    }
    pod
}
