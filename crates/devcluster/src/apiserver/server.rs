//! A running server: its listener, its clients, its shutdown.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::api::Api;
use super::clock::Clock;
use super::faults::{Faults, RequestFilter};
use super::http::{Body, Broken, handle};
use super::options::Options;
use super::store::Backup;
use super::users::User;

/// A server or a client could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen on the HTTP port.
    #[error("cannot listen on 127.0.0.1:{port}")]
    Listen {
        /// The requested port; zero means any free port.
        port: u16,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A client could not be created.
    #[error("cannot create a client")]
    Client(#[from] kube::Error),
}

/// An API server that runs in this process. Dropping this value stops it.
pub struct Server {
    api: Arc<Api>,
    address: SocketAddr,
    stop: CancellationToken,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a server on a loopback port.
    ///
    /// # Errors
    ///
    /// If the server cannot listen on the port.
    pub async fn start(options: Options) -> Result<Self, ServerError> {
        let port = options.port;
        let listening = async {
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listening.await.map_err(|source| ServerError::Listen { port, source })?;
        let api = Api::new(options);
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, api.clone(), stop.clone()));
        Ok(Self { api, address, stop })
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client over TCP that acts as this user and does not retry by itself.
    ///
    /// # Errors
    ///
    /// If the client cannot be created.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> Result<kube::Client, ServerError> {
        Ok(kube::Client::try_from(self.config_as(user, groups))?)
    }

    /// The configuration of [`Server::client_as`], for callers that need other settings.
    pub fn config_as(&self, user: &str, groups: &[&str]) -> kube::Config {
        let mut url = http::uri::Parts::default();
        url.scheme = Some(http::uri::Scheme::HTTP);
        url.authority = self.address.to_string().parse().ok();
        url.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let mut config = kube::Config::new(http::Uri::from_parts(url).unwrap_or_default());
        config.auth_info.token = Some(self.token_for(user, groups).into());
        config.default_retry = false;
        config
    }

    /// A client that acts as this user and does not use TCP, for tests that pause time.
    pub fn local_client_as(&self, user: &str, groups: &[&str]) -> kube::Client {
        let authorization = format!("Bearer {}", self.token_for(user, groups));
        let api = self.api.clone();
        let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
            if let Ok(value) = authorization.parse() {
                request.headers_mut().entry("authorization").or_insert(value);
            }
            let api = api.clone();
            async move { handle(api, request).await }
        });
        kube::Client::new(service, "default")
    }

    /// A bearer token for this user.
    pub fn token_for(&self, user: &str, groups: &[&str]) -> String {
        self.api.users.token_for(&User::new(user, groups))
    }

    /// A kubeconfig, as JSON, with which `kubectl` acts as this user.
    ///
    /// `kubectl` does not send a token over plain HTTP, so the kubeconfig impersonates the user.
    pub fn kubeconfig(&self, user: &str, groups: &[&str]) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url()}}],
            "users": [{"name": user, "user": {"as": user, "as-groups": groups}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": user, "namespace": "default"}}],
            "current-context": "embedded",
        })
    }

    /// Fault injection.
    pub fn faults(&self) -> &Faults {
        &self.api.faults
    }

    /// The server's clock.
    pub fn clock(&self) -> &Clock {
        &self.api.clock
    }

    /// Serves a webhook in this process: the server calls the router instead of connecting to `address`, which is
    /// `host:port` as an EndpointSlice or a URL names it. For tests that pause time.
    pub fn attach_webhook(&self, address: &str, router: axum::Router) {
        self.api.webhooks.attach(address, router);
    }

    /// Ends a webhook in this process, as a process that is killed: calls in progress break, and later ones are refused.
    pub fn detach_webhook(&self, address: &str) {
        self.api.webhooks.detach(address);
    }

    /// All objects as they are now, to restore later.
    pub fn back_up(&self) -> Backup {
        self.api.store.back_up()
    }

    /// Restores an earlier state, as when etcd is restored from a snapshot while the API server is down: the revision goes
    /// back, requests in progress end without an answer and without effect, and all watches end. The server knows the
    /// kinds that it knew before.
    pub fn restore(&self, backup: &Backup) {
        self.api.restarts.send_modify(|restarts| *restarts += 1);
        self.api.store.restore(backup);
        self.api.faults.cut_watches(RequestFilter::any());
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.api.store.revision()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Accepts connections until `stop` is cancelled; then all connections break.
async fn serve(listener: TcpListener, api: Arc<Api>, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            // Most likely the process is out of file descriptors; other tasks may release some.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        // Small responses are sent without delay.
        let _ = stream.set_nodelay(true);
        let (api, stop) = (api.clone(), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| -> futures::future::BoxFuture<'static, Result<Response<Body>, Broken>> {
                Box::pin(handle(api.clone(), request))
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // Ignore errors: clients disconnect, and faults break connections.
                _ = connection => {}
                () = stop.cancelled() => {}
            }
        });
    }
}
