//! Calls the router without a socket, with a replica whose facts the test sets.

use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body as KubeBody;
use quorate_engine::Snapshot;
use quorate_engine::basics::Version;
use quorate_engine::ledger::{Event, Settings};
use quorate_kit::watch::Interruptions;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tower::ServiceExt as _;

use super::*;
use crate::actor::{self, ActorOutputs};
use crate::calls::Calls;
use crate::raw_budgets::RawBudgets;
use crate::replicas::{Acknowledgement, ReplicaLeases};

/// A client whose API server never answers.
fn silence() -> kube::Client {
    let silent = tower::service_fn(|_: Request<KubeBody>| async {
        std::future::pending::<Result<http::Response<KubeBody>, std::convert::Infallible>>().await
    });
    kube::Client::new(silent, "default")
}

/// A state whose API server never answers. With `synced`, its replica knows only the pod `p`, and may decide.
async fn state(synced: bool) -> AdmissionState {
    let client = silence();
    let leases = Arc::new(ReplicaLeases::new(
        client.clone(),
        "quorate".to_owned(),
        "test".to_owned(),
        Duration::ZERO,
        Interruptions::default(),
    ));
    let raw_budgets = Arc::new(RawBudgets::default());
    let calls = Arc::new(Calls::new(client.clone(), raw_budgets.clone(), leases, Arc::default()));
    let (events, metrics) =
        (Events::start(client, "test".to_owned(), raw_budgets), Arc::new(Metrics::default()));
    let outbox = ActorOutputs {
        statuses: mpsc::unbounded_channel().0,
        acknowledged: watch::channel(Acknowledgement::default()).0,
        synced: watch::channel(false).0,
        stale: watch::Sender::new(None),
        enforcing: watch::channel(std::collections::BTreeSet::new()).0,
        events: events.clone(),
        metrics: metrics.clone(),
    };
    let replica = actor::start(Settings::new("test"), Gates::default(), calls, outbox, Vec::new());
    if synced {
        let pod = quorate_intake::objects::pod(&serde_json::from_value(pod()).unwrap()).unwrap();
        replica.send(Event::List(Snapshot::Pods(vec![pod], Version(5)))).await;
        replica.send(Event::Synced).await;
        replica.send(Event::Serving(true)).await;
    }
    AdmissionState::new(replica, Gates::default(), events, metrics, watch::channel(Some(true)).1, |_| {
        Box::pin(std::future::ready(true))
    })
}

async fn post(state: AdmissionState, path: &str, body: impl Into<Body>) -> Value {
    let request = Request::post(path).body(body.into()).unwrap();
    let response = router(state, || false).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "every review gets an answer with code 200");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&review["apiVersion"], &review["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    review["response"].clone()
}

fn review(request: &Value) -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

fn eviction(user: &str) -> Value {
    json!({
        "uid": "u-1", "operation": "CREATE", "subResource": "eviction", "namespace": "a", "name": "p",
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "userInfo": {"username": user},
        "object": {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "a"}},
    })
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "a", "uid": "p-1", "resourceVersion": "5"},
        "status": {"phase": "Running"},
    })
}

fn deletion() -> Value {
    json!({
        "uid": "u-2", "operation": "DELETE", "namespace": "a", "name": "p", "userInfo": {"username": "alice"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "oldObject": pod(),
    })
}

#[tokio::test]
async fn before_the_initial_sync_requests_are_denied_with_429() {
    let response = post(state(false).await, EVICTIONS, review(&eviction("alice"))).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["uid"], "u-1");
    assert_eq!(response["status"]["code"], 429);
    assert_eq!(response["status"]["reason"], "TooManyRequests");
    assert_eq!(response["status"]["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert!(response["status"]["details"].get("retryAfterSeconds").is_none());
    let message = response["status"]["message"].as_str().unwrap();
    assert_eq!(message, "not now: Quorate is still starting. Retry in a moment.");
}

#[tokio::test]
async fn a_kubelet_is_always_admitted() {
    let response = post(state(false).await, EVICTIONS, review(&eviction("system:node:worker-1"))).await;
    assert_eq!(response["allowed"], true, "{response}");
}

#[tokio::test]
async fn a_pod_without_a_budget_is_admitted() {
    let response = post(state(true).await, PODS, review(&deletion())).await;
    assert_eq!(response["allowed"], true, "{response}");
    assert!(response.get("patch").is_none(), "a delete is not pinned");
}

#[tokio::test]
async fn a_process_that_may_not_answer_admits_nothing() {
    let state =
        AdmissionState { may_answer: Arc::new(|_| Box::pin(std::future::ready(false))), ..state(true).await };
    let response = post(state, PODS, review(&deletion())).await;
    assert_eq!(response["status"]["code"], 429, "{response}");
}

/// A change of the labels of the pod.
fn relabel() -> Value {
    let mut after = pod();
    after["metadata"]["labels"] = json!({"role": "primary"});
    json!({
        "uid": "u-4", "operation": "UPDATE", "namespace": "a", "name": "p", "userInfo": {"username": "alice"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "oldObject": pod(), "object": after,
    })
}

#[tokio::test]
async fn a_relabel_that_no_budget_decides_waits_for_no_lease() {
    let state =
        AdmissionState { may_answer: Arc::new(|_| Box::pin(std::future::ready(false))), ..state(true).await };
    let response = post(state, LABELS, review(&relabel())).await;
    assert_eq!(response["allowed"], true, "{response}");
}

/// A pod whose probe is empty.
fn creation() -> Value {
    let annotations = json!({"quorate.dev/disruption-probe.main": "{}"});
    let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "main"}]}});
    json!({
        "uid": "u-3", "operation": "CREATE", "namespace": "a", "name": "p", "userInfo": {"username": "alice"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": pod,
    })
}

