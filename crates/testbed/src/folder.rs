//! A folder that goes away with the test, whatever ends the test.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Waits for a line, or for the end, of its input: a line means that somebody else removes the folder. It is this
/// process that holds the other end, so the end comes with its death too. See `process` for the whole story.
const KEEPER: &str = r#"read -r line || rm -rf "$1""#;

/// A temporary folder with a keeper.
#[derive(Debug)]
pub(crate) struct Folder {
    keeper: Child,
    folder: TempDir,
}

impl Folder {
    pub(crate) fn new(prefix: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir()?;
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C reaches it only as the end of this process.
            .process_group(0)
            .spawn()?;
        Ok(Self { keeper, folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.keeper.stdin.take() {
            // A keeper that is gone need not be told.
            let _ = pipe.write_all(b"end\n");
        }
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_gone_once_it_is_dropped() {
        let folder = Folder::new("quorate-test-").expect("a folder");
        let path = folder.path().to_owned();
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_whose_maker_is_gone_goes_too() {
        let mut folder = Folder::new("quorate-test-").expect("a folder");
        std::fs::write(folder.path().join("kubeconfig"), "").expect("a file");
        // What the kernel does when this process dies.
        drop(folder.keeper.stdin.take());
        folder.keeper.wait().expect("a status");
        assert!(!folder.path().exists());
    }
}
