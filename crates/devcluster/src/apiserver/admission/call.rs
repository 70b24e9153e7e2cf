//! Calls a webhook: resolves its address and sends the review over a TLS connection that is reused.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::apiserver::api::Api;
use crate::apiserver::builtin::table_id;
use crate::apiserver::object::{self, Key};

/// Maximum size of a response.
const ANSWER_LIMIT: usize = 8 * 1024 * 1024;
/// Maximum number of idle connections per webhook.
const KEPT: usize = 32;

type Sender = SendRequest<Full<Bytes>>;

/// Connections to webhooks that are kept for the next call.
#[derive(Default)]
pub(crate) struct Webhooks {
    idle: Mutex<HashMap<Target, Vec<Sender>>>,
    /// Counter that selects the endpoints of a service in turn.
    turn: AtomicUsize,
    /// Webhooks in this process, by address. `None`: nothing listens there any more.
    local: Mutex<HashMap<String, Option<LocalWebhook>>>,
}

/// A webhook in this process. It is called without a connection.
#[derive(Clone)]
struct LocalWebhook {
    router: axum::Router,
    /// Cancelled when its process ends: then the calls in progress break.
    ended: CancellationToken,
}

/// The address of a webhook, and the identity that its certificate must prove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    /// The address to connect to.
    address: String,
    /// The name that the certificate must have.
    name: String,
    ca: Vec<u8>,
    /// The authority for messages and the `Host` header.
    authority: String,
    path: String,
}

impl Webhooks {
    /// Serves a webhook at this address, in this process. Replaces the previous one.
    pub(crate) fn attach(&self, address: &str, router: axum::Router) {
        let webhook = LocalWebhook { router, ended: CancellationToken::new() };
        self.local.lock().insert(address.to_owned(), Some(webhook));
    }

    /// Ends the webhook at this address. Calls in progress break, and later ones are refused.
    pub(crate) fn detach(&self, address: &str) {
        if let Some(webhook) = self.local.lock().get_mut(address).and_then(Option::take) {
            webhook.ended.cancel();
        }
    }

    fn take(&self, target: &Target) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(target)?;
        while let Some(sender) = kept.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, target: &Target, sender: Sender) {
        let mut idle = self.idle.lock();
        let kept = idle.entry(target.clone()).or_default();
        if kept.len() < KEPT {
            kept.push(sender);
        }
    }
}

impl Api {
    /// Sends a review and reads the response. The error is human-readable.
    pub(super) async fn call_webhook(&self, hook: &Value, review: &Value) -> Result<Value, String> {
        let target = self.target(&hook["clientConfig"])?;
        let seconds = hook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30);
        let body = serde_json::to_vec(review).map(Bytes::from).map_err(|e| e.to_string())?;
        let post = format!("Post \"https://{}{}?timeout={seconds}s\"", target.authority, target.path);
        let post_review = self.post(&target, seconds, body);
        match tokio::time::timeout(Duration::from_secs(seconds), post_review).await {
            Err(_) => Err(format!("{post}: context deadline exceeded")),
            Ok(Err(Unanswered::Transport(why))) => Err(format!("{post}: {why}")),
            Ok(Err(Unanswered::Invalid(why))) => Err(why),
            Ok(Ok(answer)) => Ok(answer),
        }
    }

    async fn post(&self, target: &Target, seconds: u64, body: Bytes) -> Result<Value, Unanswered> {
        let local = self.webhooks.local.lock().get(&target.address).cloned();
        if let Some(local) = local {
            let refused = || format!("dial tcp {}: connect: connection refused", target.address);
            let webhook = local.ok_or_else(|| Unanswered::Transport(refused()))?;
            return webhook.call(target, seconds, body).await;
        }
        if let Some(mut sender) = self.webhooks.take(target) {
            match send(&mut sender, target, seconds, body.clone()).await {
                // The webhook may have closed the idle connection in the meantime.
                Err(Unanswered::Transport(_)) => {}
                answered => {
                    self.webhooks.keep(target, sender);
                    return answered;
                }
            }
        }
        let mut sender = connect(target).await.map_err(Unanswered::Transport)?;
        let answered = send(&mut sender, target, seconds, body).await;
        if !matches!(answered, Err(Unanswered::Transport(_))) {
            self.webhooks.keep(target, sender);
        }
        answered
    }

    fn target(&self, config: &Value) -> Result<Target, String> {
        let ca = serde_json::from_value::<k8s_openapi::ByteString>(config["caBundle"].clone())
            .map(|bytes| bytes.0)
            .unwrap_or_default();
        if let Some(url) = config["url"].as_str() {
            let uri: http::Uri = url.parse().map_err(|e| format!("{url:?} is no URL: {e}"))?;
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(443);
            let address =
                if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
            return Ok(Target { address, name: host, ca, authority, path: uri.path().to_owned() });
        }
        self.service_target(&config["service"], ca)
    }

    /// Selects an endpoint of the service, as an API server without a proxy does.
    fn service_target(&self, service: &Value, ca: Vec<u8>) -> Result<Target, String> {
        let namespace = service["namespace"].as_str().unwrap_or_default();
        let name = service["name"].as_str().unwrap_or_default();
        let port = service["port"].as_i64().unwrap_or(443);
        let found = self
            .store
            .get(&"services".into(), &Key::new(namespace, name))
            .ok_or_else(|| format!("service {name:?} not found"))?;
        let ports: Vec<&Value> = found.value["spec"]["ports"].as_array().into_iter().flatten().collect();
        let port_name = ports
            .iter()
            .find(|p| p["port"].as_i64() == Some(port))
            .map(|p| p["name"].as_str().unwrap_or_default().to_owned())
            .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
        let slices = self.store.list(&table_id("discovery.k8s.io", "endpointslices"), namespace).objects;
        let mut ready = ready_endpoints(slices.iter().map(|slice| &slice.value), name, &port_name);
        if ready.is_empty() {
            return Err(format!("no endpoints available for service {name:?}"));
        }
        // The real API server selects at random. Selecting in turn reaches all endpoints even with few calls.
        let address = ready.swap_remove(self.webhooks.turn.fetch_add(1, Ordering::Relaxed) % ready.len());
        let host = format!("{name}.{namespace}.svc");
        Ok(Target {
            address,
            authority: format!("{host}:{port}"),
            name: host,
            ca,
            path: service["path"].as_str().unwrap_or("/").to_owned(),
        })
    }
}

