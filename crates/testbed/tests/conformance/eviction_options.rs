//! Tests of the options and the effects of an eviction.

use quorate_testbed::{Cluster, stories};
use serde_json::json;

use crate::eviction::counted;
use crate::fixtures::{TestNamespace, pod_on, uid_of, version_of};

stories!(ApiServer:
    the_names_of_path_and_body_must_agree,
    an_eviction_accepts_only_post,
    the_older_version_is_accepted,
    an_unknown_version_is_rejected,
    a_dry_run_eviction_changes_nothing,
    a_dry_run_eviction_is_denied_like_a_real_one,
    dry_run_in_query_and_body_must_agree,
    an_eviction_can_require_a_uid,
    an_eviction_can_require_a_version,
    an_evicted_pod_gets_a_disruption_target_condition,
    an_eviction_can_set_the_grace_period,
);

async fn the_names_of_path_and_body_must_agree(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "names").await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict_with("one", json!({"metadata": {"name": "two"}})).await;
    let message = "name in URL does not match name in Eviction object";
    assert_eq!(answer.failure(), (400, "BadRequest", message));
    assert_eq!(ns.code(&ns.core("pods/one")).await, 200);
}

async fn an_eviction_accepts_only_post(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "posted").await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.wire.get(&ns.core("pods/one/eviction")).await;
    assert_eq!((answer.code, answer.reason()), (405, "MethodNotAllowed"));
}

async fn the_older_version_is_accepted(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "older").await;
    ns.pod("one", "Running", Some(true)).await;
    ns.evict_with("one", json!({"apiVersion": "policy/v1beta1"})).await.expect(201);
}

async fn an_unknown_version_is_rejected(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "unknown").await;
    ns.pod("one", "Running", Some(true)).await;
    assert_eq!(ns.evict_with("one", json!({"apiVersion": "policy/v2"})).await.code, 400);
    assert_eq!(ns.code(&ns.core("pods/one")).await, 200);
}

async fn a_dry_run_eviction_changes_nothing(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "dry").await;
    let pod = ns.pod("one", "Running", Some(true)).await;
    ns.budget("foo", json!({}), counted(1, 3, 2)).await;
    let before = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}});
    ns.wire.post(&ns.core("pods/one/eviction?dryRun=All"), &body).await.expect(201);
    ns.evict_with("one", json!({"deleteOptions": {"dryRun": ["All"]}})).await.expect(201);
    let mut both = body.clone();
    both["deleteOptions"] = json!({"dryRun": ["All"]});
    ns.wire.post(&ns.core("pods/one/eviction?dryRun=All"), &both).await.expect(201);
    let after = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
    assert_eq!(version_of(&after), version_of(&before));
    let left = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert_eq!(version_of(&left), version_of(&pod));
}

async fn a_dry_run_eviction_is_denied_like_a_real_one(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "dryrefused").await;
    ns.pod("one", "Running", Some(true)).await;
    ns.budget("foo", json!({}), counted(0, 2, 2)).await;
    let answer = ns.evict_with("one", json!({"deleteOptions": {"dryRun": ["All"]}})).await;
    assert_eq!((answer.code, answer.reason()), (429, "TooManyRequests"));
}

async fn dry_run_in_query_and_body_must_agree(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "drywords").await;
    ns.pod("one", "Running", Some(true)).await;
    let answer = ns.evict_with("one", json!({"deleteOptions": {"dryRun": ["Some"]}})).await;
    assert!(answer.code >= 400, "{:#}", answer.body);
    assert_eq!(ns.code(&ns.core("pods/one")).await, 200);
}

async fn an_eviction_can_require_a_uid(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "uid").await;
    let pod = ns.pod("one", "Running", Some(true)).await;
    let wrong = json!({"deleteOptions": {"preconditions": {"uid": "another"}}});
    let answer = ns.evict_with("one", wrong).await;
    assert_eq!((answer.code, answer.reason()), (409, "Conflict"));
    assert!(answer.message().contains("might have been deleted and then recreated"), "{}", answer.message());
    let right = json!({"deleteOptions": {"preconditions": {"uid": uid_of(&pod)}}});
    ns.evict_with("one", right).await.expect(201);
}

async fn an_eviction_can_require_a_version(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "version").await;
    let old = ns.pod("one", "Pending", None).await;
    let new = ns.set_phase("one", "Running", Some(true)).await;
    let late = json!({"deleteOptions": {"preconditions": {"resourceVersion": version_of(&old)}}});
    let answer = ns.evict_with("one", late).await;
    assert_eq!((answer.code, answer.reason()), (409, "Conflict"));
    assert!(answer.message().contains("might have been modified"), "{}", answer.message());
    let right = json!({"deleteOptions": {"preconditions": {"resourceVersion": version_of(&new)}}});
    ns.evict_with("one", right).await.expect(201);
}

async fn an_evicted_pod_gets_a_disruption_target_condition(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "marked").await;
    ns.create("pods", &pod_on("one", "some-node")).await;
    ns.set_phase("one", "Running", Some(true)).await;
    ns.evict("one").await.expect(201);
    let pod = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let mark = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget").expect("the mark");
    assert_eq!(
        (&mark["status"], &mark["reason"], &mark["message"]),
        (&json!("True"), &json!("EvictionByEvictionAPI"), &json!("Eviction API: evicting"))
    );
}

async fn an_eviction_can_set_the_grace_period(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "grace").await;
    ns.create("pods", &pod_on("one", "some-node")).await;
    ns.set_phase("one", "Running", Some(true)).await;
    ns.evict_with("one", json!({"deleteOptions": {"gracePeriodSeconds": 3}})).await.expect(201);
    let pod = ns.wire.get(&ns.core("pods/one")).await.expect(200);
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 3);
}
