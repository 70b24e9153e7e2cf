//! `cargo xtask control-plane`: a real Kubernetes, built from Go modules.
//!
//! `xtask/control-plane/<minor>` holds a Go module that pins one Kubernetes release and the etcd that release asks
//! for. The binaries go to `target/control-plane/<minor>/bin`, where the testbed looks for them. A binary is built
//! again only when the pinned module, or the way it is built, has changed since.

mod golang;
mod pin;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use sha2::{Digest, Sha256};

use self::golang::{Go, Version};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which Kubernetes.
    #[arg(long, value_enum, default_value = "1.36")]
    kubernetes: Minor,
    /// The kubelet as well.
    #[arg(long)]
    kubelet: bool,
    /// Write the module files for this release (such as 1.36.3) anew, then build it.
    #[arg(long, value_name = "RELEASE", conflicts_with = "kubernetes")]
    pin: Option<Version>,
}

/// The Kubernetes minor releases that there is a module for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Minor {
    /// What is tried by default.
    #[value(name = "1.36")]
    V1_36,
    /// The one with the first shape of the Workload API.
    #[value(name = "1.35")]
    V1_35,
    /// The oldest that Quorate claims to run beside.
    #[value(name = "1.32")]
    V1_32,
}

/// A program of the control plane.
struct Program {
    name: &'static str,
    /// The Go package of its `main`.
    package: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program { name: "etcd", package: "go.etcd.io/etcd/server/v3" },
    Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" },
    Program { name: "kube-controller-manager", package: "k8s.io/kubernetes/cmd/kube-controller-manager" },
    Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler" },
    Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl" },
];

const KUBELET: Program = Program { name: "kubelet", package: "k8s.io/kubernetes/cmd/kubelet" };

pub(crate) fn run(args: &Args) -> Result<()> {
    let minor = match args.pin {
        Some(version) => {
            let minor = Minor::of(version)?;
            pin::write(&minor.module(), version)?;
            minor
        }
        None => args.kubernetes,
    };
    build(minor, args.kubelet)
}

/// Makes sure that the control plane of `minor` is built.
pub(crate) fn build(minor: Minor, kubelet: bool) -> Result<()> {
    let module = minor.module();
    let version = pin::read(&module)?;
    let home = workspace::control_planes().join(minor.name());
    let bin = home.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;

    // Two builds at once would do all the work twice.
    let lock = File::create(home.join("lock")).context("cannot make the lock file of the control plane")?;
    lock.lock().context("cannot lock the control plane's folder")?;

    let flags = golang::link_flags(version);
    let wanted = checksum(&module, &flags)?;
    let programs: Vec<&Program> = PROGRAMS.iter().chain(kubelet.then_some(&KUBELET)).collect();
    let missing: Vec<&Program> =
        programs.iter().copied().filter(|program| !is_built(&home, program, &wanted)).collect();
    if missing.is_empty() {
        println!("Kubernetes {version} is built: {}", bin.display());
        return Ok(());
    }

    let go = Go::find(version)?;
    println!("Kubernetes {version}: {} programs to build, some minutes the first time", missing.len());
    for (index, program) in missing.iter().enumerate() {
        println!("==> {} ({} of {})", program.name, index + 1, missing.len());
        let start = Instant::now();
        go.build(&module, program.package, &flags, &bin.join(program.name))?;
        fs::write(stamp(&home, program), &wanted)
            .with_context(|| format!("cannot note that {} is built", program.name))?;
        println!("<== {}: ok ({:.1} s)", program.name, start.elapsed().as_secs_f64());
    }
    println!("Kubernetes {version} is built: {}", bin.display());
    Ok(())
}

impl Minor {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1_36 => "1.36",
            Self::V1_35 => "1.35",
            Self::V1_32 => "1.32",
        }
    }

    fn of(version: Version) -> Result<Self> {
        let name = format!("{}.{}", version.major, version.minor);
        let found = Self::value_variants().iter().copied().find(|minor| minor.name() == name);
        found.with_context(|| {
            let known: Vec<&str> = Self::value_variants().iter().map(|minor| minor.name()).collect();
            format!("there is no module for Kubernetes {name}: there are {}", known.join(", "))
        })
    }

    /// The folder of the Go module that pins this release.
    fn module(self) -> PathBuf {
        workspace::root().join("xtask/control-plane").join(self.name())
    }
}

/// One number for everything that decides what the binaries are.
fn checksum(module: &Path, flags: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum", "mains.go"] {
        let path = module.join(file);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        hash.update(Sha256::digest(&text));
    }
    hash.update(flags);
    Ok(format!("{:x}", hash.finalize()))
}

/// Where it is noted from what a program was built. One note each, so that an interrupted build goes on where it was.
fn stamp(home: &Path, program: &Program) -> PathBuf {
    home.join(format!("{}.sha256", program.name))
}

fn is_built(home: &Path, program: &Program, wanted: &str) -> bool {
    let noted = fs::read_to_string(stamp(home, program)).unwrap_or_default();
    noted == wanted && home.join("bin").join(program.name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_pins_a_release_of_its_minor() {
        for &minor in Minor::value_variants() {
            let version = pin::read(&minor.module()).expect("the module pins a release");
            assert_eq!(Minor::of(version).expect("a known minor"), minor);
        }
    }

    #[test]
    fn every_module_imports_every_program() {
        for minor in Minor::value_variants() {
            let mains = fs::read_to_string(minor.module().join("mains.go")).expect("mains.go");
            for program in PROGRAMS.iter().chain([&KUBELET]) {
                assert!(mains.contains(&format!("\"{}\"", program.package)), "{} {minor:?}", program.name);
            }
        }
    }

    #[test]
    fn a_program_is_built_again_when_its_note_differs() {
        let home = std::env::temp_dir().join(format!("quorate-xtask-{}", std::process::id()));
        fs::create_dir_all(home.join("bin")).expect("a folder");
        let etcd = &PROGRAMS[0];
        fs::write(stamp(&home, etcd), "one").expect("a note");
        assert!(!is_built(&home, etcd, "one"), "the binary is missing");
        fs::write(home.join("bin/etcd"), "").expect("a binary");
        assert!(is_built(&home, etcd, "one"));
        assert!(!is_built(&home, etcd, "two"));
        fs::remove_dir_all(home).expect("removed");
    }

    #[test]
    fn another_file_or_another_flag_gives_another_checksum() {
        let module = Minor::V1_36.module();
        let first = checksum(&module, "-s").expect("a checksum");
        assert_eq!(first, checksum(&module, "-s").expect("a checksum"));
        assert_ne!(first, checksum(&module, "-w").expect("a checksum"));
        assert_ne!(first, checksum(&Minor::V1_35.module(), "-s").expect("a checksum"));
    }
}
