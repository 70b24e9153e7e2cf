//! Probes of real targets on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use bytes::{BufMut as _, BytesMut};
use http::{HeaderMap, StatusCode};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::exec::{ExecSyncRequest, ExecSyncResponse};
use super::health::{HealthCheckRequest, HealthCheckResponse};
use super::{Prober, one_line};
use crate::container_probe::ProbeResult;
use crate::target::{ProbeRequest, ProbeTarget};

const SECOND: Duration = Duration::from_secs(1);

fn prober() -> Prober {
    Prober::new(64, None).unwrap()
}

async fn run(target: ProbeTarget) -> ProbeResult {
    prober().probe(&ProbeRequest { target, timeout: SECOND * 5 }, false).await
}

fn failed(why: &str) -> ProbeResult {
    ProbeResult::Failed(why.to_owned())
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn http(address: SocketAddr, path: &str) -> ProbeTarget {
    ProbeTarget::Http {
        https: false,
        host: address.ip().to_string(),
        port: address.port(),
        path: path.to_owned(),
        headers: Vec::new(),
    }
}

/// An HTTP server with one response per path.
async fn application() -> SocketAddr {
    let (listener, address) = listen().await;
    let condition = |headers: HeaderMap| async move {
        let of = |name: &str| {
            headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>().join("+")
        };
        let line = ["host", "user-agent", "accept", "x-shard", "connection"].map(of).join(" ");
        (StatusCode::IM_A_TEAPOT, line)
    };
    let elsewhere = format!("http://localhost:{}/no", address.port());
    let router = Router::new()
        .route("/yes", get(|| async { "fine" }))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }))
        .route("/no", get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "\n  syncing shard 3\nmore\n") }))
        .route("/mute", get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .route("/headers", get(condition))
        .route("/query", get(|uri: http::Uri| async move { (StatusCode::CONFLICT, uri.to_string()) }))
        .route("/there", get(|| async { Redirect::temporary("/yes") }))
        .route("/away", get(|| async { Redirect::permanent("no") }))
        .route("/round", get(|| async { Redirect::to("/round") }))
        .route("/elsewhere", get(move || async move { Redirect::temporary(&elsewhere) }))
        .route("/nowhere", get(|| async { StatusCode::FOUND }))
        .route("/unchanged", get(|| async { StatusCode::NOT_MODIFIED }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

#[tokio::test]
async fn the_http_status_decides_the_result() {
    let address = application().await;
    let here = format!("127.0.0.1:{}", address.port());
    let us = concat!("quorate-probe/", env!("CARGO_PKG_VERSION"));
    for (path, expected) in [
        ("/yes", ProbeResult::Passed),
        ("/empty", ProbeResult::Passed),
        ("/unchanged", ProbeResult::Passed),
        ("/nowhere", ProbeResult::Passed),
        ("/no", failed("HTTP 503 Service Unavailable: syncing shard 3")),
        ("/mute", failed("HTTP 500 Internal Server Error")),
        ("/missing", failed("HTTP 404 Not Found")),
        ("/query?deep=a b#top", failed("HTTP 409 Conflict: /query?deep=a%20b")),
        ("/headers", failed(&format!("HTTP 418 I'm a teapot: {here} {us} */*  close"))),
        // Redirects are followed only on the same host.
        ("/there", ProbeResult::Passed),
        ("/away", failed("HTTP 503 Service Unavailable: syncing shard 3")),
        ("/elsewhere", ProbeResult::Passed),
        ("/round", failed("stopped after 10 redirects")),
    ] {
        assert_eq!(run(http(address, path)).await, expected, "{path}");
    }
}

#[tokio::test]
async fn http_headers_are_those_of_the_probe() {
    let address = application().await;
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let target = ProbeTarget::Http {
        https: false,
        host: "localhost".to_owned(),
        port: address.port(),
        path: "/headers".to_owned(),
        headers: vec![
            header("Host", "db.example"),
            header("x-shard", "3"),
            header("X-Shard", "4"),
            header("User-Agent", "me"),
            header("Accept", "text/plain"),
        ],
    };
    assert_eq!(run(target).await, failed("HTTP 418 I'm a teapot: db.example me text/plain 3+4 close"));
}

#[tokio::test]
async fn https_accepts_any_certificate() {
    let key = rcgen::generate_simple_self_signed(vec!["other.example".to_owned()]).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    for host in ["127.0.0.1", "localhost"] {
        let target = ProbeTarget::Http {
            https: true,
            host: host.to_owned(),
            port: address.port(),
            path: "/".to_owned(),
            headers: Vec::new(),
        };
        assert_eq!(run(target).await, ProbeResult::Passed, "{host}");
    }
    let plain = application().await;
    let ProbeTarget::Http { host, port, path, headers, .. } = http(plain, "/yes") else { panic!() };
    let answer = run(ProbeTarget::Http { https: true, host, port, path, headers }).await;
    assert!(
        matches!(&answer, ProbeResult::Failed(why) if why.starts_with("TLS handshake failed: ")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_open_port_passes_the_tcp_probe() {
    let (listener, address) = listen().await;
    let target = || ProbeTarget::Tcp { host: "127.0.0.1".to_owned(), port: address.port() };
    assert_eq!(run(target()).await, ProbeResult::Passed);
    drop(listener);
    let answer = run(target()).await;
    let expected = format!("cannot connect to 127.0.0.1:{}: ", address.port());
    assert!(matches!(&answer, ProbeResult::Failed(why) if why.starts_with(&expected)), "{answer:?}");
}

#[tokio::test]
async fn an_invalid_http_response_fails() {
    for response in ["", "hello\r\n\r\n", "HTTP/1.1 200"] {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response.as_bytes()).await;
        });
        let answer = run(http(address, "/")).await;
        assert!(
            matches!(&answer, ProbeResult::Failed(why) if why.starts_with("HTTP request failed: ")),
            "{response} {answer:?}"
        );
    }
}

#[tokio::test]
async fn hanging_targets_delay_only_each_other() {
    // It accepts connections and never responds.
    let (_hanging, hangs) = listen().await;
    let answers = application().await;
    let prober = Prober::new(8, None).unwrap();
    let request = |address, timeout| ProbeRequest { target: http(address, "/yes"), timeout };
    let first = prober.probe(&request(hangs, SECOND), false).await;
    assert_eq!(first, ProbeResult::TimedOut(SECOND));
    // From now on the target is known to hang. There are more such probes than slots.
    let hanging: Vec<_> = (0..50)
        .map(|_| {
            let (prober, request) = (prober.clone(), request(hangs, SECOND * 5));
            tokio::spawn(async move { prober.probe(&request, true).await })
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(prober.probe(&request(answers, SECOND * 30), false).await, ProbeResult::Passed);
        assert!(!hanging.iter().all(tokio::task::JoinHandle::is_finished));
    }
    let mut open = 0;
    for task in hanging {
        match task.await.unwrap() {
            ProbeResult::TimedOut(_) => open += 1,
            other => assert_eq!(
                other,
                failed("the agent has too many open connections to targets that do not answer")
            ),
        }
    }
    assert!((2..=4).contains(&open), "{open} connections to hanging targets were open");
}

/// Serves one gRPC method on a connection until the connection closes.
async fn serve<S, Q, A>(stream: S, answer: impl Fn(&str, Q) -> Result<A, (u32, &'static str)>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    Q: Message + Default,
    A: Message,
{
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let path = request.uri().path().to_owned();
        let mut body = request.into_body();
        let mut received = BytesMut::new();
        // `accept` drives the connection. The body of a request this small arrives with its headers.
        let reading = async {
            while let Some(Ok(data)) = body.data().await {
                received.extend_from_slice(&data);
            }
        };
        tokio::select! {
            () = reading => {}
            _ = connection.accept() => {}
        }
        let head = || http::Response::builder().header("content-type", "application/grpc");
        match answer(&path, Q::decode(&received[5..]).unwrap()) {
            Ok(message) => {
                let mut data = BytesMut::new();
                data.put_u8(0);
                data.put_u32(u32::try_from(message.encoded_len()).unwrap());
                message.encode(&mut data).unwrap();
                let mut sending = respond.send_response(head().body(()).unwrap(), false).unwrap();
                sending.send_data(data.freeze(), false).unwrap();
                let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
                sending.send_trailers(trailers).unwrap();
            }
            // A response without trailers: the message may be incomplete.
            Err((0, _)) => {
                let mut sending = respond.send_response(head().body(()).unwrap(), false).unwrap();
                sending.send_data(vec![0, 0, 0, 0, 2, 0x08, 1].into(), true).unwrap();
            }
            Err((code, message)) => {
                let head = head().header("grpc-status", code).header("grpc-message", message);
                respond.send_response(head.body(()).unwrap(), true).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn the_grpc_health_status_decides_the_result() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, |path, request: HealthCheckRequest| {
                assert_eq!(path, "/grpc.health.v1.Health/Check");
                match request.service.as_str() {
                    "" => Ok(HealthCheckResponse { status: 1 }),
                    "shard" => Ok(HealthCheckResponse { status: 2 }),
                    "old" => Err((12, "")),
                    "cut" => Err((0, "")),
                    _ => Err((5, "no such service")),
                }
            }));
        }
    });
    let plain = application().await;
    for (port, service, expected) in [
        (address.port(), "", ProbeResult::Passed),
        (address.port(), "shard", failed("gRPC health is NOT_SERVING")),
        (
            address.port(),
            "old",
            failed("the server has no gRPC health service: it must serve grpc.health.v1.Health"),
        ),
        (address.port(), "cut", failed("gRPC call failed: the response has no status")),
        (address.port(), "other", failed("gRPC health fails with status 5: no such service")),
    ] {
        let target = ProbeTarget::Grpc { host: "127.0.0.1".to_owned(), port, service: service.to_owned() };
        assert_eq!(run(target).await, expected, "{service}");
    }
    let target =
        ProbeTarget::Grpc { host: "127.0.0.1".to_owned(), port: plain.port(), service: String::new() };
    let answer = run(target).await;
    assert!(
        matches!(&answer, ProbeResult::Failed(why) if why.starts_with("gRPC call failed: ")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn commands_go_to_the_container_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, |path, request: ExecSyncRequest| {
                assert_eq!(path, "/runtime.v1.RuntimeService/ExecSync");
                assert_eq!((request.container_id.as_str(), request.timeout), ("abc", 5));
                let ended = |exit_code, stdout: &str, stderr: &str| {
                    Ok(ExecSyncResponse { stdout: stdout.into(), stderr: stderr.into(), exit_code })
                };
                match request.cmd.join(" ").as_str() {
                    "is-synced --shard 3" => ended(0, "", ""),
                    "status" => ended(3, "\nyellow: 2 replicas missing\n", "ignored"),
                    "false" => ended(1, "", ""),
                    "sleep" => Err((4, "deadline")),
                    // The errors of CRI-O 1.36.3 and containerd 1.6.20.
                    "crio-sleep" => ended(-1, "", "command timed out"),
                    "/opt/größe/50%" => Err((
                        2,
                        "command error: time=\"2026-11-16T08:06:48Z\" level=error msg=\"exec failed: unable to start \
                         container process: exec: \\\"/opt/gr%C3%B6%C3%9Fe/50%25\\\": permission denied\"%0A, stdout: , \
                         stderr: , exit code -1",
                    )),
                    "nowhere" => Err((
                        2,
                        "failed to exec in container: failed to start exec \
                         \"848a8e4bc0f1240ec62cc918fbb4da286fb4d7f907bb1a88d1ff4ae310ded598\": OCI runtime exec failed: \
                         exec failed: unable to start container process: exec: \"nowhere\": executable file not found in \
                         $PATH: unknown",
                    )),
                    "gone" => Err((5, "could not find container \"abc\": 100% gone%0Aat all")),
                    _ => Err((2, "executable file not found in $PATH")),
                }
            }));
        }
    });
    let prober = Prober::new(8, Some(socket)).unwrap();
    let request = |command: &str| ProbeRequest {
        target: ProbeTarget::Exec {
            container: "abc".to_owned(),
            command: command.split(' ').map(str::to_owned).collect(),
        },
        timeout: SECOND * 5,
    };
    for (command, expected) in [
        ("is-synced --shard 3", ProbeResult::Passed),
        ("status", failed("status exited with 3: yellow: 2 replicas missing")),
        ("false", failed("false exited with 1")),
        ("sleep", failed("sleep did not exit within 5 s")),
        ("crio-sleep", failed("crio-sleep did not exit within 5 s")),
        (
            "/opt/größe/50%",
            failed("/opt/größe/50% cannot be run: exec: \"/opt/größe/50%\": permission denied"),
        ),
        ("nowhere", failed("nowhere cannot be run: exec: \"nowhere\": executable file not found in $PATH")),
        ("gone", failed("gone cannot be run: could not find container \"abc\": 100% gone")),
        ("nothing", failed("nothing cannot be run: executable file not found in $PATH")),
    ] {
        assert_eq!(prober.probe(&request(command), false).await, expected, "{command}");
    }
    let off = self::prober().probe(&request("status"), false).await;
    assert_eq!(off, failed("exec probes are off on this node: the agent has no --cri-socket"));
    let unreachable =
        Prober::new(8, Some(folder.path().join("none.sock"))).unwrap().probe(&request("status"), false).await;
    let begins = "cannot reach the container runtime at ";
    assert!(matches!(&unreachable, ProbeResult::Failed(why) if why.starts_with(begins)), "{unreachable:?}");
}

#[test]
fn a_message_is_one_short_line_without_control_characters() {
    let long = "x".repeat(300);
    for (text, expected) in [
        ("", String::new()),
        ("\n\n  syncing \n 2", "syncing".to_owned()),
        ("a\u{1b}[31mred\tb", "a[31mredb".to_owned()),
        (long.as_str(), format!("{}…", "x".repeat(200))),
    ] {
        assert_eq!(one_line(text), expected);
    }
}
