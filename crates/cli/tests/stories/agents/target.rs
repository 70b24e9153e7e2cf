//! Targets of probes, on loopback.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::{JoinSet, yield_now};

use crate::quorate::ANYWHERE;

/// An HTTP server with responses that the test sets. It ends when this is dropped.
pub(crate) struct Application {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
    _serving: JoinSet<()>,
}

struct State {
    status: u16,
    body: String,
    /// Responses before that one, in reverse order.
    script: Vec<u16>,
    requests: Vec<Instant>,
}

impl Application {
    /// With a response of 200.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(ANYWHERE).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = State { status: 200, body: String::new(), script: Vec::new(), requests: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, state.clone()));
        Self { port, state, _serving: serving }
    }

    /// Sets the response from now on; with 0 it never responds.
    pub(crate) fn respond_with(&self, status: u16, body: &str) {
        let mut state = self.state.lock();
        state.status = status;
        body.clone_into(&mut state.body);
    }

    /// Sets the next responses; after them it responds as before.
    pub(crate) fn script(&self, statuses: &[u16]) {
        self.state.lock().script = statuses.iter().rev().copied().collect();
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// The time of each request.
    pub(crate) fn request_times(&self) -> Vec<Instant> {
        self.state.lock().requests.clone()
    }

    /// The number of scripted responses that are left.
    pub(crate) fn remaining(&self) -> usize {
        self.state.lock().script.len()
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_buf(&mut request).await {
            Ok(1..) => {}
            _ => return,
        }
    }
    let (status, body) = {
        let mut state = state.lock();
        state.requests.push(Instant::now());
        (state.script.pop().unwrap_or(state.status), state.body.clone())
    };
    if status == 0 {
        // Until the agent closes the connection.
        let _ = stream.read_buf(&mut request).await;
        return;
    }
    let answer =
        format!("HTTP/1.1 {status} .\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// A gRPC server that responds to every request with the same message. It ends when this is dropped.
pub(crate) struct Grpc {
    message: Arc<Mutex<Vec<u8>>>,
    _serving: JoinSet<()>,
}

impl Grpc {
    /// On a port of its own.
    pub(crate) async fn on_tcp(message: &[u8]) -> (Self, SocketAddr) {
        let listener = TcpListener::bind(ANYWHERE).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Mutex::new(message.to_vec()));
        let (mut serving, message) = (JoinSet::new(), shared.clone());
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(grpc(stream, message.clone()));
            }
        });
        (Self { message: shared, _serving: serving }, address)
    }

    /// On a socket, as container runtimes do.
    pub(crate) fn on_socket(path: &Path, message: &[u8]) -> Self {
        let listener = UnixListener::bind(path).expect("a socket");
        let shared = Arc::new(Mutex::new(message.to_vec()));
        let (mut serving, message) = (JoinSet::new(), shared.clone());
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(grpc(stream, message.clone()));
            }
        });
        Self { message: shared, _serving: serving }
    }

    /// Sets the response from now on.
    pub(crate) fn respond_with(&self, message: &[u8]) {
        *self.message.lock() = message.to_vec();
    }
}

async fn grpc(stream: impl AsyncRead + AsyncWrite + Unpin, message: Arc<Mutex<Vec<u8>>>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((_request, mut respond))) = connection.accept().await {
        yield_now().await;
        let message = message.lock().clone();
        let mut data = vec![0, 0, 0, 0, u8::try_from(message.len()).expect("a short message")];
        data.extend(message);
        let head = http::Response::builder().header("content-type", "application/grpc").body(());
        let mut sending = respond.send_response(head.expect("a head"), false).expect("an answer");
        sending.send_data(Bytes::from(data), false).expect("an answer");
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        sending.send_trailers(trailers).expect("an answer");
    }
}
