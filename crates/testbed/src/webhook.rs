//! An admission webhook for tests: a small HTTPS server in this process with replies that the test chooses.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use rcgen::{CertificateParams, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::control_plane::credentials::authority;

/// The reply of a webhook to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Allows the request.
    Allow,
    /// Allows the request with this warning for the client.
    Warn(String),
    /// Denies the request with this `Status`.
    Deny(Value),
    /// Allows the request after these JSON Patch operations.
    Patch(Value),
    /// Never replies.
    Silence,
    /// Replies with an HTTP status and a body that are not an `AdmissionReview`.
    Nonsense(u16, String),
}

type Decide = dyn Fn(&Value) -> Reply + Send + Sync;

/// A running webhook; it ends when this is dropped.
pub struct Webhook {
    port: u16,
    ca: Vec<u8>,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Shared {
    decide: Box<Decide>,
    seen: Mutex<Vec<Value>>,
}

impl Webhook {
    /// Starts a webhook. `decide` returns the reply to the request of each `AdmissionReview`.
    pub async fn start(decide: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Result<Self> {
        let (config, ca) = tls().context("cannot create a certificate for the webhook")?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { decide: Box::new(decide), seen: Mutex::default() });
        let server = tokio::spawn(serve(listener, acceptor, shared.clone()));
        Ok(Self { port, ca, shared, server })
    }

    /// The `clientConfig` for this webhook.
    pub fn client_config(&self) -> Value {
        json!({"url": format!("https://127.0.0.1:{}/", self.port), "caBundle": ByteString(self.ca.clone())})
    }

    /// The requests received so far, in order.
    pub fn seen(&self) -> Vec<Value> {
        self.shared.seen.lock().clone()
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn tls() -> Result<(ServerConfig, Vec<u8>)> {
    let ca_key = KeyPair::generate()?;
    let ca_params = authority()?;
    let ca = ca_params.self_signed(&ca_key)?;
    let key = KeyPair::generate()?;
    let certificate =
        CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &Issuer::new(ca_params, ca_key))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )?;
    Ok((config, ca.pem().into_bytes()))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        tokio::spawn(async move {
            // A client that rejects the certificate or disconnects is not an error of the webhook.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper::service::service_fn(move |request| answer(request, shared.clone()));
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let request = &review["request"];
    shared.seen.lock().push(request.clone());
    let mut response = json!({"uid": request["uid"], "allowed": true});
    match (shared.decide)(request) {
        Reply::Allow => {}
        Reply::Warn(warning) => response["warnings"] = json!([warning]),
        Reply::Deny(status) => {
            response["allowed"] = json!(false);
            response["status"] = status;
        }
        Reply::Patch(operations) => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(ByteString(operations.to_string().into_bytes()));
        }
        Reply::Silence => std::future::pending().await,
        Reply::Nonsense(code, body) => {
            let mut response = Response::new(Full::from(body));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
            return Ok(response);
        }
    }
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    let mut response = Response::new(Full::from(review.to_string()));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
