//! Shared test helpers: a server, objects, and a webhook that the server can call.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, Status};
use parking_lot::Mutex;
use quorate_devcluster::apiserver::{Options, Server};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

pub(crate) async fn server() -> Server {
    Server::start(Options::default()).await.unwrap()
}

pub(crate) fn admin(server: &Server) -> kube::Client {
    server.client_as("kubernetes-admin", &["system:masters"]).unwrap()
}

/// An object from JSON.
pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn pod(name: &str) -> Pod {
    object(json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "img:1"}]},
    }))
}

pub(crate) fn pods(client: &kube::Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

pub(crate) fn budgets(client: &kube::Client) -> Api<PodDisruptionBudget> {
    Api::namespaced(client.clone(), "default")
}

/// Creates a pod that is bound to a node and running, ready or not.
pub(crate) async fn running(client: &kube::Client, name: &str, ready: bool) -> Pod {
    let api = pods(client);
    api.create(&PostParams::default(), &pod(name)).await.unwrap();
    let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
    let path = format!("/api/v1/namespaces/default/pods/{name}/binding");
    let bind = http::Request::post(path).body(binding.to_string().into_bytes()).unwrap();
    client.request::<Value>(bind).await.unwrap();
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
    api.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap()
}

/// Creates a budget for all `app=web` pods, with the status that a controller would write.
pub(crate) async fn budget(client: &kube::Client, spec: Value, status: Value) {
    let mut spec = spec;
    if spec.get("selector").is_none() {
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
    }
    let budget = object(json!({"metadata": {"name": "foo"}, "spec": spec}));
    let api = budgets(client);
    api.create(&PostParams::default(), &budget).await.unwrap();
    let mut status = status;
    status["observedGeneration"] = 1.into();
    api.patch_status("foo", &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await.unwrap();
}

/// Sends an eviction. Returns the code and body of the response.
pub(crate) async fn evict(client: &kube::Client, name: &str, options: Value, query: &str) -> (u16, Value) {
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
        "deleteOptions": options,
    });
    post(client, &format!("/api/v1/namespaces/default/pods/{name}/eviction{query}"), body).await
}

pub(crate) async fn post(client: &kube::Client, path: &str, body: Value) -> (u16, Value) {
    raw(client, http::Request::post(path).header("content-type", "application/json"), body.to_string()).await
}

pub(crate) async fn get(client: &kube::Client, path: &str, accept: &str) -> (u16, Value) {
    raw(client, http::Request::get(path).header("accept", accept), String::new()).await
}

pub(crate) async fn raw(
    client: &kube::Client,
    request: http::request::Builder,
    body: String,
) -> (u16, Value) {
    let response = client.send(request.body(body.into_bytes().into()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
}

/// The `Status` of a rejected request.
pub(crate) fn refusal<T: std::fmt::Debug>(outcome: Result<T, kube::Error>) -> Status {
    match outcome {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("not rejected: {other:?}"),
    }
}

pub(crate) async fn delete_now(client: &kube::Client, name: &str) {
    pods(client).delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
}

pub(crate) fn dynamic(
    client: &kube::Client,
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
    Api::namespaced_with(
        client.clone(),
        "default",
        &kube::core::ApiResource::from_gvk_with_plural(&gvk, plural),
    )
}

type Answers = dyn Fn(&Value) -> Value + Send + Sync;

/// A webhook over TLS that records its requests.
pub(crate) struct Webhook {
    pub(crate) requests: Arc<Mutex<Vec<Value>>>,
    pub(crate) port: u16,
    ca: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Webhook {
    /// Starts a webhook that responds to each request with the result of `answer`, with the uid of the request.
    pub(crate) async fn start(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let names = vec!["127.0.0.1".to_owned(), "hook.default.svc".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (seen, answer): (_, Arc<Answers>) = (requests.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen, answer) = (acceptor.clone(), seen.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                        let (seen, answer) = (seen.clone(), answer.clone());
                        async move {
                            let body = request.into_body().collect().await.unwrap().to_bytes();
                            let review: Value = serde_json::from_slice(&body).unwrap();
                            let mut response = answer(&review["request"]);
                            response["uid"] = review["request"]["uid"].clone();
                            seen.lock().push(review["request"].clone());
                            let review = json!({
                                "kind": "AdmissionReview",
                                "apiVersion": "admission.k8s.io/v1",
                                "response": response,
                            });
                            Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(Bytes::from(
                                review.to_string(),
                            ))))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { requests, port, ca: made.cert.pem(), task }
    }

    pub(crate) fn ca_bundle(&self) -> Value {
        serde_json::to_value(k8s_openapi::ByteString(self.ca.clone().into_bytes())).unwrap()
    }

    /// Registers this webhook. `more` is merged over the default fields.
    pub(crate) async fn register(&self, client: &kube::Client, mutating: bool, more: Value) {
        let mut hook = json!({
            "name": "hook.example.com",
            "clientConfig": {"url": format!("https://127.0.0.1:{}/review", self.port), "caBundle": self.ca_bundle()},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["pods", "pods/eviction"]}],
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        });
        json_patch::merge(&mut hook, &more);
        let (kind, plural) = if mutating {
            ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
        } else {
            ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
        };
        let body = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"generateName": "hook-"},
            "webhooks": [hook],
        });
        let (code, answer) =
            post(client, &format!("/apis/admissionregistration.k8s.io/v1/{plural}"), body).await;
        assert_eq!(code, 201, "{answer}");
    }
}
