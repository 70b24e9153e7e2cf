//! Tests of watches.

use quorate_testbed::{Cluster, Kubernetes, Patch, stories};
use serde_json::{Value, json};

use crate::crd_schema::Widgets;
use crate::fixtures::{TestNamespace, pod, text, version_of};

stories!(ApiServer:
    a_watch_delivers_the_changes_after_a_version,
    a_watch_without_a_version_starts_with_the_existing_objects,
    a_watch_reports_objects_that_enter_or_leave_its_selector,
    a_watch_by_field_reports_a_phase_change,
    a_deletion_event_has_the_last_state_and_a_new_version,
    a_watch_from_an_expired_version_gets_410,
    a_watch_ends_after_its_timeout,
    a_bookmark_has_the_version_of_the_watch,
    a_watch_can_start_with_initial_events,
    a_watch_can_select_one_object,
    all_watches_deliver_the_same_events,
);

fn list_version(list: &Value) -> &str {
    text(list, "/metadata/resourceVersion")
}

async fn a_watch_delivers_the_changes_after_a_version(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "after").await;
    ns.create("pods", &pod("before")).await;
    let list = ns.wire.get(&ns.core("pods")).await.expect(200);
    let path = ns.core(&format!("pods?resourceVersion={}", list_version(&list)));
    let mut watch = ns.wire.watch(&path).await;
    ns.create("pods", &pod("one")).await;
    ns.set_phase("one", "Running", Some(true)).await;
    ns.wire.delete(&ns.core("pods/one"), &json!({})).await.expect(200);
    for expected in ["ADDED", "MODIFIED"] {
        assert_eq!(watch.next_change().await, (expected.to_owned(), "one".to_owned()));
    }
    // The deletion of a pod can be one event or two.
    loop {
        let (kind, name) = watch.next_change().await;
        assert_eq!(name, "one");
        match kind.as_str() {
            "DELETED" => break,
            other => assert_eq!(other, "MODIFIED"),
        }
    }
}

async fn a_watch_without_a_version_starts_with_the_existing_objects(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "begin").await;
    ns.create("pods", &pod("a")).await;
    ns.create("pods", &pod("b")).await;
    for query in ["pods", "pods?resourceVersion=0"] {
        let mut watch = ns.wire.watch(&ns.core(query)).await;
        let mut first = [watch.next_change().await, watch.next_change().await];
        first.sort();
        assert_eq!(first, ["a", "b"].map(|name| ("ADDED".to_owned(), name.to_owned())), "{query}");
    }
}

async fn a_watch_reports_objects_that_enter_or_leave_its_selector(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "enter").await;
    ns.create("pods", &pod("one")).await;
    let list = ns.wire.get(&ns.core("pods")).await.expect(200);
    let query = format!("pods?labelSelector=b%3Dtrue&resourceVersion={}", list_version(&list));
    let mut watch = ns.wire.watch(&ns.core(&query)).await;
    for label in [json!("true"), json!(null)] {
        let patch = json!({"metadata": {"labels": {"b": label}}});
        ns.wire.patch(&ns.core("pods/one"), Patch::Merge, &patch).await.expect(200);
    }
    assert_eq!(watch.next_change().await.0, "ADDED");
    let (kind, object) = watch.next().await.expect("an event");
    assert_eq!(kind, "DELETED");
    assert_eq!(object["metadata"]["labels"]["b"], "true", "the event has the last matching state");
}

async fn a_watch_by_field_reports_a_phase_change(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "phase").await;
    ns.create("pods", &pod("one")).await;
    let list = ns.wire.get(&ns.core("pods")).await.expect(200);
    let query = format!("pods?fieldSelector=status.phase%3DRunning&resourceVersion={}", list_version(&list));
    let mut watch = ns.wire.watch(&ns.core(&query)).await;
    ns.set_phase("one", "Running", None).await;
    ns.set_phase("one", "Failed", None).await;
    assert_eq!(watch.next_change().await.0, "ADDED");
    assert_eq!(watch.next_change().await.0, "DELETED");
}

async fn a_deletion_event_has_the_last_state_and_a_new_version(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "last").await;
    let made = ns.config_map("one", json!({"k": "v"})).await;
    let query = format!("configmaps?fieldSelector=metadata.name%3Done&resourceVersion={}", version_of(&made));
    let mut watch = ns.wire.watch(&ns.core(&query)).await;
    ns.wire.delete(&ns.core("configmaps/one"), &json!({})).await.expect(200);
    let (kind, last) = watch.next().await.expect("an event");
    assert_eq!((kind.as_str(), &last["data"]), ("DELETED", &json!({"k": "v"})));
    let number = |object| version_of(object).parse::<u64>().expect("a version that is a number");
    assert!(number(&last) > number(&made));
}

