//! The paths, crates and commands of the workspace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The folder of the built control planes. The testbed looks in the same folder.
pub(crate) fn control_planes() -> PathBuf {
    if let Some(folder) = std::env::var_os("QUORATE_CONTROL_PLANES") {
        return folder.into();
    }
    target().join("control-plane")
}

/// The target folder of cargo.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The names of the workspace's crates, in the order of their folders.
pub(crate) fn crates() -> Result<Vec<String>> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root().join("crates"))
        .context("cannot list crates/")?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    folders.sort();
    let manifests =
        folders.iter().map(|folder| folder.join("Cargo.toml")).filter(|manifest| manifest.exists());
    manifests.map(|manifest| package_name(&std::fs::read_to_string(&manifest)?)).collect()
}

/// The names of all test targets, as `cargo test --test` accepts them.
pub(crate) fn test_targets() -> Result<BTreeSet<String>> {
    let output = cargo(&["metadata", "--no-deps", "--locked", "--format-version=1"])
        .output()
        .context("cannot start cargo metadata")?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    Ok(targets.filter(|target| target.kind == ["test"]).map(|target| target.name).collect())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Reads the package name from a manifest: the name of the binary's crate differs from its folder.
fn package_name(manifest: &str) -> Result<String> {
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned).context("the manifest has no package name")
}

/// A cargo command at the root of the workspace. The variables that cargo sets for xtask are not passed on: build
/// scripts read them, and their dependents would be rebuilt after each cargo command that a user runs by hand.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| is_about_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

fn is_about_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Runs a command and waits for it. The output goes to the terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}
