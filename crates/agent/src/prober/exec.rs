//! Commands in a container, through the Container Runtime Interface (CRI) of containerd and CRI-O. There is no shell,
//! and the exit code decides.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use tokio::net::UnixStream;

use super::grpc::{self, DEADLINE_EXCEEDED, Failure};
use super::one_line;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) cmd: Vec<String>,
    /// In seconds; after that the runtime kills the command.
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

/// CRI-O returns this text and exit code -1 for a command that it killed after its timeout.
const TIMED_OUT: &[u8] = b"command timed out";

/// Runs a command; `Ok` means that the probe passes.
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
    let late = || Err(format!("{name} did not exit within {} s", limit.as_secs()));
    match grpc::call::<_, ExecSyncResponse>(stream, "localhost", method, &request).await {
        Ok(answer) if answer.exit_code == 0 => Ok(()),
        Ok(answer) if answer.exit_code == -1 && answer.stderr == TIMED_OUT => late(),
        Ok(answer) => {
            let outputs =
                [&answer.stdout, &answer.stderr].map(|bytes| one_line(&String::from_utf8_lossy(bytes)));
            let output = outputs.into_iter().find(|output| !output.is_empty());
            let ended = format!("{name} exited with {}", answer.exit_code);
            Err(output.map_or(ended.clone(), |output| format!("{ended}: {output}")))
        }
        Err(Failure::Status(DEADLINE_EXCEEDED, _)) => late(),
        Err(Failure::Status(_, message)) => Err(format!("{name} cannot be run: {}", cause(&message))),
        Err(Failure::Broken(why)) => Err(format!("call to the container runtime failed: {why}")),
    }
}

/// Why a command was not started. Both runtimes pass on the error of runc after a long prefix that changes every time:
/// containerd adds an ID, CRI-O the time and the log line that runc printed.
fn cause(message: &str) -> String {
    const RUNC: &str = "unable to start container process: ";
    let Some((_, error)) = message.split_once(RUNC) else { return message.to_owned() };
    let error = error.lines().next().unwrap_or_default();
    if message.starts_with("command error: ") {
        // The rest of a quoted text, with escaped quotes inside.
        return error.strip_suffix('"').unwrap_or(error).replace("\\\"", "\"");
    }
    // containerd appends its error class.
    error.strip_suffix(": unknown").unwrap_or(error).to_owned()
}