#[tokio::test]
async fn an_invalid_probe_is_rejected_while_the_gate_is_on() {
    // Also before the initial sync: validation needs only the pod itself.
    let response = post(state(false).await, PROBES, review(&creation())).await;
    assert_eq!(response["status"]["code"], 422, "{response}");
    let field = &response["status"]["details"]["causes"][0]["field"];
    assert_eq!(field, "metadata.annotations[quorate.dev/disruption-probe.main]");

    let off =
        AdmissionState { gates: Gates { disruption_probe: false, ..Gates::default() }, ..state(true).await };
    assert_eq!(post(off, PROBES, review(&creation())).await["allowed"], true);
}

/// With the feature off and on: a pod without a controller, and a pod that cannot be read.
#[tokio::test]
async fn a_pod_is_admitted_unchanged_when_no_owner_can_be_added() {
    let mut odd = creation();
    odd["object"]["metadata"] = json!(7);
    for body in [review(&creation()), review(&odd)] {
        let off = state(false).await;
        let owners = Owners::new(silence(), off.events.clone());
        let on = state(false).await.with_owners(Some(owners));
        for state in [off, on] {
            let response = post(state, OWNERS, body.clone()).await;
            assert_eq!(response, json!({"uid": "u-3", "allowed": true}));
        }
    }
}

#[tokio::test]
async fn an_answer_comes_before_the_webhook_times_out() {
    // The pod is not known, so the replica reads it, but the API server does not answer.
    let mut unknown = eviction("alice");
    unknown["name"] = json!("unknown");
    unknown["object"]["metadata"]["name"] = json!("unknown");
    let state = state(true).await;
    let late = post(state.clone(), "/evictions?timeout=30s", review(&unknown));
    let soon = post(state, "/evictions?timeout=1s", review(&unknown));
    // Polled in this order: `soon` is first only because its timeout is shorter.
    let response = tokio::select! {
        biased;
        response = late => panic!("the one with the longer timeout is answered first: {response}"),
        response = soon => response,
    };
    assert_eq!(response["status"]["code"], 429, "{response}");
    let message = response["status"]["message"].as_str().unwrap();
    assert_eq!(message, "not now: the budget could not be written in time. Retry in a moment.");
}

#[tokio::test]
async fn a_review_that_cannot_be_read_is_rejected() {
    for (body, uid) in [
        (String::new(), ""),
        ("{".to_owned(), ""),
        ("[]".to_owned(), ""),
        (json!({"request": {"uid": "u-3"}}).to_string(), "u-3"),
        (review(&json!({"uid": "u-4", "operation": "DELETE", "resource": {"resource": "pods"}})), "u-4"),
    ] {
        let response = post(state(true).await, PODS, body.clone()).await;
        assert_eq!(response["allowed"], false, "{body}");
        assert_eq!(response["uid"], uid, "{body}");
        assert_eq!(response["status"]["code"], 400, "{body}");
    }
    let response = post(state(true).await, PODS, vec![b' '; LIMIT + 1]).await;
    assert_eq!(response["status"]["code"], 413);
}

/// A review from this client: a body that states its length and never arrives, if there is no text.
fn sent_by(client: u8, length: usize, text: Option<String>) -> Request<Body> {
    let body = text.map_or_else(
        || Body::from_stream(futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>()),
        Body::from,
    );
    let request = Request::post(PODS).header(http::header::CONTENT_LENGTH, length);
    let address = quorate_kit::https::ClientAddress(IpAddr::from([10, 0, 0, client]));
    request.extension(address).body(body).unwrap()
}

async fn code_of(state: AdmissionState, request: Request<Body>) -> Value {
    let response = router(state, || false).oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    review["response"]["status"]["code"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_not_waited_for() {
    let (state, began) = (state(true).await, tokio::time::Instant::now());
    assert_eq!(code_of(state.clone(), sent_by(1, 1000, None)).await, json!(408));
    assert_eq!(began.elapsed().as_secs(), 5);
    // A body that is too large is not even begun.
    assert_eq!(code_of(state, sent_by(1, LIMIT + 1, None)).await, json!(413));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_all_it_can_leaves_room_for_another() {
    let state = state(true).await;
    let mut greedy = tokio::task::JoinSet::new();
    for _ in 0..200 {
        greedy.spawn(code_of(state.clone(), sent_by(1, LIMIT, None)));
    }
    for _ in 0..2000 {
        greedy.spawn(code_of(state.clone(), sent_by(1, 1000, None)));
    }
    tokio::task::yield_now().await;
    let began = tokio::time::Instant::now();
    let text = review(&deletion());
    let response = router(state.clone(), || false).oneshot(sent_by(2, text.len(), Some(text))).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(review["response"]["allowed"], json!(true), "{review}");
    assert_eq!(began.elapsed(), Duration::ZERO);
    // None of the others waits for ever.
    while let Some(code) = greedy.join_next().await {
        assert!([json!(408), json!(429)].contains(&code.unwrap()));
    }
    // Its turn comes before the deadline of nine seconds, and the body has five more.
    assert!(began.elapsed() <= Duration::from_secs(14), "{:?}", began.elapsed());
}

#[test]
fn the_deadline_is_nine_tenths_of_the_timeout_and_27_seconds_at_most() {
    for (given, milliseconds) in [
        (None, 9_000),
        (Some("5s"), 4_500),
        (Some("30s"), 27_000),
        (Some("4000000000s"), 27_000),
        (Some("0s"), 9_000),
        (Some("soon"), 9_000),
    ] {
        let params = super::Params { timeout: given.map(str::to_owned) };
        assert_eq!(params.deadline(Time(1)), Time(1 + milliseconds), "{given:?}");
    }
}
