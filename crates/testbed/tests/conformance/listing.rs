//! Tests of lists: selectors, pages, order.

use quorate_testbed::{Cluster, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, config_map, encoded, names, pod, pod_on, text};

stories!(ApiServer:
    a_list_is_sorted_by_name,
    labels_select,
    a_bad_selector_is_a_bad_request,
    fields_select,
    a_field_that_cannot_be_selected_is_rejected,
    a_long_list_comes_in_pages,
    the_pages_of_a_list_are_one_snapshot,
    a_list_can_span_all_namespaces,
    a_list_can_request_a_resource_version,
);

async fn labelled(ns: &TestNamespace) {
    for (name, labels) in [
        ("c", json!({"tier": "front", "env": "prod"})),
        ("a", json!({"tier": "back", "env": "test"})),
        ("b", json!({"tier": "back"})),
    ] {
        let mut object = config_map(name, json!({}));
        object["metadata"]["labels"] = labels;
        ns.create("configmaps", &object).await;
    }
}

/// The names of the listed objects, without those that every namespace has.
async fn listed(ns: &TestNamespace, query: &str) -> Vec<String> {
    let list = ns.wire.get(&ns.core(&format!("configmaps?{query}"))).await.expect(200);
    names(&list).into_iter().filter(|name| *name != "kube-root-ca.crt").map(str::to_owned).collect()
}

async fn a_list_is_sorted_by_name(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "order").await;
    labelled(&ns).await;
    let list = ns.wire.get(&ns.core("configmaps")).await.expect(200);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    assert_eq!(listed(&ns, "").await, ["a", "b", "c"]);
}

async fn labels_select(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "labels").await;
    labelled(&ns).await;
    for (selector, expected) in [
        ("tier=back", vec!["a", "b"]),
        ("tier==front", vec!["c"]),
        ("tier!=back", vec!["c"]),
        ("env!=prod", vec!["a", "b"]),
        ("env", vec!["a", "c"]),
        ("!env", vec!["b"]),
        ("tier in (back,front),env notin (test)", vec!["b", "c"]),
        ("tier=back,env=test", vec!["a"]),
        ("tier=none", vec![]),
    ] {
        let query = format!("labelSelector={}", encoded(selector));
        assert_eq!(listed(&ns, &query).await, expected, "{selector}");
    }
}

async fn a_bad_selector_is_a_bad_request(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "badselector").await;
    let answer = ns.wire.get(&ns.core("configmaps?labelSelector=a%20b%20c")).await;
    assert_eq!((answer.code, answer.reason()), (400, "BadRequest"));
}

async fn fields_select(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "fields").await;
    labelled(&ns).await;
    assert_eq!(listed(&ns, "fieldSelector=metadata.name%3Db").await, ["b"]);
    ns.create("pods", &pod("waiting")).await;
    ns.create("pods", &pod_on("placed", "some-node")).await;
    ns.set_phase("placed", "Running", Some(true)).await;
    for (selector, expected) in [
        ("spec.nodeName=some-node", vec!["placed"]),
        ("spec.nodeName=", vec!["waiting"]),
        ("status.phase=Running", vec!["placed"]),
        ("status.phase!=Running", vec!["waiting"]),
        ("status.phase=Running,spec.nodeName=another", vec![]),
    ] {
        let path = ns.core(&format!("pods?fieldSelector={}", encoded(selector)));
        assert_eq!(names(&ns.wire.get(&path).await.expect(200)), expected, "{selector}");
    }
}

async fn a_field_that_cannot_be_selected_is_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nofield").await;
    let answer = ns.wire.get(&ns.core("pods?fieldSelector=spec.nonsense%3Dx")).await;
    assert_eq!((answer.code, answer.reason()), (400, "BadRequest"));
    assert!(answer.message().contains("spec.nonsense"), "{}", answer.message());
}

async fn a_long_list_comes_in_pages(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "pages").await;
    for index in 0..5 {
        ns.create("pods", &pod(&format!("pod-{index}"))).await;
    }
    let first = ns.wire.get(&ns.core("pods?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["pod-0", "pod-1"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let second = next_page(&ns, &first).await;
    assert_eq!(names(&second), ["pod-2", "pod-3"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let third = next_page(&ns, &second).await;
    assert_eq!(names(&third), ["pod-4"]);
    assert_eq!(text(&third, "/metadata/continue"), "");
}

async fn the_pages_of_a_list_are_one_snapshot(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "aswas").await;
    for name in ["a", "b", "c"] {
        ns.create("pods", &pod(name)).await;
    }
    let first = ns.wire.get(&ns.core("pods?limit=1")).await.expect(200);
    ns.create("pods", &pod("bb")).await;
    ns.wire.delete(&ns.core("pods/c"), &json!({})).await.expect(200);
    let rest = ns
        .wire
        .get(&ns.core(&format!("pods?limit=9&continue={}", text(&first, "/metadata/continue"))))
        .await
        .expect(200);
    assert_eq!(names(&rest), ["b", "c"]);
    let answer = ns.wire.get(&ns.core("pods?limit=1&continue=nonsense")).await;
    assert_eq!((answer.code, answer.reason()), (400, "BadRequest"), "{:#}", answer.body);
}

async fn next_page(ns: &TestNamespace, page: &Value) -> Value {
    let token = text(page, "/metadata/continue");
    ns.wire.get(&ns.core(&format!("pods?limit=2&continue={token}"))).await.expect(200)
}

async fn a_list_can_span_all_namespaces(cluster: Cluster) {
    let (one, two) =
        (TestNamespace::new(&cluster, "first").await, TestNamespace::new(&cluster, "second").await);
    for ns in [&one, &two] {
        let mut object = pod("same-name");
        object["metadata"]["labels"] = json!({"story": one.name});
        ns.create("pods", &object).await;
    }
    let path = format!("/api/v1/pods?labelSelector=story%3D{}", one.name);
    let list = one.wire.get(&path).await.expect(200);
    let spaces: Vec<&str> = list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| text(item, "/metadata/namespace"))
        .collect();
    assert_eq!(spaces, [one.name.as_str(), two.name.as_str()]);
}

async fn a_list_can_request_a_resource_version(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "old").await;
    let made = ns.create("pods", &pod("one")).await;
    // A list that is not older than the write contains the new pod.
    let version = text(&made, "/metadata/resourceVersion");
    let path = ns.core(&format!("pods?resourceVersion={version}&resourceVersionMatch=NotOlderThan"));
    assert_eq!(names(&ns.wire.get(&path).await.expect(200)), ["one"]);
    ns.wire.get(&ns.core("pods?resourceVersion=0")).await.expect(200);
    let exact = ns.core(&format!("pods?resourceVersion={version}&resourceVersionMatch=Exact"));
    let list = ns.wire.get(&exact).await.expect(200);
    assert_eq!(text(&list, "/metadata/resourceVersion"), version);
}
