//! Tests of discovery, version and health endpoints.

use quorate_testbed::{Cluster, stories};
use serde_json::{Value, json};

stories!(ApiServer:
    the_version_is_served,
    the_core_resources_are_listed,
    the_groups_are_listed,
    the_resources_of_a_group_are_listed,
    health_is_served,
    kube_discovery_finds_the_resources,
);

fn resource<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list["resources"].as_array().expect("resources").iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {list}"))
}

async fn the_version_is_served(cluster: Cluster) {
    let version = cluster.wire().get("/version").await.expect(200);
    assert_eq!(version["major"], "1");
    assert!(version["gitVersion"].as_str().is_some_and(|text| text.starts_with("v1.")), "{version}");
}

async fn the_core_resources_are_listed(cluster: Cluster) {
    let wire = cluster.wire();
    assert_eq!(wire.get("/api").await.expect(200)["versions"], json!(["v1"]));
    let list = wire.get("/api/v1").await.expect(200);
    assert_eq!((&list["kind"], &list["groupVersion"]), (&json!("APIResourceList"), &json!("v1")));
    let pods = resource(&list, "pods");
    assert_eq!((&pods["kind"], &pods["namespaced"]), (&json!("Pod"), &json!(true)));
    assert_eq!((&pods["singularName"], &pods["shortNames"]), (&json!("pod"), &json!(["po"])));
    for verb in ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"] {
        assert!(pods["verbs"].as_array().expect("verbs").contains(&json!(verb)), "{verb}");
    }
    let eviction = resource(&list, "pods/eviction");
    assert_eq!(
        (&eviction["group"], &eviction["version"], &eviction["kind"]),
        (&json!("policy"), &json!("v1"), &json!("Eviction"))
    );
    for name in ["pods/status", "pods/binding", "nodes", "namespaces", "events", "configmaps"] {
        resource(&list, name);
    }
}

async fn the_groups_are_listed(cluster: Cluster) {
    let list = cluster.wire().get("/apis").await.expect(200);
    assert_eq!(list["kind"], "APIGroupList");
    let groups = list["groups"].as_array().expect("groups");
    for (name, version) in [
        ("apps", "apps/v1"),
        ("policy", "policy/v1"),
        ("coordination.k8s.io", "coordination.k8s.io/v1"),
        ("apiextensions.k8s.io", "apiextensions.k8s.io/v1"),
        ("admissionregistration.k8s.io", "admissionregistration.k8s.io/v1"),
    ] {
        let group = groups.iter().find(|group| group["name"] == name);
        let group = group.unwrap_or_else(|| panic!("{name} is not there"));
        assert_eq!(group["preferredVersion"]["groupVersion"], version);
    }
}

async fn the_resources_of_a_group_are_listed(cluster: Cluster) {
    let wire = cluster.wire();
    let list = wire.get("/apis/policy/v1").await.expect(200);
    let budgets = resource(&list, "poddisruptionbudgets");
    assert_eq!((&budgets["kind"], &budgets["shortNames"]), (&json!("PodDisruptionBudget"), &json!(["pdb"])));
    resource(&list, "poddisruptionbudgets/status");
    let list = wire.get("/apis/apps/v1").await.expect(200);
    let scale = resource(&list, "deployments/scale");
    assert_eq!((&scale["group"], &scale["kind"]), (&json!("autoscaling"), &json!("Scale")));
}

async fn health_is_served(cluster: Cluster) {
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(cluster.wire().get(path).await.expect(200), json!("ok"), "{path}");
    }
}

async fn kube_discovery_finds_the_resources(cluster: Cluster) {
    let client = cluster.admin();
    let discovery = kube::Discovery::new(client.clone()).run().await.expect("discovery");
    let gvk = kube::api::GroupVersionKind::gvk("policy", "v1", "PodDisruptionBudget");
    let (resource, capabilities) = discovery.resolve_gvk(&gvk).expect("budgets");
    assert_eq!(resource.plural, "poddisruptionbudgets");
    assert_eq!(capabilities.scope, kube::discovery::Scope::Namespaced);
}
