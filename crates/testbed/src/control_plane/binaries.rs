//! Where the programs of a control plane are.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The Kubernetes releases that `cargo xtask control-plane` can build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kubernetes {
    /// The one that is tried unless something else is said.
    #[default]
    V1_36,
    /// The one with the first shape of the Workload API.
    V1_35,
    /// The oldest that Quorate claims to run beside.
    V1_32,
}

impl Kubernetes {
    /// As it is written in `cargo xtask control-plane --kubernetes`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_36 => "1.36",
            Self::V1_35 => "1.35",
            Self::V1_32 => "1.32",
        }
    }

    /// The version of `scheduling.k8s.io` that has workloads or pod groups, where there is one.
    pub(crate) fn workload_api(self) -> Option<&'static str> {
        match self {
            Self::V1_36 => Some("v1alpha2"),
            Self::V1_35 => Some("v1alpha1"),
            Self::V1_32 => None,
        }
    }
}

/// The path of a program of the control plane, if it was built.
pub(crate) fn find(kubernetes: Kubernetes, program: &str) -> Result<PathBuf> {
    let path = control_planes().join(kubernetes.name()).join("bin").join(program);
    if !path.exists() {
        bail!(
            "there is no {program} of Kubernetes {name} at {path}: build it with \
             `cargo xtask control-plane --kubernetes {name}`",
            name = kubernetes.name(),
            path = path.display()
        );
    }
    Ok(path)
}

/// The folder of the built control planes; `cargo xtask control-plane` writes to the same.
fn control_planes() -> PathBuf {
    if let Some(folder) = std::env::var_os("QUORATE_CONTROL_PLANES") {
        return folder.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("control-plane")
}
