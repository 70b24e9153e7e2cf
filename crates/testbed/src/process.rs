//! A process that ends when the test ends, even if the test is killed.
//!
//! `Drop` does not run when a test is killed, and a signal at the death of the parent cannot be requested without
//! `unsafe`. So each process is the child of a small shell, which has the reading end of a pipe. Only this process has
//! the other end. When the kernel closes it because this process died, the shell kills its child and removes the
//! folder. Both run in their own process group, so Ctrl-C reaches them only this way.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The shell waits for a line or the end of its input. After a line it only kills the process. After the end of the
/// input it also removes the folder. Status 137 means "killed"; with any other status the process was not killed here.
const SUPERVISOR_SCRIPT: &str = r#"
folder=$1
shift
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
echo "$child" > "$folder/$0.pid"
(
    read -r line <&3
    over=$?
    kill -KILL "$child" 2>/dev/null
    exit "$over"
) &
watcher=$!
exec 3<&-
wait "$child"
status=$?
if [ "$status" -eq 137 ]; then
    wait "$watcher" || rm -rf "$folder"
else
    kill "$watcher" 2>/dev/null
fi
exit "$status"
"#;

/// Number of log lines in an error.
const LOG_TAIL_LINES: usize = 12;

/// A running process with its log.
#[derive(Debug)]
pub struct Process {
    name: String,
    shell: Child,
    log: PathBuf,
    id: PathBuf,
}

impl Process {
    /// Starts `program` with `args`. Its log is `<name>.log` in `folder`, which is removed if this process is killed.
    pub fn start(name: &str, program: &Path, args: &[String], folder: &Path) -> io::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let shell = Command::new("sh")
            .args(["-c", SUPERVISOR_SCRIPT, name])
            .arg(folder)
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()?;
        Ok(Self { name: name.to_owned(), shell, log, id: folder.join(format!("{name}.pid")) })
    }

    /// The name of the process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn id(&self) -> io::Result<u32> {
        std::fs::read_to_string(&self.id)?.trim().parse().map_err(io::Error::other)
    }

    /// Sends it a signal by its name, such as `TERM` or `STOP`.
    pub fn signal(&self, signal: &str) -> io::Result<()> {
        let sent = Command::new("kill").args(["-s", signal, &self.id()?.to_string()]).output()?;
        if sent.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&sent.stderr).into_owned()))
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().ok().flatten()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A write to a shell that has ended fails, and needs no handling.
            let _ = pipe.write_all(b"end\n");
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn await_file(path: &Path) -> String {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match std::fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => assert!(Instant::now() < deadline, "{} was not written", path.display()),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_running(pid: &str) -> bool {
        Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    }

    /// A process that writes its process ID to `folder/pid` and then sleeps.
    fn sleeper(folder: &Path) -> Process {
        let script = format!("echo $$ > {}/pid; exec sleep 1000", folder.display());
        Process::start("sleeper", Path::new("/bin/sh"), &["-c".to_owned(), script], folder).expect("started")
    }

    #[test]
    fn dropping_a_process_ends_it_and_keeps_its_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = sleeper(folder.path());
        let pid = await_file(&folder.path().join("pid"));
        assert!(is_running(&pid));
        drop(process);
        assert!(!is_running(&pid));
        assert!(folder.path().join("sleeper.log").exists());
    }

    #[test]
    fn the_exit_status_and_log_of_a_process_are_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ["-c".to_owned(), "echo no such flag >&2; exit 3".to_owned()];
        let mut process =
            Process::start("failing", Path::new("/bin/sh"), &args, folder.path()).expect("started");
        let status = loop {
            if let Some(status) = process.ended() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(3));
        assert_eq!(process.log_tail(), "no such flag");
    }

    #[test]
    fn a_process_and_its_folder_end_with_the_parent() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).expect("a folder");
        let mut process = sleeper(&inner);
        let pid = await_file(&inner.join("pid"));
        // The kernel does the same when this process dies.
        drop(process.shell.stdin.take());
        process.shell.wait().expect("a status");
        assert!(!is_running(&pid));
        assert!(!inner.exists());
    }
}
