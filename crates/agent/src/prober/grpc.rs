//! A minimal gRPC client for unary calls.

use std::pin::pin;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, ResponseFuture};
use http::{HeaderMap, Request, StatusCode};
use percent_encoding::percent_decode;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest response body in bytes.
const LONGEST: usize = 1024 * 1024;

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The connection failed, or the response is not valid gRPC.
    Broken(String),
    /// A status other than OK, with its message.
    Status(u32, String),
}

/// The gRPC status codes that the probes handle.
pub(super) const DEADLINE_EXCEEDED: u32 = 4;
pub(super) const UNIMPLEMENTED: u32 = 12;

/// Calls a method and returns its response. The connection closes after the call.
pub(super) async fn call<S, A>(
    stream: S,
    authority: &str,
    method: &str,
    message: &impl Message,
) -> Result<A, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Message + Default,
{
    let broken = |error: h2::Error| Failure::Broken(error.to_string());
    let (sender, connection) = client::handshake(stream).await.map_err(broken)?;
    let request = Request::post(format!("http://{authority}{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", concat!("quorate-probe/", env!("CARGO_PKG_VERSION")))
        .body(())
        .map_err(|error| Failure::Broken(error.to_string()))?;
    let body = framed(message);
    let mut answer = pin!(async move {
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, mut sending) = sender.send_request(request, false).map_err(broken)?;
        sending.send_data(body, true).map_err(broken)?;
        read(response).await
    });
    let mut connection = pin!(connection);
    tokio::select! {
        answer = answer.as_mut() => return answer,
        _ = connection.as_mut() => {}
    }
    answer.await
}

/// A message with its prefix: the flag "not compressed" and the length.
fn framed(message: &impl Message) -> Bytes {
    let mut body = BytesMut::with_capacity(5 + message.encoded_len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
    // Encoding into a growable buffer cannot fail.
    let _ = message.encode(&mut body);
    body.freeze()
}

async fn read<A: Message + Default>(response: ResponseFuture) -> Result<A, Failure> {
    let broken = |error: h2::Error| Failure::Broken(error.to_string());
    let response = response.await.map_err(broken)?;
    if response.status() != StatusCode::OK {
        return Err(Failure::Broken(format!("HTTP {}", response.status())));
    }
    // A response without a body has its status in the headers instead of the trailers.
    status(response.headers(), false)?;
    let mut body = response.into_body();
    let mut data = collected(&mut body).await?;
    let trailers = body.trailers().await.map_err(broken)?.unwrap_or_default();
    status(&trailers, true)?;
    if data.len() < 5 {
        return Err(Failure::Broken("the response has no message".to_owned()));
    }
    let compressed = data.get_u8() != 0;
    let length = usize::try_from(data.get_u32()).unwrap_or(usize::MAX);
    if compressed || length != data.len() {
        return Err(Failure::Broken("the response is not one uncompressed message".to_owned()));
    }
    A::decode(data).map_err(|error| Failure::Broken(error.to_string()))
}

async fn collected(body: &mut RecvStream) -> Result<BytesMut, Failure> {
    let mut all = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| Failure::Broken(error.to_string()))?;
        if all.len() + data.len() > LONGEST {
            return Err(Failure::Broken(format!("the response has more than {LONGEST} bytes")));
        }
        // Without released capacity, the peer stops sending and waits forever.
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Reads the gRPC status. A missing status is an error only if it is required.
fn status(headers: &HeaderMap, required: bool) -> Result<(), Failure> {
    let code = headers.get("grpc-status").map(|code| code.to_str().ok().and_then(|code| code.parse().ok()));
    match code {
        Some(Some(0)) => Ok(()),
        Some(Some(code)) => {
            // On the wire, everything but printable ASCII, and `%` itself, is percent-encoded.
            let message = headers.get("grpc-message").map(|value| percent_decode(value.as_bytes()));
            let message = message.map(|message| message.decode_utf8_lossy().into_owned());
            Err(Failure::Status(code, message.unwrap_or_default()))
        }
        None if !required => Ok(()),
        _ => Err(Failure::Broken("the response has no status".to_owned())),
    }
}