async fn a_watch_from_an_expired_version_gets_410(cluster: Cluster) {
    // For a new kind, the real API server has no older history. The embedded one drops its history on `compact`.
    let widgets = Widgets::new(&cluster, json!({"type": "object"}), json!({})).await;
    widgets.create("one", json!({})).await.expect(201);
    if let Some(server) = cluster.embedded() {
        server.faults().compact();
    }
    let mut watch = widgets.wire.watch(&widgets.path("?resourceVersion=1")).await;
    let (kind, status) = watch.next().await.expect("an event");
    assert_eq!(kind, "ERROR");
    assert_eq!((&status["code"], &status["reason"]), (&json!(410), &json!("Expired")));
    assert!(text(&status, "/message").starts_with("too old resource version: 1 ("), "{status}");
    assert_eq!(watch.next().await, None);
}

async fn a_watch_ends_after_its_timeout(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "timeup").await;
    let list = ns.wire.get(&ns.core("pods")).await.expect(200);
    let query = format!("pods?timeoutSeconds=1&resourceVersion={}", list_version(&list));
    let mut watch = ns.wire.watch(&ns.core(&query)).await;
    assert_eq!(watch.next().await, None);
}

async fn a_bookmark_has_the_version_of_the_watch(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "bookmark").await;
    let list = ns.wire.get(&ns.core("pods")).await.expect(200);
    // The last bookmark comes shortly before the end.
    let query =
        format!("pods?allowWatchBookmarks=true&timeoutSeconds=4&resourceVersion={}", list_version(&list));
    let mut watch = ns.wire.watch(&ns.core(&query)).await;
    let (kind, object) = watch.next().await.expect("an event");
    assert_eq!(kind, "BOOKMARK");
    assert_eq!((&object["kind"], &object["apiVersion"]), (&json!("Pod"), &json!("v1")));
    let number = |version: &str| version.parse::<u64>().expect("a version that is a number");
    assert!(number(version_of(&object)) >= number(list_version(&list)));
    assert_eq!(text(&object, "/metadata/name"), "");
}

async fn a_watch_can_start_with_initial_events(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "listfirst").await;
    ns.create("pods", &pod("a")).await;
    ns.create("pods", &pod("b")).await;
    let query = "pods?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = ns.wire.watch(&ns.core(query)).await;
    let mut first = [watch.next_change().await, watch.next_change().await];
    first.sort();
    assert_eq!(first, ["a", "b"].map(|name| ("ADDED".to_owned(), name.to_owned())));
    let (kind, object) = watch.next().await.expect("an event");
    assert_eq!(kind, "BOOKMARK");
    let mut annotations = object["metadata"]["annotations"].clone();
    // 1.32 also sends an empty list, for clients that need its kind.
    let blueprint = annotations
        .as_object_mut()
        .and_then(|annotations| annotations.remove("kubernetes.io/initial-events-list-blueprint"));
    assert_eq!(blueprint.is_some(), cluster.is_before(Kubernetes::V1_35));
    assert_eq!(annotations, json!({"k8s.io/initial-events-end": "true"}));
    ns.create("pods", &pod("c")).await;
    assert_eq!(watch.next_change().await, ("ADDED".to_owned(), "c".to_owned()));
}

async fn a_watch_can_select_one_object(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "single").await;
    ns.create("pods", &pod("other")).await;
    let made = ns.create("pods", &pod("one")).await;
    let query = format!("pods?fieldSelector=metadata.name%3Done&resourceVersion={}", version_of(&made));
    let mut watch = ns.wire.watch(&ns.core(&query)).await;
    ns.set_phase("other", "Running", None).await;
    ns.set_phase("one", "Running", None).await;
    assert_eq!(watch.next_change().await, ("MODIFIED".to_owned(), "one".to_owned()));
}

async fn all_watches_deliver_the_same_events(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "same").await;
    let list = ns.wire.get(&ns.core("pods")).await.expect(200);
    let query = ns.core(&format!("pods?resourceVersion={}", list_version(&list)));
    let mut early = ns.wire.watch(&query).await;
    for index in 0..10 {
        ns.create("pods", &pod(&format!("pod-{index}"))).await;
    }
    // A watch that starts later from the same version misses nothing.
    let mut late = ns.wire.watch(&query).await;
    for index in 0..10 {
        let expected = ("ADDED".to_owned(), format!("pod-{index}"));
        assert_eq!(early.next_change().await, expected);
        assert_eq!(late.next_change().await, expected);
    }
}
