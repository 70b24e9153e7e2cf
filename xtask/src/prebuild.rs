//! Builds the Go programs in the background, while earlier suites run that do not need them.
//!
//! The Rust compiler leaves cores idle at times, and waits for the linker. The builds run in their own process with low
//! priority. They hold the same locks as the suites, so a suite that needs a program waits until it is built. If the
//! background process has failed, the suite builds the program itself.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::chart;
use crate::control_plane::{self, Minor, Part};
use crate::workspace;

/// Something to build with Go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    Helm,
    ControlPlane(Minor, Part),
}

impl Build {
    fn name(self) -> String {
        match self {
            Self::Helm => "helm".to_owned(),
            Self::ControlPlane(minor, Part::Whole) => minor.name().to_owned(),
            Self::ControlPlane(minor, Part::WithKubelet) => format!("{}+kubelet", minor.name()),
            Self::ControlPlane(minor, Part::Server) => format!("{}+server", minor.name()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let (name, part) = match text.split_once('+') {
            Some((name, "kubelet")) => (name, Part::WithKubelet),
            Some((name, "server")) => (name, Part::Server),
            Some(_) => bail!("{text:?} is nothing to build"),
            None if text == "helm" => return Ok(Self::Helm),
            None => (text, Part::Whole),
        };
        match Minor::from_str(name, false) {
            Ok(minor) => Ok(Self::ControlPlane(minor, part)),
            Err(why) => bail!("{text:?} is nothing to build: {why}"),
        }
    }

    fn run(self) -> Result<()> {
        match self {
            Self::Helm => chart::build(),
            Self::ControlPlane(minor, part) => control_plane::build(minor, part),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Programs to build, in this order
    builds: Vec<String>,
}

/// `cargo xtask prebuild`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let builds: Vec<Build> = args.builds.iter().map(|text| Build::parse(text)).collect::<Result<_>>()?;
    builds.into_iter().try_for_each(Build::run)
}

/// The background process. Dropping this stops it and its children.
pub(crate) struct Prebuild(Option<Child>);

impl Prebuild {
    /// Starts the process if there is something to build. The suites do not depend on it, so a failure is only logged.
    pub(crate) fn start(builds: &[Build]) -> Self {
        if builds.is_empty() {
            return Self(None);
        }
        match spawn(builds) {
            Ok(child) => Self(Some(child)),
            Err(error) => {
                println!("cannot build ahead: {error:#}");
                Self(None)
            }
        }
    }
}

fn spawn(builds: &[Build]) -> Result<Child> {
    let path = workspace::target().join("prebuild.log");
    let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut command = Command::new("nice");
    command
        .args(["-n", "10"])
        .arg(std::env::current_exe().context("cannot find the path of this program")?)
        .arg("prebuild");
    command.args(builds.iter().map(|build| build.name()));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    println!("building in the background: {} (see {})", names(builds), path.display());
    command.spawn().context("cannot start nice")
}

fn names(builds: &[Build]) -> String {
    builds.iter().map(|build| build.name()).collect::<Vec<_>>().join(", ")
}

impl Drop for Prebuild {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        if matches!(child.try_wait(), Ok(None)) {
            // The signal goes to the process group, which includes the compilers.
            let _ = Command::new("kill").args(["-TERM", "--", &format!("-{}", child.id())]).status();
        }
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_parsed_from_its_name() {
        for build in [
            Build::Helm,
            Build::ControlPlane(Minor::V1_36, Part::Whole),
            Build::ControlPlane(Minor::V1_36, Part::WithKubelet),
            Build::ControlPlane(Minor::V1_35, Part::Server),
        ] {
            assert_eq!(Build::parse(&build.name()).expect("a name"), build);
        }
        let error = Build::parse("1.36+nonsense").expect_err("no such part");
        assert_eq!(error.to_string(), "\"1.36+nonsense\" is nothing to build");
    }
}
