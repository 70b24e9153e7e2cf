//! The gate, switched on and off.

use quorate_testbed::Cluster;
use serde_json::{Value, json};

use super::{Lab, names};

quorate_testbed::stories!(Whole: with_the_gate_off_pods_are_what_they_were);

async fn with_the_gate_off_pods_are_what_they_were(cluster: Cluster) {
    let mut lab = Lab::without_server(cluster, "gate").await;
    let group = lab.group("nightly").await;
    lab.workload("StatefulSet", "db", &json!([group])).await;
    lab.pods("db", 1).await;
    let before = written(lab.tried(&group).await);
    let mut on = before.clone();
    on["metadata"]["ownerReferences"].as_array_mut().expect("a controller").push(group.clone());
    for gate in [Some(false), Some(true), Some(false), Some(true), None] {
        lab.switch(gate).await;
        let expected = if gate == Some(true) { &on } else { &before };
        assert_eq!(
            written(lab.tried(&group).await).to_string(),
            expected.to_string(),
            "{gate:?}: byte for byte"
        );

        // What was made stays as it was made; what is made now goes by the gate.
        let had = names(&lab.pods("db", 1).await[0]);
        lab.wire.delete(&lab.path("v1", "pods/db-0"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
        let owners: &[&str] = if gate == Some(true) { &["db", "nightly"] } else { &["db"] };
        lab.owned("db", owners).await;
        assert_ne!(had, [""; 0]);
    }
}

/// Without what is new in every object.
fn written(mut pod: Value) -> Value {
    let metadata = pod["metadata"].as_object_mut().expect("metadata");
    for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
        metadata.remove(field);
    }
    pod
}
