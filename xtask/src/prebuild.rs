//! Builds the programs of Go beside the suites that come before those which need them.
//!
//! A compiler of Rust leaves a core idle at times, and waits for the linker. The builds run in a process of their own with
//! low priority and take the locks of what they build, so a suite that needs a program waits for it, or builds it if this
//! process has failed.

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
    fn word(self) -> String {
        match self {
            Self::Helm => "helm".to_owned(),
            Self::ControlPlane(minor, Part::Whole) => minor.name().to_owned(),
            Self::ControlPlane(minor, Part::WithKubelet) => format!("{}+kubelet", minor.name()),
            Self::ControlPlane(minor, Part::Server) => format!("{}+server", minor.name()),
        }
    }

    fn read(word: &str) -> Result<Self> {
        let (name, part) = match word.split_once('+') {
            Some((name, "kubelet")) => (name, Part::WithKubelet),
            Some((name, "server")) => (name, Part::Server),
            Some(_) => bail!("{word:?} is nothing to build"),
            None if word == "helm" => return Ok(Self::Helm),
            None => (word, Part::Whole),
        };
        match Minor::from_str(name, false) {
            Ok(minor) => Ok(Self::ControlPlane(minor, part)),
            Err(why) => bail!("{word:?} is nothing to build: {why}"),
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
    /// What to build, in this order.
    builds: Vec<String>,
}

/// `cargo xtask prebuild`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let builds: Vec<Build> = args.builds.iter().map(|word| Build::read(word)).collect::<Result<_>>()?;
    builds.into_iter().try_for_each(Build::run)
}

/// The process; it ends with this, and what it has started with it.
pub(crate) struct Prebuild(Option<Child>);

impl Prebuild {
    /// Starts it, where there is something to build. Nothing rests on it, so a failure is only told.
    pub(crate) fn start(builds: &[Build]) -> Self {
        if builds.is_empty() {
            return Self(None);
        }
        match spawn(builds) {
            Ok(child) => Self(Some(child)),
            Err(error) => {
                println!("nothing is built ahead: {error:#}");
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
        .arg(std::env::current_exe().context("where is this program?")?)
        .arg("prebuild");
    command.args(builds.iter().map(|build| build.word()));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    println!("built beside the suites: {} (see {})", words(builds), path.display());
    command.spawn().context("cannot start nice")
}

fn words(builds: &[Build]) -> String {
    builds.iter().map(|build| build.word()).collect::<Vec<_>>().join(", ")
}

impl Drop for Prebuild {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        if matches!(child.try_wait(), Ok(None)) {
            // The compilers too: they are of its group.
            let _ = Command::new("kill").args(["-TERM", "--", &format!("-{}", child.id())]).status();
        }
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_built_is_passed_on_by_a_word() {
        for build in [
            Build::Helm,
            Build::ControlPlane(Minor::V1_36, Part::Whole),
            Build::ControlPlane(Minor::V1_36, Part::WithKubelet),
            Build::ControlPlane(Minor::V1_35, Part::Server),
        ] {
            assert_eq!(Build::read(&build.word()).expect("a word"), build);
        }
        let error = Build::read("1.36+nonsense").expect_err("no such part");
        assert_eq!(error.to_string(), "\"1.36+nonsense\" is nothing to build");
    }
}
