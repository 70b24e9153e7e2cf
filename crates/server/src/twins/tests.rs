//! The reconciler against an API server that records the writes.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use quorate_engine::basics::ObjectKey;
use serde_json::{Value, json};

use super::*;
use crate::raw_budgets::RawBudgets;

/// The writes, as method and path; each write is answered with `code`.
type Log = Arc<Mutex<Vec<String>>>;

fn api(code: u16) -> (Client, Log) {
    let log = Log::default();
    let noted = log.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        noted.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
        let body = match code {
            200 => json!({"metadata": {"name": "web"}, "spec": {}}),
            code => {
                json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "No"})
            }
        };
        let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
    });
    (Client::new(service, "default"), log)
}

fn started(client: &Client, leader: watch::Receiver<bool>) -> (Inbox, JoinHandle<()>) {
    let events = Events::start(client.clone(), "test".to_owned(), Arc::new(RawBudgets::default()));
    start(client, events, leader)
}

fn key() -> ObjectKey {
    ObjectKey::new("shop", "web")
}

fn native(scope: &str) -> slim::PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "p", "annotations": {"quorate.dev/budget-scope": scope}},
        "spec": {"selector": {}, "maxUnavailable": 1},
    }))
    .unwrap()
}

fn twin(owner: &str) -> StoredBudget {
    let value: Value = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "t", "ownerReferences": [
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "name": "web", "uid": owner, "controller": true}]}});
    serde_json::from_value(value).unwrap()
}

/// Long enough for all writes that are due, and shorter than the first pause.
async fn a_moment() {
    tokio::time::sleep(DEBOUNCE * 5).await;
}

const BUDGET: &str = "/apis/policy.quorate.dev/v1alpha1/namespaces/shop/disruptionbudgets";

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes_and_a_new_leader_does_what_is_undone() {
    let (client, log) = api(200);
    let (leader, holds) = watch::channel(false);
    let (inbox, _task) = started(&client, holds);
    inbox.natives([(&key(), Some(&native("Workload")))].into_iter());
    inbox.budgets(std::iter::empty());
    a_moment().await;
    assert!(log.lock().unwrap().is_empty(), "{log:?}");
    leader.send_replace(true);
    a_moment().await;
    assert_eq!(*log.lock().unwrap(), [format!("POST {BUDGET}")]);
    leader.send_replace(false);
    inbox.native(&key(), None);
    inbox.budget(key(), Some(&twin("p")));
    a_moment().await;
    assert_eq!(log.lock().unwrap().len(), 1, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn no_twin_is_deleted_before_both_lists_are_there() {
    let (client, log) = api(200);
    let (_holder, holds) = watch::channel(true);
    let (inbox, _task) = started(&client, holds);
    inbox.budgets([(key(), &twin("p"))].into_iter());
    a_moment().await;
    assert!(log.lock().unwrap().is_empty(), "its native budget may exist: {log:?}");
    inbox.natives(std::iter::empty());
    a_moment().await;
    assert_eq!(*log.lock().unwrap(), [format!("DELETE {BUDGET}/web")]);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_scope_is_reported_by_a_condition_and_an_event() {
    let (client, log) = api(200);
    let (_holder, holds) = watch::channel(true);
    let (inbox, _task) = started(&client, holds);
    inbox.natives([(&key(), Some(&native("Gang")))].into_iter());
    inbox.budgets(std::iter::empty());
    a_moment().await;
    let condition = "PATCH /apis/policy/v1/namespaces/shop/poddisruptionbudgets/web/status";
    assert_eq!(*log.lock().unwrap(), [condition, "POST /apis/events.k8s.io/v1/namespaces/shop/events"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_retried_and_a_lost_race_is_not() {
    // The pauses between retries grow.
    for (code, tries) in [(500, 10..30), (409, 1..2)] {
        let (client, log) = api(code);
        let (_holder, holds) = watch::channel(true);
        let (inbox, _task) = started(&client, holds);
        inbox.natives([(&key(), Some(&native("Workload")))].into_iter());
        inbox.budgets(std::iter::empty());
        tokio::time::sleep(Duration::from_secs(600)).await;
        let tried = log.lock().unwrap().len();
        assert!(tries.contains(&tried), "{code}: {tried}");
    }
}
