//! `cargo xtask control-plane`: builds a real Kubernetes control plane from Go modules.
//!
//! `xtask/control-plane/<minor>` holds a Go module that pins one Kubernetes release and the etcd version that this
//! release requires. The binaries go to `target/control-plane/<minor>/bin`, where the testbed looks for them.

mod pin;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::golang::{Pinned, Program, Version};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kubernetes minor release to build
    #[arg(long, value_enum, default_value = "1.36")]
    kubernetes: Minor,
    /// Build the kubelet as well
    #[arg(long)]
    kubelet: bool,
    /// Rewrite the module files for this release (such as 1.36.3), then build it
    #[arg(long, value_name = "RELEASE", conflicts_with = "kubernetes")]
    pin: Option<Version>,
}

/// The Kubernetes minor releases that have a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Minor {
    /// Default release
    #[value(name = "1.36")]
    V1_36,
    /// Release with the first version of the Workload API
    #[value(name = "1.35")]
    V1_35,
    /// Oldest release that Quorate supports
    #[value(name = "1.32")]
    V1_32,
}

const PROGRAMS: [Program; 5] = [
    Program { name: "etcd", package: "go.etcd.io/etcd/server/v3" },
    Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" },
    Program { name: "kube-controller-manager", package: "k8s.io/kubernetes/cmd/kube-controller-manager" },
    Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler" },
    Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl" },
];

/// The programs that the stories run in another release's version. The other programs come from the default release;
/// the testbed finds them there, too.
const OWN: [&str; 2] = ["kube-apiserver", "kube-controller-manager"];

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
    build(minor, if args.kubelet { Part::WithKubelet } else { Part::Whole })
}

/// The programs of a release to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole control plane, and kubectl.
    Whole,
    /// The kubelet as well.
    WithKubelet,
    /// Only the API server and the controllers. The other programs come from the default release.
    Server,
}

/// Builds the control plane of `minor`, unless it is built already.
pub(crate) fn build(minor: Minor, part: Part) -> Result<()> {
    let module = minor.module();
    let version = pin::read(&module)?;
    let pinned = Pinned {
        name: format!("Kubernetes {version}"),
        module,
        home: workspace::control_planes().join(minor.name()),
        flags: link_flags(version),
    };
    let kubelet = (part == Part::WithKubelet).then_some(&KUBELET);
    let wanted = |program: &&Program| part != Part::Server || OWN.contains(&program.name);
    let programs: Vec<&Program> = PROGRAMS.iter().chain(kubelet).filter(wanted).collect();
    pinned.build(&programs)
}

/// Linker flags that set the version. Without them the programs report v0.0.0, and kubectl warns about version skew.
fn link_flags(version: Version) -> String {
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", version.to_string()),
            ("gitMajor", version.major.to_string()),
            ("gitMinor", version.minor.to_string()),
            ("gitTreeState", "archive".to_owned()),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    flags
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
            format!("no module for Kubernetes {name}; available: {}", known.join(", "))
        })
    }

    /// The folder of the Go module that pins this release.
    fn module(self) -> PathBuf {
        workspace::root().join("xtask/control-plane").join(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn the_linker_flags_set_the_version() {
        let flags = link_flags("1.32.5".parse().expect("a release"));
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.32.5 "), "{flags}");
        assert!(flags.contains("-X k8s.io/component-base/version.gitMinor=32 "), "{flags}");
    }
}
