//! Tests of updates, resource versions and generations.

use quorate_testbed::{Cluster, Patch, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, config_map, deployment, text, version_of};

stories!(ApiServer:
    an_update_from_an_old_version_conflicts,
    an_update_without_a_version_overwrites,
    a_budget_is_not_updated_without_a_version,
    an_update_that_changes_nothing_writes_nothing,
    the_names_of_body_and_path_must_agree,
    a_uid_cannot_be_changed,
    identity_survives_an_update,
    the_generation_counts_changes_of_the_spec,
    versions_are_global,
);

async fn an_update_from_an_old_version_conflicts(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "conflict").await;
    let first = ns.config_map("one", json!({"k": "1"})).await;
    let path = ns.core("configmaps/one");
    let mut second = first.clone();
    second["data"]["k"] = json!("2");
    let second = ns.wire.put(&path, &second).await.expect(200);
    assert_ne!(version_of(&first), version_of(&second));

    let late = ns.wire.put(&path, &first).await;
    let message = "Operation cannot be fulfilled on configmaps \"one\": the object has been modified; please apply \
                   your changes to the latest version and try again";
    assert_eq!(late.failure(), (409, "Conflict", message));
    assert_eq!(ns.wire.get(&path).await.expect(200), second);
}

async fn an_update_without_a_version_overwrites(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "unconditional").await;
    ns.config_map("one", json!({"k": "1"})).await;
    let path = ns.core("configmaps/one");
    let after = ns.wire.put(&path, &config_map("one", json!({"k": "2"}))).await.expect(200);
    assert_eq!(after["data"]["k"], "2");
}

async fn a_budget_is_not_updated_without_a_version(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "conditional").await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "one"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "true"}}}});
    ns.wire.post(&ns.budgets(""), &budget).await.expect(201);
    let answer = ns.wire.put(&ns.budgets("/one"), &budget).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    assert!(answer.message().contains("metadata.resourceVersion: Invalid value"), "{}", answer.message());
    assert!(answer.message().ends_with("must be specified for an update"), "{}", answer.message());
}

async fn an_update_that_changes_nothing_writes_nothing(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "nochange").await;
    let made = ns.config_map("one", json!({"k": "1"})).await;
    let path = ns.core("configmaps/one");
    let put = ns.wire.put(&path, &made).await.expect(200);
    assert_eq!(version_of(&put), version_of(&made));
    let patched = ns.wire.patch(&path, Patch::Merge, &json!({"data": {"k": "1"}})).await.expect(200);
    assert_eq!(version_of(&patched), version_of(&made));
}

async fn the_names_of_body_and_path_must_agree(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "names").await;
    ns.config_map("one", json!({})).await;
    let answer = ns.wire.put(&ns.core("configmaps/one"), &config_map("two", json!({}))).await;
    let message = "the name of the object (two) does not match the name on the URL (one)";
    assert_eq!(answer.failure(), (400, "BadRequest", message));
}

async fn a_uid_cannot_be_changed(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "uid").await;
    let mut object = ns.config_map("one", json!({})).await;
    object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let answer = ns.wire.put(&ns.core("configmaps/one"), &object).await;
    assert_eq!((answer.code, answer.reason()), (409, "Conflict"), "{:#}", answer.body);
}

async fn identity_survives_an_update(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "survives").await;
    let made = ns.config_map("one", json!({})).await;
    let after =
        ns.wire.put(&ns.core("configmaps/one"), &config_map("one", json!({"k": "2"}))).await.expect(200);
    for field in ["uid", "creationTimestamp", "namespace"] {
        assert_eq!(made["metadata"][field], after["metadata"][field], "{field}");
    }
}

async fn the_generation_counts_changes_of_the_spec(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "generation").await;
    let made = ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("web", 1)).await.expect(201);
    assert_eq!(made["metadata"]["generation"], 1);
    let path = ns.path("apps/v1", "deployments/web");
    let labelled =
        ns.wire.patch(&path, Patch::Merge, &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 1, "a label does not change the spec");
    let scaled = ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 2}})).await.expect(200);
    assert_eq!(scaled["metadata"]["generation"], 2);
    let reported = ns
        .wire
        .patch(&format!("{path}/status"), Patch::Merge, &json!({"status": {"replicas": 1}}))
        .await
        .expect(200);
    assert_eq!(reported["metadata"]["generation"], 2, "a status does not change the spec");
    assert_ne!(version_of(&reported), version_of(&scaled));
}

async fn versions_are_global(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "global").await;
    let one = ns.config_map("one", json!({})).await;
    let two = ns.wire.post(&ns.path("apps/v1", "deployments"), &deployment("two", 1)).await.expect(201);
    let list = ns.wire.get(&ns.core("configmaps")).await.expect(200);
    let number = |version: &str| version.parse::<u64>().expect("a version that is a number");
    assert!(number(version_of(&one)) < number(version_of(&two)));
    assert!(number(version_of(&two)) <= number(text(&list, "/metadata/resourceVersion")));
}
