//! Serves a router over TLS, to clients that may be hostile.
//!
//! Whatever a client sends, it gets a bounded part of the process before any of its requests is read: connections
//! ([`MaxConnections`]), streams, headers, and bytes in the buffers of a connection.

mod connections;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use connections::MaxConnections;
use connections::{Connection, Connections};

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::debug;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that in-flight requests have to finish after `stop`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Wait after an error of the listener. The usual cause is a lack of file descriptors, and some may be released soon.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Requests in progress on one HTTP/2 connection. A client that has more opens another connection.
const MAX_STREAMS: u32 = 128;

/// The size of all headers of a request. Those of an API server have less than 2 KiB.
const MAX_HEADERS: u32 = 16 << 10;

/// What an HTTP/1 connection buffers of a request before it is passed on.
const MAX_BUFFER: usize = 64 << 10;

/// What an HTTP/2 connection, and one request on it, may send before the server reads it.
const CONNECTION_WINDOW: u32 = 256 << 10;
const STREAM_WINDOW: u32 = 128 << 10;

/// A client that answers no ping within this time has gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The address of the client that sent a request: an extension of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Serves `router` until `stop`, then finishes in-flight requests.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    max: MaxConnections,
    stop: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let open = Connections::new(max);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                // An IPv4 client of an IPv6 listener is the same client.
                let Some(connection) = open.open(peer.ip().to_canonical()) else {
                    debug!(client = %peer.ip(), "closed a new connection: all others are in use");
                    continue;
                };
                let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
                connections.spawn(async move {
                    let evicted = connection.evicted();
                    tokio::select! {
                        () = evicted.cancelled() => debug!("closed an idle connection to make room"),
                        () = converse(stream, connection, acceptor, router, stop) => {}
                    }
                });
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
async fn converse(
    stream: TcpStream,
    connection: Connection,
    acceptor: TlsAcceptor,
    router: Router,
    stop: CancellationToken,
) {
    // Responses are small and sent one at a time: waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
        Err(_) => return debug!("TLS handshake timed out"),
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // No idle timeout between requests: a client that is about to send its next request would see the connection
    // close, and an API server counts that as a failed webhook call. A connection on which no request ever becomes
    // complete is idle, and ends when its place is needed.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let address = ClientAddress(connection.client());
    let service = service_fn(|mut request: Request<Incoming>| {
        let busy = connection.request();
        request.extensions_mut().insert(address);
        let answer = router.clone().oneshot(request.map(Body::new));
        async move {
            let answer = answer.await;
            drop(busy);
            answer
        }
    });
    let serving = builder.serve_connection(TokioIo::new(stream), service);
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

#[cfg(test)]
mod tests;
