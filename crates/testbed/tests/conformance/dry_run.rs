//! Tests of dry runs: requests that respond as usual and write nothing.

use quorate_testbed::{Cluster, Patch, stories};
use serde_json::json;

use crate::fixtures::{Space, config_map, version_of};

stories!(ApiServer:
    a_dry_run_create_stores_nothing,
    a_dry_run_update_changes_nothing,
    a_dry_run_delete_deletes_nothing,
    options_in_the_body_override_the_query,
    a_dry_run_fails_as_the_real_request_would,
    an_invalid_dry_run_value_is_rejected,
);

async fn a_dry_run_create_stores_nothing(cluster: Cluster) {
    let space = Space::new(&cluster, "create").await;
    let path = space.core("configmaps?dryRun=All");
    let made = space.wire.post(&path, &config_map("one", json!({}))).await.expect(201);
    assert!(made["metadata"]["uid"].is_string());
    assert_eq!(space.code(&space.core("configmaps/one")).await, 404);
}

async fn a_dry_run_update_changes_nothing(cluster: Cluster) {
    let space = Space::new(&cluster, "update").await;
    let made = space.config_map("one", json!({"k": "1"})).await;
    let path = space.core("configmaps/one?dryRun=All");
    let put = space.wire.put(&path, &config_map("one", json!({"k": "2"}))).await.expect(200);
    assert_eq!(put["data"]["k"], "2");
    let patched = space.wire.patch(&path, Patch::Merge, &json!({"data": {"k": "3"}})).await.expect(200);
    assert_eq!(patched["data"]["k"], "3");
    let stored = space.wire.get(&space.core("configmaps/one")).await.expect(200);
    assert_eq!(version_of(&stored), version_of(&made));
}

async fn a_dry_run_delete_deletes_nothing(cluster: Cluster) {
    let space = Space::new(&cluster, "delete").await;
    let made = space.config_map("one", json!({})).await;
    let path = space.core("configmaps/one?dryRun=All");
    space.wire.call("DELETE", &path, "application/json", None).await.expect(200);
    space.wire.delete(&space.core("configmaps/one"), &json!({"dryRun": ["All"]})).await.expect(200);
    let stored = space.wire.get(&space.core("configmaps/one")).await.expect(200);
    assert_eq!(version_of(&stored), version_of(&made));
}

async fn options_in_the_body_override_the_query(cluster: Cluster) {
    let space = Space::new(&cluster, "body").await;
    space.config_map("one", json!({})).await;
    // If a deletion has a body, the API server ignores the query.
    space.wire.delete(&space.core("configmaps/one?dryRun=All"), &json!({})).await.expect(200);
    assert_eq!(space.code(&space.core("configmaps/one")).await, 404);
}

async fn a_dry_run_fails_as_the_real_request_would(cluster: Cluster) {
    let space = Space::new(&cluster, "fails").await;
    space.config_map("one", json!({})).await;
    let answer = space.wire.post(&space.core("configmaps?dryRun=All"), &config_map("one", json!({}))).await;
    assert_eq!((answer.code, answer.reason()), (409, "AlreadyExists"));
}

async fn an_invalid_dry_run_value_is_rejected(cluster: Cluster) {
    let space = Space::new(&cluster, "word").await;
    let answer = space.wire.post(&space.core("configmaps?dryRun=Some"), &config_map("one", json!({}))).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{:#}", answer.body);
    assert_eq!(space.code(&space.core("configmaps/one")).await, 404);
}
