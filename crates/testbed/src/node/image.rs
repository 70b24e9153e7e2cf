//! An image without a registry: busybox, in the form that `docker save` writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{ALIAS, BUSYBOX};

/// Writes `image.tar` into a folder.
pub(super) fn write(folder: &Path) -> Result<()> {
    let parts = folder.join("image");
    let bin = parts.join("root/bin");
    for path in [&bin, &parts.join("root/tmp")] {
        fs::create_dir_all(path)?;
    }
    let busybox = busybox()?;
    fs::copy(&busybox, bin.join("busybox")).with_context(|| format!("cannot copy {}", busybox.display()))?;
    let names = Command::new(&busybox).arg("--list").output().context("cannot run busybox")?;
    for name in String::from_utf8_lossy(&names.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", bin.join(name))?;
    }
    tar(&parts.join("root"), &parts.join("layer.tar"), &["."])?;
    let layer = Sha256::digest(fs::read(parts.join("layer.tar"))?);
    let config = json!({
        "architecture": "amd64", "os": "linux",
        // Sandboxes use this image too, and must keep running.
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "1000000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer:x}")]},
    });
    fs::write(parts.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [BUSYBOX, ALIAS], "Layers": ["layer.tar"]}]);
    fs::write(parts.join("manifest.json"), manifest.to_string())?;
    tar(&parts, &folder.join("image.tar"), &["manifest.json", "config.json", "layer.tar"])
}

/// The statically linked busybox of busybox-static, which needs no libraries.
fn busybox() -> Result<PathBuf> {
    let found =
        ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists());
    found.context("there is no busybox: install busybox-static")
}

fn tar(folder: &Path, archive: &Path, names: &[&str]) -> Result<()> {
    let done = Command::new("tar").arg("-C").arg(folder).arg("-cf").arg(archive).args(names).output();
    let done = done.context("cannot run tar")?;
    if !done.status.success() {
        bail!("tar of {}: {}", folder.display(), String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}
