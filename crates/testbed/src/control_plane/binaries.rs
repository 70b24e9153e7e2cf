//! The paths of the programs of a control plane.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Result, bail};
use quorate_devcluster::apiserver::WorkloadApi;

/// Environment variable with the Kubernetes release for the tests; `cargo xtask test --kubernetes` sets it.
const CHOICE: &str = "QUORATE_KUBERNETES";

/// The Kubernetes releases that `cargo xtask control-plane` can build. A later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kubernetes {
    /// The oldest release that Quorate supports.
    V1_32,
    /// The release with the first version of the Workload API.
    V1_35,
    /// The default release for tests.
    V1_36,
}

impl Default for Kubernetes {
    /// The value of `QUORATE_KUBERNETES`, or 1.36.
    fn default() -> Self {
        match std::env::var(CHOICE) {
            Ok(name) => name.parse().unwrap_or_else(|error| panic!("{CHOICE}: {error}")),
            Err(_) => Self::V1_36,
        }
    }
}

impl FromStr for Kubernetes {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|release| release.name() == name) {
            Some(release) => Ok(release),
            None => bail!(
                "\"{name}\" is not a supported release: use one of {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }
}

impl Kubernetes {
    const ALL: [Self; 3] = [Self::V1_36, Self::V1_35, Self::V1_32];

    /// The name for `cargo xtask control-plane --kubernetes`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_36 => "1.36",
            Self::V1_35 => "1.35",
            Self::V1_32 => "1.32",
        }
    }

    /// The version of the Workload API that this release serves if the API is enabled.
    pub fn workload_api(self) -> WorkloadApi {
        match self {
            Self::V1_36 => WorkloadApi::V1Alpha2,
            Self::V1_35 => WorkloadApi::V1Alpha1,
            Self::V1_32 => WorkloadApi::Off,
        }
    }
}

/// Programs that also work with the API server of another release.
const SHARED: [&str; 3] = ["etcd", "kube-scheduler", "kubectl"];

/// The path of a program of the control plane. Fails if it was not built.
pub(crate) fn find(kubernetes: Kubernetes, program: &str) -> Result<PathBuf> {
    let path_in = |release: Kubernetes| control_planes().join(release.name()).join("bin").join(program);
    let path = path_in(kubernetes);
    // For a release that only some stories need, only the API server and the controllers are built.
    let shared = path_in(Kubernetes::default());
    if !path.exists() && SHARED.contains(&program) && shared.exists() {
        return Ok(shared);
    }
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

/// The folder of the built control planes; `cargo xtask control-plane` writes to the same folder.
fn control_planes() -> PathBuf {
    if let Some(folder) = std::env::var_os("QUORATE_CONTROL_PLANES") {
        return folder.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("control-plane")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse_by_name_and_a_later_one_is_greater() {
        let older: Kubernetes = "1.32".parse().expect("a release");
        assert!(older < "1.36".parse().expect("a release"));
        let error = "1.3".parse::<Kubernetes>().expect_err("no such release");
        assert_eq!(error.to_string(), "\"1.3\" is not a supported release: use one of 1.36, 1.35, 1.32");
    }
}
