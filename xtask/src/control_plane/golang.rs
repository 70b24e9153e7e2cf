//! The Go toolchain, and how a program is built with it.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// The first Go that fetches a newer toolchain by itself where a module asks for one.
const OLDEST_GO: (u32, u32) = (1, 21);

/// A release of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) patch: u32,
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<u32>> =
            text.trim_start_matches('v').split('.').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[major, minor, patch]) => Ok(Self { major, minor, patch }),
            _ => bail!("\"{text}\" is not a release of Kubernetes: it is written like 1.36.3"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What the linker is told. Without it the programs take themselves for v0.0.0, and kubectl warns about the skew.
pub(crate) fn link_flags(version: Version) -> String {
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

/// A Go toolchain that is there and new enough.
pub(crate) struct Go;

impl Go {
    pub(crate) fn find(kubernetes: Version) -> Result<Self> {
        let advice = "install it (https://go.dev/doc/install), then run `cargo xtask control-plane` again";
        let Ok(output) = Command::new("go").args(["env", "GOVERSION"]).output() else {
            bail!("building Kubernetes {kubernetes} needs Go, and there is no `go` on the PATH: {advice}");
        };
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match go_version(&found) {
            Some(version) if version >= OLDEST_GO => Ok(Self),
            _ => bail!(
                "building Kubernetes {kubernetes} needs Go {}.{} or newer, and `go` is {found}: {advice}",
                OLDEST_GO.0,
                OLDEST_GO.1
            ),
        }
    }

    /// Builds one `main` package of the module in the folder `module`.
    pub(crate) fn build(&self, module: &Path, package: &str, flags: &str, into: &Path) -> Result<()> {
        let mut command = self.command(module);
        command.env("CGO_ENABLED", "0");
        command.args(["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o"]);
        workspace::run(command.arg(into).arg(package))
            .with_context(|| format!("cannot build {package} in {}", module.display()))
    }

    /// A `go` command in the folder `module`, which is a module of its own whatever is around it.
    pub(crate) fn command(&self, module: &Path) -> Command {
        let mut command = Command::new("go");
        command.current_dir(module).env("GOWORK", "off");
        command
    }
}

/// Reads `go1.26.8`, `go1.26-X:nodwarf5`, `go1.27rc1`.
fn go_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.strip_prefix("go")?.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_says_of_itself() {
        assert_eq!(go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(go_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(go_version(""), None);
    }

    #[test]
    fn a_release_is_three_numbers() {
        let version: Version = "v1.36.3".parse().expect("a release");
        assert_eq!(version, "1.36.3".parse().expect("a release"));
        assert_eq!(version.to_string(), "v1.36.3");
        let error = "1.36".parse::<Version>().expect_err("no patch number");
        assert!(error.to_string().contains("written like 1.36.3"), "{error}");
    }

    #[test]
    fn the_programs_know_their_version() {
        let flags = link_flags("1.32.5".parse().expect("a release"));
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.32.5 "), "{flags}");
        assert!(flags.contains("-X k8s.io/component-base/version.gitMinor=32 "), "{flags}");
    }
}
