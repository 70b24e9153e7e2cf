//! Tests of dry runs: requests that respond as usual and write nothing.

use quorate_testbed::{Cluster, Patch, stories};
use serde_json::json;

use crate::fixtures::{TestNamespace, config_map, version_of};

stories!(ApiServer:
    a_dry_run_create_stores_nothing,
    a_dry_run_update_changes_nothing,
    a_dry_run_delete_deletes_nothing,
    options_in_the_body_override_the_query,
    a_dry_run_fails_as_the_real_request_would,
    an_invalid_dry_run_value_is_rejected,
);

async fn a_dry_run_create_stores_nothing(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "create").await;
    let path = ns.core("configmaps?dryRun=All");
    let made = ns.wire.post(&path, &config_map("one", json!({}))).await.expect(201);
    assert!(made["metadata"]["uid"].is_string());
    assert_eq!(ns.code(&ns.core("configmaps/one")).await, 404);
}

async fn a_dry_run_update_changes_nothing(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "update").await;
    let made = ns.config_map("one", json!({"k": "1"})).await;
    let path = ns.core("configmaps/one?dryRun=All");
    let put = ns.wire.put(&path, &config_map("one", json!({"k": "2"}))).await.expect(200);
    assert_eq!(put["data"]["k"], "2");
    let patched = ns.wire.patch(&path, Patch::Merge, &json!({"data": {"k": "3"}})).await.expect(200);
    assert_eq!(patched["data"]["k"], "3");
    let stored = ns.wire.get(&ns.core("configmaps/one")).await.expect(200);
    assert_eq!(version_of(&stored), version_of(&made));
}

async fn a_dry_run_delete_deletes_nothing(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "delete").await;
    let made = ns.config_map("one", json!({})).await;
    let path = ns.core("configmaps/one?dryRun=All");
    ns.wire.call("DELETE", &path, "application/json", None).await.expect(200);
    ns.wire.delete(&ns.core("configmaps/one"), &json!({"dryRun": ["All"]})).await.expect(200);
    let stored = ns.wire.get(&ns.core("configmaps/one")).await.expect(200);
    assert_eq!(version_of(&stored), version_of(&made));
}

async fn options_in_the_body_override_the_query(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "body").await;
    ns.config_map("one", json!({})).await;
    // If a deletion has a body, the API server ignores the query.
    ns.wire.delete(&ns.core("configmaps/one?dryRun=All"), &json!({})).await.expect(200);
    assert_eq!(ns.code(&ns.core("configmaps/one")).await, 404);
}

async fn a_dry_run_fails_as_the_real_request_would(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "fails").await;
    ns.config_map("one", json!({})).await;
    let answer = ns.wire.post(&ns.core("configmaps?dryRun=All"), &config_map("one", json!({}))).await;
    assert_eq!((answer.code, answer.reason()), (409, "AlreadyExists"));
}

async fn an_invalid_dry_run_value_is_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "word").await;
    let answer = ns.wire.post(&ns.core("configmaps?dryRun=Some"), &config_map("one", json!({}))).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{:#}", answer.body);
    assert_eq!(ns.code(&ns.core("configmaps/one")).await, 404);
}
