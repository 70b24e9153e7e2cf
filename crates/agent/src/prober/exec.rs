//! Commands in a container, through the runtime's own interface (CRI): containerd and CRI-O speak it alike. There is no
//! shell, and the exit code decides.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use tokio::net::UnixStream;

use super::grpc::{self, DEADLINE_EXCEEDED, Failure};
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

/// What CRI-O answers, with -1 as the exit code, for a command that it ended because of its timeout.
const TIMED_OUT: &[u8] = b"command timed out";

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
    let late = || Err(format!("{name} did not end within {} s", limit.as_secs()));
    match grpc::call::<_, ExecSyncResponse>(stream, "localhost", method, &request).await {
        Ok(answer) if answer.exit_code == 0 => Ok(()),
        Ok(answer) if answer.exit_code == -1 && answer.stderr == TIMED_OUT => late(),
        Ok(answer) => {
            let said = [&answer.stdout, &answer.stderr].map(|bytes| words(&String::from_utf8_lossy(bytes)));
            let said = said.into_iter().find(|said| !said.is_empty());
            let ended = format!("{name} ended with {}", answer.exit_code);
            Err(said.map_or(ended.clone(), |said| format!("{ended}: {said}")))
        }
        Err(Failure::Status(DEADLINE_EXCEEDED, _)) => late(),
        Err(Failure::Status(_, message)) => Err(format!("{name} cannot be run: {}", cause(&message))),
        Err(Failure::Broken(why)) => Err(format!("no answer of the container runtime: {why}")),
    }
}

/// Why a command was not started. Both runtimes pass on what runc says, behind words of their own that are long and never
/// twice the same: containerd an ID, CRI-O the time, and what runc printed as a line of its log.
fn cause(message: &str) -> String {
    const RUNC: &str = "unable to start container process: ";
    let Some((_, said)) = message.split_once(RUNC) else { return message.to_owned() };
    let said = said.lines().next().unwrap_or_default();
    if message.starts_with("command error: ") {
        // The end of a quoted text, with quotes inside of it.
        return said.strip_suffix('"').unwrap_or(said).replace("\\\"", "\"");
    }
    // containerd adds the kind of error that it took it for.
    said.strip_suffix(": unknown").unwrap_or(said).to_owned()
}
