//! A listener with real connections.

use std::net::SocketAddr;
use std::time::SystemTime;

use axum::Extension;
use axum::routing::{get, post};
use http::StatusCode;
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;
use crate::tls::{Authority, ServingCertificate, TrustedClients};

type NoBody = Empty<bytes::Bytes>;

/// A listener on loopback. `/` answers with the address of the client, `/wait` never.
struct Listener {
    address: SocketAddr,
    ca: String,
    /// A request for `/wait` has arrived.
    arrived: Arc<Notify>,
    stop: CancellationToken,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Listener {
    async fn start(max: MaxConnections, clients: Option<Arc<TrustedClients>>) -> Self {
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        let authority = Authority::generate("servers", now, day).unwrap();
        let leaf = authority.issue(&["127.0.0.1".to_owned()], now, day).unwrap();
        let tls = ServingCertificate::new(leaf).unwrap().server_config(clients).unwrap();
        let arrived = Arc::new(Notify::new());
        let arrives = arrived.clone();
        let wait = move || {
            arrives.notify_one();
            std::future::pending::<()>()
        };
        let router = Router::new()
            .route(
                "/",
                get(|Extension(client): Extension<ClientAddress>| async move { client.0.to_string() }),
            )
            .route("/wait", post(wait));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        tokio::spawn(serve(listener, tls, router, max, stop.clone()));
        Self { address, ca: authority.pem().to_owned(), arrived, stop }
    }

    /// Connects from an address of the loopback network, with a certificate if one is given.
    async fn connect(
        &self,
        from: &str,
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
        protocol: &[u8],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let stream = socket.connect(self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// The status and body of a request over a connection of its own; `None` if the connection fails.
    async fn get(
        &self,
        from: &str,
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
        headers: &[(&str, String)],
    ) -> Option<(StatusCode, String)> {
        let stream = self.connect(from, identity, b"h2").await.ok()?;
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
        let connection = tokio::spawn(connection);
        let mut request = Request::get("https://127.0.0.1/");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let answer = sender.send_request(request.body(NoBody::new()).unwrap()).await.ok()?;
        let status = answer.status();
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.ok()?.to_bytes();
        connection.abort();
        Some((status, String::from_utf8(body.to_vec()).unwrap()))
    }
}

fn many() -> MaxConnections {
    MaxConnections { total: 100, per_client: 100 }
}

#[tokio::test]
async fn the_router_learns_the_address_of_the_client() {
    let listener = Listener::start(many(), None).await;
    for from in ["127.0.0.1", "127.0.0.7"] {
        let answer = listener.get(from, None, &[]).await.unwrap();
        assert_eq!(answer, (StatusCode::OK, from.to_owned()));
    }
}

#[tokio::test]
async fn headers_are_bounded() {
    let listener = Listener::start(many(), None).await;
    let of = |size: usize| [("x-long", "x".repeat(size))];
    assert_eq!(listener.get("127.0.0.1", None, &of(8 << 10)).await.unwrap().0, StatusCode::OK);
    let refused = listener.get("127.0.0.1", None, &of(64 << 10)).await;
    assert!(refused.is_none_or(|(status, _)| status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
}

#[tokio::test]
async fn only_a_client_with_a_certificate_is_answered() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let identity = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
        Some((certificate, PrivateKeyDer::Pkcs8(key.serialize_der().into())))
    };
    let clients = TrustedClients::new(pem.as_bytes(), vec!["apiserver".to_owned()]).unwrap();
    let listener = Listener::start(many(), Some(clients)).await;
    let answer = listener.get("127.0.0.1", identity("apiserver"), &[]).await;
    assert_eq!(answer.unwrap().0, StatusCode::OK);
    assert!(listener.get("127.0.0.1", None, &[]).await.is_none(), "without a certificate");
    assert!(listener.get("127.0.0.1", identity("mallory"), &[]).await.is_none(), "with another name");
}

/// As many connections as there may be, of a client that begins requests and never completes one.
#[tokio::test]
async fn a_client_that_completes_no_request_makes_room_for_others() {
    let listener = Listener::start(MaxConnections { total: 8, per_client: 8 }, None).await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = listener.connect("127.0.0.2", None, b"http/1.1").await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET / HTTP/1.1\r\nx-slow: ").await.unwrap();
        slow.push(stream);
    }
    for _ in 0..4 {
        assert_eq!(listener.get("127.0.0.3", None, &[]).await.unwrap().0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_connection_with_a_request_in_progress_is_kept() {
    let listener = Listener::start(MaxConnections { total: 2, per_client: 1 }, None).await;
    let stream = listener.connect("127.0.0.2", None, b"http/1.1").await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/wait").header("host", "127.0.0.1").body(NoBody::new()).unwrap();
    let waiting =
        tokio::spawn(async move { sender.send_request(request).await.map(|answer| answer.status()) });
    listener.arrived.notified().await;
    assert!(listener.get("127.0.0.2", None, &[]).await.is_none(), "the client has one connection at most");
    assert!(!waiting.is_finished());
    assert_eq!(listener.get("127.0.0.3", None, &[]).await.unwrap().0, StatusCode::OK, "another client");
}
