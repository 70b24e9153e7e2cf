//! Snapshots of etcd, and what an administrator does with them.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{API_SERVER, ControlPlane, ETCD, command_line, listens};

/// What etcd stored at one time.
#[derive(Debug)]
pub(crate) struct Backup {
    folder: TempDir,
}

impl ControlPlane {
    /// Copies what etcd has stored. etcd stands still meanwhile, so the copy is as the disk would be after a power loss.
    pub(crate) fn back_up(&self) -> Result<Backup> {
        let folder = tempfile::Builder::new().prefix("quorate-etcd-").tempdir()?;
        self.signal_etcd("STOP")?;
        let copied = copy(&self.etcd_folder(), folder.path());
        self.signal_etcd("CONT")?;
        copied.context("cannot copy what etcd has stored")?;
        Ok(Backup { folder })
    }

    /// Restores etcd: stops the API server and etcd, puts the copy in place, and starts both again. Versions continue from
    /// those of the copy. The other programs go on.
    pub(crate) async fn restore(&self, backup: &Backup) -> Result<()> {
        self.kill(API_SERVER);
        self.kill(ETCD);
        let (folder, port) = (self.etcd_folder(), self.etcd_port);
        std::fs::remove_dir_all(&folder)?;
        copy(backup.folder.path(), &folder).context("cannot restore etcd")?;
        self.run(ETCD, &command_line::etcd(&folder, port))?;
        self.until("etcd listens again", || async move { listens(port) }).await?;
        self.start_api_server().await
    }

    pub(super) fn etcd_folder(&self) -> std::path::PathBuf {
        self.folder.path().join(command_line::ETCD_FOLDER)
    }

    fn signal_etcd(&self, signal: &str) -> Result<()> {
        let processes = self.processes.lock();
        let etcd = processes.iter().find(|process| process.name() == ETCD).context("etcd does not run")?;
        Ok(etcd.signal(signal)?)
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
