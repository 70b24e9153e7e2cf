//! Tests of admission webhooks: how the server calls them, and what clients see of their responses.

use std::sync::Arc;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use quorate_devcluster::apiserver::{ObservedChange, ObservedRequest, Observer, Options, Server};
use serde_json::{Value, json};

use crate::fixture::{Webhook, admin, evict, pod, pods, post, refusal, running, server};

fn allow() -> Value {
    json!({"allowed": true})
}

fn patch(operations: &Value) -> Value {
    let patch = serde_json::to_value(k8s_openapi::ByteString(operations.to_string().into_bytes())).unwrap();
    json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"})
}

#[tokio::test]
async fn the_denial_of_an_eviction_reaches_the_client_word_for_word() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    let hook = Webhook::start(|_| {
        json!({"allowed": false, "status": {
            "code": 429, "reason": "TooManyRequests", "message": "not now",
            "details": {"causes": [{"reason": "DisruptionBudget", "message": "why"}]},
        }})
    })
    .await;
    hook.register(&client, false, json!({})).await;
    let (code, status) = evict(&client, "a", json!({"gracePeriodSeconds": 5}), "").await;
    assert_eq!(code, 429);
    assert_eq!(status["message"], "admission webhook \"hook.example.com\" denied the request: not now");
    assert_eq!(
        (status["reason"].as_str(), status["status"].as_str()),
        (Some("TooManyRequests"), Some("Failure"))
    );
    assert_eq!(status["details"]["causes"][0]["message"], "why");
    let request = hook.requests.lock()[0].clone();
    assert_eq!(request["kind"], json!({"group": "policy", "version": "v1", "kind": "Eviction"}));
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "pods"}));
    assert_eq!(request["subResource"], "eviction");
    assert_eq!(request["operation"], "CREATE");
    assert_eq!((request["name"].as_str(), request["namespace"].as_str()), (Some("a"), Some("default")));
    assert_eq!(request["oldObject"], json!(null));
    assert_eq!(request["object"]["deleteOptions"]["gracePeriodSeconds"], 5);
    assert_eq!(request["dryRun"], false);
    assert_eq!(request["userInfo"]["username"], "kubernetes-admin");
    assert!(request["userInfo"]["groups"].as_array().unwrap().contains(&json!("system:authenticated")));
}

#[tokio::test]
async fn an_eviction_calls_webhooks_once_and_its_delete_does_not() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    let hook = Webhook::start(|_| allow()).await;
    hook.register(&client, false, json!({})).await;
    assert_eq!(evict(&client, "a", json!({}), "").await.0, 201);
    assert_eq!(evict(&client, "missing", json!({}), "").await.0, 404);
    let requests = hook.requests.lock();
    let operations: Vec<_> = requests
        .iter()
        .map(|r| (r["operation"].as_str().unwrap(), r["subResource"].as_str().unwrap()))
        .collect();
    assert_eq!(
        operations,
        [("CREATE", "eviction"), ("CREATE", "eviction")],
        "also for a pod that does not exist"
    );
}

#[tokio::test]
async fn deletes_call_webhooks_with_the_old_object_and_twice_without_grace() {
    let server = server().await;
    let client = admin(&server);
    let made = running(&client, "a", true).await;
    let hook = Webhook::start(|_| allow()).await;
    hook.register(&client, false, json!({})).await;
    pods(&client).delete("a", &DeleteParams::default()).await.unwrap();
    pods(&client).delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(
        hook.requests.lock().len(),
        1,
        "a repeat that does not shorten the grace period is not reviewed"
    );
    pods(&client).delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    {
        let requests = hook.requests.lock();
        assert_eq!(requests.len(), 3, "once to mark, once to remove");
        assert_eq!(requests[0]["object"], json!(null));
        assert_eq!(requests[0]["oldObject"]["metadata"]["uid"], json!(made.metadata.uid));
        assert!(requests[0]["oldObject"]["metadata"].get("deletionTimestamp").is_none());
        assert!(requests[2]["oldObject"]["metadata"].get("deletionTimestamp").is_some());
        assert_eq!(requests[2]["options"]["gracePeriodSeconds"], 0);
        assert_eq!(requests[0]["options"]["kind"], "DeleteOptions");
    }
    running(&client, "b", true).await;
    hook.requests.lock().clear();
    pods(&client).delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let requests = hook.requests.lock();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].get("name").is_none(), "deletecollection has no name");
    assert_eq!(requests[0]["oldObject"]["metadata"]["name"], "b");
}

