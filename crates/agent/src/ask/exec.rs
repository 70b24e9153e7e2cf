//! Commands in a container, through the runtime's own interface (CRI): containerd and CRI-O speak it alike. There is no
//! shell, and the exit code decides.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use tokio::net::UnixStream;

use super::unary::{self, DEADLINE_EXCEEDED, Failure};
use super::words;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) cmd: Vec<String>,
    /// In seconds; the runtime ends the command then.
    #[prost(int64, tag = "3")]
    pub(super) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(super) exit_code: i32,
}

/// Runs a command; `Ok` is a yes.
pub(super) async fn run(
    socket: &Path,
    container: &str,
    command: &[String],
    limit: Duration,
) -> Result<(), String> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| format!("cannot reach the container runtime at {}: {error}", socket.display()))?;
    let request = ExecSyncRequest {
        container_id: container.to_owned(),
        cmd: command.to_vec(),
        timeout: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
    };
    let method = "/runtime.v1.RuntimeService/ExecSync";
    let name = command.first().map(String::as_str).unwrap_or_default();
    match unary::call::<_, ExecSyncResponse>(stream, "localhost", method, &request).await {
        Ok(answer) if answer.exit_code == 0 => Ok(()),
        Ok(answer) => {
            let said = [&answer.stdout, &answer.stderr].map(|bytes| words(&String::from_utf8_lossy(bytes)));
            let said = said.into_iter().find(|said| !said.is_empty());
            let ended = format!("{name} ended with {}", answer.exit_code);
            Err(said.map_or(ended.clone(), |said| format!("{ended}: {said}")))
        }
        Err(Failure::Status(DEADLINE_EXCEEDED, _)) => {
            Err(format!("{name} did not end within {} s", limit.as_secs()))
        }
        Err(Failure::Status(_, message)) => Err(format!("{name} cannot be run: {message}")),
        Err(Failure::Broken(why)) => Err(format!("no answer of the container runtime: {why}")),
    }
}
