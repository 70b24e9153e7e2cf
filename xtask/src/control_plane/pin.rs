//! Reads and writes the Go modules in `xtask/control-plane`.
//!
//! The modules are checked in, including `go.sum`, so that a build neither looks for newer versions nor uses anything
//! that `go.sum` does not list. Kubernetes' own go.mod replaces its staging modules with folders of its repository. A
//! module that requires Kubernetes does not have these folders, so each staging module is replaced here with the module
//! that is published from that folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{KUBELET, PROGRAMS};
use crate::golang::{Go, Version, required};
use crate::workspace;

/// The Kubernetes release that the module in the folder `module` pins.
pub(crate) fn read(module: &Path) -> Result<Version> {
    let path = module.join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    required(&text, "k8s.io/kubernetes")
        .with_context(|| format!("{} does not require k8s.io/kubernetes", path.display()))?
        .parse()
}

/// Writes the module for `version` into the folder `module`.
pub(crate) fn write(module: &Path, version: Version) -> Result<()> {
    let go = Go::find(&format!("Kubernetes {version}"))?;
    fs::create_dir_all(module).with_context(|| format!("cannot make {}", module.display()))?;
    println!("==> module files for Kubernetes {version}");
    let upstream = fs::read_to_string(upstream_go_mod(&go, version)?)?;
    fs::write(module.join("go.mod"), go_mod(&upstream, version)?)?;
    fs::write(module.join("mains.go"), mains_go())?;
    workspace::run(go.command(module).args(["mod", "tidy"]))?;
    println!("<== module files for Kubernetes {version}: {}", module.display());
    Ok(())
}

/// The path of Kubernetes' own go.mod in Go's module cache.
fn upstream_go_mod(go: &Go, version: Version) -> Result<PathBuf> {
    let module = format!("k8s.io/kubernetes@{version}");
    let mut command = go.command(&std::env::temp_dir());
    let output = command
        .args(["list", "-m", "-f", "{{.GoMod}}", &module])
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || path.is_empty() {
        bail!("cannot fetch {module}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(path.into())
}

fn go_mod(upstream: &str, version: Version) -> Result<String> {
    let lines = |prefix: &'static str| upstream.lines().filter(move |line| line.starts_with(prefix));
    let go = lines("go ").next().context("Kubernetes' go.mod does not name a Go version")?;
    let etcd =
        required(upstream, "go.etcd.io/etcd/client/v3").context("Kubernetes' go.mod requires no etcd")?;
    // Go uses `godebug` only from the main module, which is the one written here.
    let godebug: Vec<&str> = lines("godebug ").collect();
    let staging: Vec<String> = upstream
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("replace ").split_once(" => ./staging/"))
        .map(|(name, _)| format!("\t{name} => {name} v0.{}.{}", version.minor, version.patch))
        .collect();
    if staging.is_empty() {
        bail!("Kubernetes' go.mod replaces no staging module");
    }
    Ok(format!(
        "module quorate.dev/control-plane\n\n{go}\n\n{}\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 {etcd}\n\t\
         k8s.io/kubernetes {version}\n)\n\nreplace (\n{}\n)\n",
        godebug.join("\n"),
        staging.join("\n"),
    ))
}

/// A file that is never compiled. It makes `go mod tidy` keep the dependencies of the programs.
fn mains_go() -> String {
    let imports: Vec<String> =
        PROGRAMS.iter().chain([&KUBELET]).map(|program| format!("\t_ \"{}\"", program.package)).collect();
    format!("//go:build mains\n\npackage controlplane\n\nimport (\n{}\n)\n", imports.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPSTREAM: &str = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire (\n\
        \tgo.etcd.io/etcd/client/v3 v3.6.8\n\tk8s.io/api v0.0.0\n)\n\nreplace (\n\
        \tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n)\n";

    #[test]
    fn the_module_uses_the_versions_of_kubernetes_own_module() {
        let text = go_mod(UPSTREAM, "1.36.3".parse().expect("a release")).expect("a go.mod");
        assert!(text.contains("\ngo 1.26.0\n\ngodebug default=go1.26\n"), "{text}");
        assert!(text.contains("\tgo.etcd.io/etcd/server/v3 v3.6.8\n\tk8s.io/kubernetes v1.36.3\n"), "{text}");
        assert!(
            text.contains("\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/kms => k8s.io/kms v0.36.3\n"),
            "{text}"
        );
    }

    #[test]
    fn a_replaced_module_is_not_taken_for_a_required_one() {
        assert_eq!(required(UPSTREAM, "k8s.io/kms"), None);
        assert_eq!(required("require k8s.io/kubernetes v1.36.3", "k8s.io/kubernetes"), Some("v1.36.3"));
    }
}
