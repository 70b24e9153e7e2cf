//! Serves a router over TLS.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that in-flight requests have to finish after `stop`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Wait after an error of the listener. The usual cause is a lack of file descriptors, and some may be released soon.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves `router` until `stop`, then finishes in-flight requests.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, router: Router, stop: CancellationToken) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                connections.spawn(connection(stream, acceptor, router, stop.clone()));
            }
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, ended).await.is_err() {
        debug!("some requests did not finish in time");
    }
}

/// Serves one connection. A client that rejects the certificate or disconnects is not an error of the server.
async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router, stop: CancellationToken) {
    // Responses are small and sent one at a time: waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
        Err(_) => return debug!("TLS handshake timed out"),
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // No idle timeout between requests: a client that is about to send its next request would see the connection
    // close, and an API server counts that as a failed webhook call.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(serving);
    let outcome = tokio::select! {
        outcome = serving.as_mut() => outcome,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = outcome {
        debug!(%error, "a connection failed");
    }
}
