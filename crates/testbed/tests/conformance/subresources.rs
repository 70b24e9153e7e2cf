//! Tests of the subresources `status`, `scale`, `binding` and `resize`.

use quorate_testbed::{Cluster, Kubernetes, Patch, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, deployment, pod, version_of};

stories!(ApiServer:
    the_status_is_written_through_its_subresource,
    the_status_subresource_does_not_change_the_spec,
    a_status_from_an_old_version_conflicts,
    the_scale_of_a_deployment_is_read_and_written,
    a_pod_is_bound_once,
    a_pod_keeps_its_node,
    resources_are_changed_through_resize_only,
    a_budget_is_created_without_a_status,
);

async fn the_status_is_written_through_its_subresource(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "status").await;
    let mut object = ns.create("pods", &pod("one")).await;
    object["status"]["phase"] = json!("Running");
    let after = ns.wire.put(&ns.core("pods/one"), &object).await.expect(200);
    assert_eq!(after["status"]["phase"], "Pending");
    let after = ns.wire.put(&ns.core("pods/one/status"), &object).await.expect(200);
    assert_eq!(after["status"]["phase"], "Running");
    assert_eq!(ns.wire.get(&ns.core("pods/one/status")).await.expect(200), after);
}

async fn the_status_subresource_does_not_change_the_spec(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nospec").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 1)).await.expect(201);
    let path = ns.path("apps/v1", "deployments/web/status");
    let patch = json!({"spec": {"replicas": 5}, "status": {"replicas": 3}});
    let after = ns.wire.patch(&path, Patch::Merge, &patch).await.expect(200);
    assert_eq!((&after["spec"]["replicas"], &after["status"]["replicas"]), (&json!(1), &json!(3)));
}

async fn a_status_from_an_old_version_conflicts(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "oldstatus").await;
    let mut old = ns.create("pods", &pod("one")).await;
    ns.set_phase("one", "Running", Some(true)).await;
    old["status"]["phase"] = json!("Failed");
    let answer = ns.wire.put(&ns.core("pods/one/status"), &old).await;
    assert_eq!((answer.code, answer.reason()), (409, "Conflict"));
}

async fn the_scale_of_a_deployment_is_read_and_written(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "scale").await;
    ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 2)).await.expect(201);
    let path = ns.path("apps/v1", "deployments/web/scale");
    let mut scale = ns.wire.get(&path).await.expect(200);
    assert_eq!((&scale["apiVersion"], &scale["kind"]), (&json!("autoscaling/v1"), &json!("Scale")));
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"]["selector"], "app=web");
    scale["spec"]["replicas"] = json!(4);
    ns.wire.put(&path, &scale).await.expect(200);
    ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 5}})).await.expect(200);
    let after = ns.wire.get(&ns.path("apps/v1", "deployments/web")).await.expect(200);
    assert_eq!((&after["spec"]["replicas"], &after["metadata"]["generation"]), (&json!(5), &json!(3)));
}

async fn a_pod_is_bound_once(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "binding").await;
    ns.create("pods", &pod("one")).await;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "one"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "some-node"}});
    let path = ns.core("pods/one/binding");
    assert_eq!(ns.wire.post(&path, &binding).await.expect(201)["status"], "Success");
    let bound = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "some-node");
    let scheduled = &bound["status"]["conditions"][0];
    assert_eq!((&scheduled["type"], &scheduled["status"]), (&json!("PodScheduled"), &json!("True")));
    assert_eq!(ns.wire.post(&path, &binding).await.code, 409);
}

async fn a_pod_keeps_its_node(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "keepsnode").await;
    ns.create("pods", &pod("one")).await;
    let patch = json!({"spec": {"nodeName": "some-node"}});
    let answer = ns.wire.patch(&ns.core("pods/one"), Patch::Merge, &patch).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{:#}", answer.body);
}

async fn resources_are_changed_through_resize_only(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "resize").await;
    let mut object = pod("one");
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    let made = ns.create("pods", &object).await;
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}});
    let direct = ns.wire.patch(&ns.core("pods/one"), Patch::Strategic, &patch).await;
    assert_eq!((direct.code, direct.reason()), (422, "Invalid"), "{:#}", direct.body);
    let answer = ns.wire.patch(&ns.core("pods/one/resize"), Patch::Strategic, &patch).await;
    if cluster.is_before(Kubernetes::V1_35) {
        // The feature gate is off in 1.32.
        assert_eq!(answer.code, 404);
        return;
    }
    let resized = answer.expect(200);
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_ne!(version_of(&resized), version_of(&made));
}

async fn a_budget_is_created_without_a_status(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nostatus").await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "one"},
        "spec": {"minAvailable": 1}, "status": {"disruptionsAllowed": 7, "currentHealthy": 7,
        "desiredHealthy": 7, "expectedPods": 7}});
    let made = ns.wire.post(&ns.budgets(""), &budget).await.expect(201);
    assert_eq!(made["status"]["disruptionsAllowed"], 0);
    assert_eq!(made["metadata"]["generation"], 1);
}
