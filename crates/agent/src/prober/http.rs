//! HTTP probes as in the kubelet: any status from 200 to 399 passes. Redirects to the same host are followed, and the
//! tenth one fails the probe. A redirect to another host passes and is not followed.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{redirect, tcp};

const REDIRECTS: usize = 10;

/// The ASCII characters that a path or a query cannot contain. `%` is not one of them: the path may be encoded already.
pub(super) const UNSENDABLE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Longest part of a response body that is read, in bytes.
const BODY: usize = 10 * 1024;

/// A URL to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) https: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Includes the query.
    pub(super) path: String,
}

/// The result of one request.
enum HttpOutcome {
    Passed,
    Failed(String),
    Redirect(String),
}

/// Runs an HTTP probe; `Ok` means that it passes.
pub(super) async fn get(
    first: Address,
    headers: &[(String, String)],
    tls: &TlsConnector,
) -> Result<(), String> {
    let mut address = first.clone();
    for _ in 0..REDIRECTS {
        let location = match hop(&address, headers, tls).await? {
            HttpOutcome::Passed => return Ok(()),
            HttpOutcome::Failed(why) => return Err(why),
            HttpOutcome::Redirect(location) => location,
        };
        address = redirect::follow(&address, &location)
            .ok_or_else(|| format!("redirected to {location}, which is not a valid address"))?;
        if address.host != first.host {
            return Ok(());
        }
    }
    Err(format!("stopped after {REDIRECTS} redirects"))
}

async fn hop(
    address: &Address,
    headers: &[(String, String)],
    tls: &TlsConnector,
) -> Result<HttpOutcome, String> {
    let stream = tcp::connect(&address.host, address.port).await?;
    let request = request(address, headers)?;
    if !address.https {
        return exchange(stream, request).await;
    }
    let name = ServerName::try_from(address.host.clone())
        .map_err(|_| format!("{} is not a valid host", address.host))?;
    let stream = tls.connect(name, stream).await.map_err(|error| format!("TLS handshake failed: {error}"))?;
    exchange(stream, request).await
}

fn request(address: &Address, headers: &[(String, String)]) -> Result<Request<Empty<Bytes>>, String> {
    let mut request = Request::get(encoded(&address.path))
        .body(Empty::new())
        .map_err(|_| format!("{} is not a valid path", address.path))?;
    let map = request.headers_mut();
    map.insert(USER_AGENT, HeaderValue::from_static(concat!("quorate-probe/", env!("CARGO_PKG_VERSION"))));
    map.insert(ACCEPT, HeaderValue::from_static("*/*"));
    let authority = tcp::authority(&address.host, address.port);
    let authority =
        HeaderValue::from_str(&authority).map_err(|_| format!("{} is not a valid host", address.host))?;
    map.insert(HOST, authority);
    add_headers(map, headers)?;
    // Connections are not reused: another process may have the same address at the next probe.
    map.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

/// Adds the headers of the probe. The first header of a name replaces the default, further ones are appended.
fn add_headers(map: &mut HeaderMap, headers: &[(String, String)]) -> Result<(), String> {
    let mut given: Vec<HeaderName> = Vec::new();
    for (name, value) in headers {
        let no_header = || format!("header {name} cannot be sent");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| no_header())?;
        let value = HeaderValue::from_str(value).map_err(|_| no_header())?;
        if given.contains(&name) {
            map.append(&name, value);
        } else {
            map.insert(&name, value);
            given.push(name);
        }
    }
    Ok(())
}

/// Encodes a path for the request: users write spaces and umlauts. A fragment is not sent.
fn encoded(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    utf8_percent_encode(path, UNSENDABLE).to_string()
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<HttpOutcome, String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let broke = |error: hyper::Error| format!("HTTP request failed: {error}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    let mut connection = pin!(connection);
    let mut outcome = pin!(async move {
        let response = sender.send_request(request).await.map_err(broke)?;
        Ok(outcome_of(response).await)
    });
    // Only this function drives the connection, so the connection closes with the probe. It may close before the whole
    // response has been read from it.
    tokio::select! {
        outcome = outcome.as_mut() => return outcome,
        _ = connection.as_mut() => {}
    }
    outcome.await
}

async fn outcome_of(response: Response<Incoming>) -> HttpOutcome {
    let status = response.status();
    const FOLLOWED: [StatusCode; 5] = [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::SEE_OTHER,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    let location = response.headers().get(LOCATION).filter(|_| FOLLOWED.contains(&status));
    if let Some(location) = location {
        return HttpOutcome::Redirect(String::from_utf8_lossy(location.as_bytes()).into_owned());
    }
    if (200..400).contains(&status.as_u16()) {
        return HttpOutcome::Passed;
    }
    let text = body(response.into_body()).await;
    let text = super::one_line(&text);
    HttpOutcome::Failed(if text.is_empty() {
        format!("HTTP {status}")
    } else {
        format!("HTTP {status}: {text}")
    })
}

/// The start of a body. It is for people, so invalid UTF-8 is replaced and an unreadable rest is left out.
async fn body(mut body: Incoming) -> String {
    let mut text = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            text.extend_from_slice(&data[..data.len().min(BODY - text.len())]);
        }
        if text.len() >= BODY {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