#[tokio::test]
async fn a_mutating_webhook_pins_an_eviction() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    let hook = Webhook::start(|request| {
        if request["subResource"] != "eviction" {
            return allow();
        }
        patch(
            &json!([{"op": "add", "path": "/deleteOptions", "value": {"preconditions": {"uid": "another"}}}]),
        )
    })
    .await;
    hook.register(&client, true, json!({})).await;
    let (code, status) = evict(&client, "a", json!({}), "").await;
    assert_eq!(code, 409);
    assert!(
        status["message"].as_str().unwrap().contains("the UID in the precondition (another) does not match")
    );
}

#[tokio::test]
async fn a_mutating_webhook_changes_a_new_pod_before_it_is_validated() {
    let server = server().await;
    let client = admin(&server);
    let hook = Webhook::start(|request| {
        assert_eq!(request["object"]["metadata"].get("uid"), None);
        patch(&json!([{"op": "add", "path": "/metadata/labels/added", "value": "yes"}]))
    })
    .await;
    hook.register(&client, true, json!({"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]})).await;
    let last = Webhook::start(|request| {
        assert!(request["object"]["metadata"]["uid"].is_string());
        if request["object"]["metadata"]["labels"]["added"] == "yes" {
            allow()
        } else {
            json!({"allowed": false})
        }
    })
    .await;
    last.register(&client, false, json!({})).await;
    let made = pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    assert_eq!(made.metadata.labels.unwrap()["added"], "yes");
}

#[tokio::test]
async fn the_failure_policy_applies_to_an_unreachable_webhook() {
    let server = server().await;
    let client = admin(&server);
    let hook = Webhook::start(|_| allow()).await;
    let nowhere = json!({"clientConfig": {"url": "https://127.0.0.1:1/review"}});
    let mut ignoring = nowhere.clone();
    ignoring["failurePolicy"] = "Ignore".into();
    hook.register(&client, false, ignoring).await;
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    hook.register(&client, false, nowhere).await;
    let status = refusal(pods(&client).create(&PostParams::default(), &pod("b")).await);
    assert_eq!((status.code, status.reason.as_str()), (500, "InternalError"));
    assert_eq!(
        status.message,
        "Internal error occurred: failed calling webhook \"hook.example.com\": failed to call webhook: Post \"https://127.0.0.1:1/review?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused"
    );
}

/// The names of the objects that were written, and whether a webhook did not answer.
#[derive(Debug, Default)]
struct ObservedWrites(Mutex<Vec<(String, bool)>>);

impl Observer for ObservedWrites {
    fn changed(&self, _: &ObservedChange<'_>) {}

    fn executed(&self, request: &ObservedRequest<'_>) {
        self.0.lock().push((request.info.name.to_owned(), request.failed_open));
    }
}

#[tokio::test]
async fn an_observer_learns_that_a_webhook_did_not_answer() {
    let written = Arc::new(ObservedWrites::default());
    let server =
        Server::start(Options { observer: Some(written.clone()), ..Options::default() }).await.unwrap();
    let client = admin(&server);
    for name in ["a", "b"] {
        pods(&client).create(&PostParams::default(), &pod(name)).await.unwrap();
    }
    let hook = Webhook::start(|_| allow()).await;
    let nowhere = json!({"clientConfig": {"url": "https://127.0.0.1:1/review"}, "failurePolicy": "Ignore"});
    for (name, more) in [("a", json!({})), ("b", nowhere)] {
        hook.register(&client, false, more).await;
        let labels = json!({"metadata": {"labels": {"track": "canary"}}});
        pods(&client).patch(name, &PatchParams::default(), &Patch::Merge(&labels)).await.unwrap();
    }
    let of = |name: &str| written.0.lock().iter().find(|(of, _)| of == name).map(|(_, open)| *open);
    assert_eq!((of("a"), of("b")), (Some(false), Some(true)));
}

#[tokio::test]
async fn conditions_and_selectors_decide_which_requests_reach_the_webhook() {
    let server = server().await;
    let client = admin(&server);
    let hook = Webhook::start(|_| json!({"allowed": false})).await;
    hook.register(
        &client,
        false,
        json!({
            "matchConditions": [
                {"name": "no-kubelets", "expression": "!request.userInfo.username.startsWith('system:node:')"},
                {"name": "not-terminating", "expression": "request.operation != 'DELETE' || !has(oldObject.metadata.deletionTimestamp)"},
            ],
            "objectSelector": {"matchLabels": {"app": "web"}},
        }),
    )
    .await;
    let kubelet = server.client_as("system:node:n1", &["system:nodes"]).unwrap();
    pods(&kubelet).create(&PostParams::default(), &pod("a")).await.unwrap();
    let status = refusal(pods(&client).create(&PostParams::default(), &pod("b")).await);
    assert_eq!(
        (status.code, status.message.as_str()),
        (400, "admission webhook \"hook.example.com\" denied the request without explanation")
    );
    let mut unselected = pod("c");
    unselected.metadata.labels = None;
    pods(&client).create(&PostParams::default(), &unselected).await.unwrap();
    // The old object is matched, too: removing the label does not bypass the webhook.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": null}}}));
    assert_eq!(refusal(pods(&client).patch("a", &PatchParams::default(), &patch).await).code, 400);
}

#[tokio::test]
async fn a_condition_that_cannot_be_evaluated_fails_closed() {
    let server = server().await;
    let client = admin(&server);
    let hook = Webhook::start(|_| allow()).await;
    let broken = json!({"matchConditions": [{"name": "x", "expression": "object.spec.nothing == 'y'"}]});
    hook.register(&client, false, broken).await;
    assert_eq!(refusal(pods(&client).create(&PostParams::default(), &pod("a")).await).code, 403);
    assert!(hook.requests.lock().is_empty());
}

#[tokio::test]
async fn namespaces_are_selected_by_label() {
    let server = server().await;
    let client = admin(&server);
    let hook = Webhook::start(|_| json!({"allowed": false})).await;
    hook.register(&client, false, json!({"namespaceSelector": {"matchLabels": {"enforced": "yes"}}})).await;
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let label = http::Request::patch("/api/v1/namespaces/default")
        .header("content-type", "application/merge-patch+json");
    let body = json!({"metadata": {"labels": {"enforced": "yes"}}}).to_string();
    assert_eq!(crate::fixture::raw(&client, label, body).await.0, 200);
    assert_eq!(refusal(pods(&client).create(&PostParams::default(), &pod("b")).await).code, 400);
}

#[tokio::test]
async fn a_service_is_resolved_through_its_endpoints() {
    let server = server().await;
    let client = admin(&server);
    let hook = Webhook::start(|_| json!({"allowed": false, "status": {"message": "found"}})).await;
    let config = json!({"clientConfig": {"url": null, "service": {"namespace": "default", "name": "hook", "path": "/review"}}});
    hook.register(&client, false, config).await;
    let status = refusal(pods(&client).create(&PostParams::default(), &pod("a")).await);
    assert!(status.message.ends_with("service \"hook\" not found"), "{}", status.message);
    post(&client, "/api/v1/namespaces/default/services", json!({
        "metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]},
    }))
    .await;
    let status = refusal(pods(&client).create(&PostParams::default(), &pod("a")).await);
    assert!(status.message.ends_with("no endpoints available for service \"hook\""), "{}", status.message);
    let (code, made) = post(
        &client,
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        json!({
            "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": hook.port}],
        }),
    )
    .await;
    assert_eq!(code, 201, "{made}");
    let status = refusal(pods(&client).create(&PostParams::default(), &pod("a")).await);
    assert_eq!(status.message, "admission webhook \"hook.example.com\" denied the request: found");
}

#[tokio::test]
async fn invalid_configurations_are_rejected() {
    let server = server().await;
    let client = admin(&server);
    let body = json!({"metadata": {"name": "x"}, "webhooks": [{
        "name": "short",
        "clientConfig": {"url": "http://127.0.0.1/"},
        "sideEffects": "Some",
        "admissionReviewVersions": ["v1beta1"],
        "timeoutSeconds": 31,
        "matchConditions": [{"name": "a", "expression": "1 +"}],
    }]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let (code, status) = post(&client, path, body).await;
    assert_eq!(code, 422);
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 6, "{status}");
}
