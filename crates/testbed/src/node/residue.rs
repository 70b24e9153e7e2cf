//! What outlives the namespaces of a node: its folder and its control groups. They are removed with the test, even if
//! the test is killed.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The cleanup shell. It has the reading end of a pipe. `drop` closes the other end, or the kernel does when this
/// process dies. The module `process` explains why.
const CLEANUP_SCRIPT: &str = include_str!("residue.sh");

/// A folder and control groups, with a shell that removes them.
#[derive(Debug)]
pub(super) struct Residue {
    cleanup_shell: Child,
    folder: PathBuf,
    id: String,
    cgroup: String,
}

impl Residue {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("quorate-node-").tempdir()?.keep();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let id = name.trim_start_matches("quorate-node-").to_owned();
        let cleanup_shell = Command::new("sh")
            .args(["-c", CLEANUP_SCRIPT, "cleanup"])
            .arg(&folder)
            .args([&name, &super::network::device(&id)])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must not kill the shell. It notices only the end of this process.
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        let residue = Self { cleanup_shell, folder, id, cgroup: name };
        residue.make_cgroups().context("cannot create control groups: nodes need root")?;
        Ok(residue)
    }

    /// A name that is unique on this machine.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The control group of the node, relative to the root of each hierarchy. Two kubelets in one control group would
    /// remove each other's pods.
    pub(super) fn cgroup(&self) -> &str {
        &self.cgroup
    }

    fn make_cgroups(&self) -> io::Result<()> {
        if Path::new(CGROUPS).join("cgroup.controllers").exists() {
            return fs::create_dir(Path::new(CGROUPS).join(&self.cgroup));
        }
        for hierarchy in fs::read_dir(CGROUPS)? {
            let hierarchy = hierarchy?.path();
            // Only hierarchies of version 1 have this file. A hierarchy of version 2 beside them is not used.
            if !hierarchy.join("tasks").exists() {
                continue;
            }
            match fs::create_dir(hierarchy.join(&self.cgroup)) {
                // Some hierarchies have two names.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

impl Drop for Residue {
    fn drop(&mut self) {
        drop(self.cleanup_shell.stdin.take());
        let _ = self.cleanup_shell.wait();
    }
}