impl LocalWebhook {
    async fn call(self, target: &Target, seconds: u64, body: Bytes) -> Result<Value, Unanswered> {
        let request = request(target, seconds, axum::body::Body::from(body))?;
        let answered = async {
            let Ok(response) = self.router.oneshot(request).await;
            read_response(response).await
        };
        tokio::select! {
            answer = answered => answer,
            () = self.ended.cancelled() => Err(Unanswered::Transport("EOF".to_owned())),
        }
    }
}

/// The addresses of the ready endpoints of a service.
fn ready_endpoints<'a>(slices: impl Iterator<Item = &'a Value>, service: &str, port: &str) -> Vec<String> {
    let of_service = |slice: &&Value| {
        object::label_map(slice).get("kubernetes.io/service-name").is_some_and(|name| *name == service)
    };
    let mut found = Vec::new();
    for slice in slices.filter(of_service) {
        let ports = slice["ports"].as_array().into_iter().flatten();
        let named = ports.filter(|entry| entry["name"].as_str().unwrap_or_default() == port);
        let Some(number) = named.filter_map(|entry| entry["port"].as_i64()).next() else { continue };
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
        found.extend(ready.filter_map(|endpoint| endpoint["addresses"][0].as_str()).map(|address| {
            if address.contains(':') {
                format!("[{address}]:{number}")
            } else {
                format!("{address}:{number}")
            }
        }));
    }
    found
}

/// The reason why there is no valid response.
enum Unanswered {
    /// The webhook could not be reached, or the connection broke.
    Transport(String),
    /// The response is not a review.
    Invalid(String),
}

async fn connect(target: &Target) -> Result<Sender, String> {
    let stream = TcpStream::connect(&target.address)
        .await
        .map_err(|e| format!("dial tcp {}: connect: {}", target.address, plain(&e)))?;
    let _ = stream.set_nodelay(true);
    let name = ServerName::try_from(target.name.clone()).map_err(|e| e.to_string())?;
    let tls = TlsConnector::from(tls_config(&target.ca)?)
        .connect(name, stream)
        .await
        .map_err(|e| format!("tls: failed to verify certificate: {e}"))?;
    let (sender, connection) = handshake(TokioIo::new(tls)).await.map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        // Ignore the error: the next use of the sender reports a closed connection.
        let _ = connection.await;
    });
    Ok(sender)
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

fn tls_config(ca: &[u8]) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        let certificate = certificate.map_err(|e| format!("caBundle is not PEM: {e}"))?;
        roots.add(certificate).map_err(|e| format!("caBundle: {e}"))?;
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn request<B>(target: &Target, seconds: u64, body: B) -> Result<Request<B>, Unanswered> {
    Request::post(format!("{}?timeout={seconds}s", target.path))
        .header("host", &target.authority)
        .header("content-type", "application/json")
        .header("accept", "application/json, */*")
        .header("user-agent", "kube-apiserver-admission")
        .body(body)
        .map_err(|e| Unanswered::Invalid(e.to_string()))
}

async fn send(sender: &mut Sender, target: &Target, seconds: u64, body: Bytes) -> Result<Value, Unanswered> {
    let request = request(target, seconds, Full::new(body))?;
    let response = sender.send_request(request).await.map_err(|e| Unanswered::Transport(e.to_string()))?;
    read_response(response).await
}

async fn read_response<B>(response: http::Response<B>) -> Result<Value, Unanswered>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let code = response.status();
    let collected = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
    let bytes = collected.map_err(|e| Unanswered::Transport(e.to_string()))?.to_bytes();
    if !code.is_success() {
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        let text = if text.is_empty() { code.to_string() } else { text };
        return Err(Unanswered::Invalid(format!(
            "an error on the server ({text:?}) has prevented the request from succeeding"
        )));
    }
    serde_json::from_slice(&bytes)
        .map_err(|e| Unanswered::Invalid(format!("couldn't get version/kind; json parse error: {e}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_ready_endpoints_of_a_service_are_found() {
        let slice = |service: &str, address: &str, ready: bool| {
            json!({
                "metadata": {"labels": {"kubernetes.io/service-name": service}},
                "ports": [{"name": "admin", "port": 1}, {"name": "webhooks", "port": 2}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
            })
        };
        let slices = [
            slice("ours", "192.0.2.1", true),
            slice("ours", "192.0.2.2", false),
            slice("theirs", "192.0.2.3", true),
            slice("ours", "2001:db8::4", true),
        ];
        let found = |port: &str| ready_endpoints(slices.iter(), "ours", port);
        assert_eq!(found("webhooks"), ["192.0.2.1:2", "[2001:db8::4]:2"]);
        assert_eq!(found("other"), [""; 0]);
    }
}
