//! The target of all probes: says yes or no for each pod, and notes when it was asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Target {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    arrivals: BTreeMap<usize, Vec<Instant>>,
    says_no: BTreeMap<usize, bool>,
    all_say_no: bool,
}

impl Target {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, shared.clone()));
            }
        });
        Self { port, state }
    }

    pub(crate) fn forget(&self) {
        self.state.lock().arrivals.clear();
    }

    pub(crate) fn arrivals(&self) -> BTreeMap<usize, Vec<Instant>> {
        self.state.lock().arrivals.clone()
    }

    pub(crate) fn set_answer(&self, number: usize, yes: bool) {
        self.state.lock().says_no.insert(number, !yes);
    }

    pub(crate) fn set_all_answers(&self, yes: bool) {
        self.state.lock().all_say_no = !yes;
    }
}

async fn answer(mut stream: TcpStream, state: Arc<Mutex<State>>) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    let now = Instant::now();
    let line = String::from_utf8_lossy(&request);
    let number: usize = line.split_whitespace().nth(1)?.trim_start_matches('/').parse().ok()?;
    let no = {
        let mut state = state.lock();
        state.arrivals.entry(number).or_default().push(now);
        state.all_say_no || state.says_no.get(&number).copied().unwrap_or_default()
    };
    let status = if no { 503 } else { 200 };
    let answer = format!("HTTP/1.1 {status} .\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.ok()
}
