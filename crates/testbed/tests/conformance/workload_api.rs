//! The gang-scheduling API of 1.36, where it is switched on.

use quorate_testbed::{Cluster, Options, stories};
use serde_json::json;

use crate::fixtures::{Space, pod};

stories!(Private(Options { workload_api: true, ..Options::default() }):
    a_pod_group_says_how_many_it_needs,
    a_pod_is_linked_to_its_group,
);

/// What a default cluster does.
mod switched_off {
    use super::*;

    stories!(ApiServer: the_link_of_a_pod_is_dropped);

    async fn the_link_of_a_pod_is_dropped(cluster: Cluster) {
        let space = Space::new(&cluster, "unlinked").await;
        let made = space.create("pods", &linked_pod()).await;
        assert_eq!(made["spec"].get("schedulingGroup"), None);
        assert_eq!(space.code(&space.path("scheduling.k8s.io/v1alpha2", "podgroups")).await, 404);
    }
}

fn linked_pod() -> serde_json::Value {
    let mut object = pod("one");
    object["spec"]["schedulingGroup"] = json!({"podGroupName": "gang"});
    object
}

async fn a_pod_group_says_how_many_it_needs(cluster: Cluster) {
    let space = Space::new(&cluster, "gang").await;
    let path = space.path("scheduling.k8s.io/v1alpha2", "podgroups");
    let group = json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}});
    let made = space.wire.post(&path, &group).await.expect(201);
    assert_eq!(made["spec"]["schedulingPolicy"], json!({"gang": {"minCount": 3}}));
    let list = space.wire.get(&path).await.expect(200);
    assert_eq!(list["kind"], "PodGroupList");
    let mut none = group.clone();
    none["metadata"]["name"] = json!("none");
    none["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(0);
    assert_eq!(space.wire.post(&path, &none).await.code, 422);
}

async fn a_pod_is_linked_to_its_group(cluster: Cluster) {
    let space = Space::new(&cluster, "linked").await;
    let made = space.create("pods", &linked_pod()).await;
    assert_eq!(made["spec"]["schedulingGroup"], json!({"podGroupName": "gang"}));
}
