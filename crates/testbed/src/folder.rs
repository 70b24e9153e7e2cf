//! A folder that is removed with the test, even if the test is killed.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// The cleanup shell. It waits for a line or the end of its input. A line means that `TempDir` removes the folder. This
/// process has the other end of the pipe, so its death ends the input too. The module `process` explains why.
const CLEANUP_SCRIPT: &str = r#"read -r line || rm -rf "$1""#;

/// A temporary folder, with a shell that removes it.
#[derive(Debug)]
pub(crate) struct Folder {
    cleanup_shell: Child,
    folder: TempDir,
}

impl Folder {
    pub(crate) fn new(prefix: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir()?;
        let cleanup_shell = Command::new("sh")
            .args(["-c", CLEANUP_SCRIPT, "cleanup"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must not kill the shell. It notices only the end of this process.
            .process_group(0)
            .spawn()?;
        Ok(Self { cleanup_shell, folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.cleanup_shell.stdin.take() {
            // A write to a shell that has ended fails, and needs no handling.
            let _ = pipe.write_all(b"end\n");
        }
        let _ = self.cleanup_shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_folder_is_removed() {
        let folder = Folder::new("quorate-test-").expect("a folder");
        let path = folder.path().to_owned();
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_is_removed_when_its_process_dies() {
        let mut folder = Folder::new("quorate-test-").expect("a folder");
        std::fs::write(folder.path().join("kubeconfig"), "").expect("a file");
        // The kernel does the same when this process dies.
        drop(folder.cleanup_shell.stdin.take());
        folder.cleanup_shell.wait().expect("a status");
        assert!(!folder.path().exists());
    }
}
