//! Tests of create and get.

use quorate_testbed::{Cluster, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, config_map, pod, text, uid_of, version_of};

stories!(ApiServer:
    a_created_object_gets_its_identity,
    a_name_can_be_used_only_once,
    a_missing_object_is_not_found,
    a_name_can_be_generated,
    an_object_without_a_name_is_rejected,
    a_namespace_must_exist,
    the_namespaces_of_body_and_path_must_agree,
    a_recreated_object_has_another_uid,
    an_unknown_resource_is_not_found,
    a_body_that_is_not_json_is_a_bad_request,
    defaults_are_set,
    a_pod_starts_pending,
);

async fn a_created_object_gets_its_identity(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "identity").await;
    let made = ns.config_map("one", json!({"k": "v"})).await;
    assert_eq!(made["apiVersion"], "v1");
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(text(&made, "/metadata/namespace"), ns.name);
    assert_eq!(uid_of(&made).len(), 36);
    assert!(version_of(&made).parse::<u64>().is_ok_and(|version| version > 0), "{made}");
    assert!(text(&made, "/metadata/creationTimestamp").ends_with('Z'), "{made}");
    assert_eq!(ns.wire.get(&ns.core("configmaps/one")).await.expect(200), made);
}

async fn a_name_can_be_used_only_once(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "twice").await;
    ns.config_map("one", json!({})).await;
    let again = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({}))).await;
    assert_eq!(again.failure(), (409, "AlreadyExists", "configmaps \"one\" already exists"));
    assert_eq!(again.body["details"], json!({"name": "one", "kind": "configmaps"}));
}

async fn a_missing_object_is_not_found(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "missing").await;
    for answer in [
        ns.wire.get(&ns.core("configmaps/none")).await,
        ns.wire.delete(&ns.core("configmaps/none"), &json!({})).await,
        ns.wire.put(&ns.core("configmaps/none"), &config_map("none", json!({}))).await,
    ] {
        assert_eq!(answer.failure(), (404, "NotFound", "configmaps \"none\" not found"));
        assert_eq!(answer.body["status"], "Failure");
        assert_eq!(answer.body["kind"], "Status");
    }
    let budget = ns.wire.get(&ns.budgets("/none")).await;
    assert_eq!(budget.failure(), (404, "NotFound", "poddisruptionbudgets.policy \"none\" not found"));
    assert_eq!(
        budget.body["details"],
        json!({"name": "none", "group": "policy", "kind": "poddisruptionbudgets"})
    );
}

async fn a_name_can_be_generated(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "generated").await;
    let mut object = config_map("", json!({}));
    object["metadata"] = json!({"generateName": "some-"});
    let made = ns.create("configmaps", &object).await;
    let name = text(&made, "/metadata/name");
    assert_eq!((name.len(), name.starts_with("some-")), (10, true), "{name}");
    assert_eq!(text(&made, "/metadata/generateName"), "some-");
}

async fn an_object_without_a_name_is_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nameless").await;
    let mut object = config_map("", json!({}));
    object["metadata"] = json!({});
    let answer = ns.wire.post(&ns.core("configmaps"), &object).await;
    let message =
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required";
    assert_eq!(answer.failure(), (422, "Invalid", message));
}

async fn a_namespace_must_exist(cluster: Cluster) {
    let wire = cluster.wire();
    let answer = wire.post("/api/v1/namespaces/nowhere/configmaps", &config_map("one", json!({}))).await;
    assert_eq!(answer.failure(), (404, "NotFound", "namespaces \"nowhere\" not found"));
    // A list in a namespace that does not exist is empty, not an error.
    assert_eq!(wire.get("/api/v1/namespaces/nowhere/configmaps").await.expect(200)["items"], json!([]));
}

async fn the_namespaces_of_body_and_path_must_agree(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "agree").await;
    let mut object = config_map("one", json!({}));
    object["metadata"]["namespace"] = json!("another");
    let answer = ns.wire.post(&ns.core("configmaps"), &object).await;
    let message = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!(answer.failure(), (400, "BadRequest", message));
}

async fn a_recreated_object_has_another_uid(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "again").await;
    let first = ns.config_map("one", json!({})).await;
    ns.wire.delete(&ns.core("configmaps/one"), &json!({})).await.expect(200);
    let second = ns.config_map("one", json!({})).await;
    assert_ne!(uid_of(&first), uid_of(&second));
    let number = |object| version_of(object).parse::<u64>().expect("a version that is a number");
    assert!(number(&first) < number(&second));
}

async fn an_unknown_resource_is_not_found(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "unknown").await;
    assert_eq!(ns.code(&ns.core("nonsense")).await, 404);
    assert_eq!(ns.code(&ns.path("nonsense.example.com/v1", "things")).await, 404);
    assert_eq!(ns.code("/apis/policy/v9").await, 404);
}

async fn a_body_that_is_not_json_is_a_bad_request(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nojson").await;
    let answer =
        ns.wire.call("POST", &ns.core("configmaps"), "application/json", Some(&json!("no object"))).await;
    assert_eq!((answer.code, answer.reason()), (400, "BadRequest"), "{:#}", answer.body);
    let answer = ns.wire.post(&ns.core("configmaps"), &pod("a-pod")).await;
    assert_eq!((answer.code, answer.reason()), (400, "BadRequest"), "{:#}", answer.body);
}

async fn defaults_are_set(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "defaults").await;
    let made = ns.create("pods", &pod("one")).await;
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    assert_eq!(made["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(made["spec"]["serviceAccountName"], "default");
}

async fn a_pod_starts_pending(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "pending").await;
    let mut object = pod("one");
    object["status"] = json!({"phase": "Running"});
    let made = ns.create("pods", &object).await;
    assert_eq!(made["status"]["phase"], "Pending");
}
