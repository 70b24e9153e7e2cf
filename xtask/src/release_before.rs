//! The release before this one, from the repository's own history: upgrades, and the ways back, are tried with its
//! program and with what its chart rendered.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// When a release is cut, both move on to it.
const VERSION: &str = "0.1.0";
const COMMIT: &str = "d7790f34dd38891ccb777c77ff58fc6d5efb2992";

/// What a story needs of it.
pub(crate) struct ReleaseBefore {
    pub(crate) program: PathBuf,
    pub(crate) rendered: PathBuf,
}

/// Makes sure that it is built. Where its sources are not to be had, in a shallow clone or in an archive, says so.
pub(crate) fn build() -> Result<Option<ReleaseBefore>> {
    let home = std::path::absolute(workspace::target())?.join("release-before").join(COMMIT);
    let sources = home.join("sources");
    let release = ReleaseBefore {
        program: home.join("quorate"),
        rendered: sources.join("charts/rendered/default.yaml"),
    };
    if release.program.exists() {
        println!("{VERSION} is built already");
        return Ok(Some(release));
    }
    if !is_in_history(workspace::root(), COMMIT) {
        println!(
            "{VERSION} is not in this history ({COMMIT}): the upgrade is tried with one program on both sides"
        );
        return Ok(None);
    }
    unpack(&sources)?;
    let built = compile(&sources)?;
    // Under its name only when it is whole.
    let copy = home.join("quorate.part");
    std::fs::copy(&built, &copy).with_context(|| format!("cannot copy {}", built.display()))?;
    std::fs::rename(&copy, &release.program)
        .with_context(|| format!("cannot make {}", release.program.display()))?;
    Ok(Some(release))
}

fn is_in_history(repository: &Path, commit: &str) -> bool {
    let mut git = Command::new("git");
    let asked = git.args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).current_dir(repository);
    asked.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Writes the sources of the release to a folder of their own.
fn unpack(sources: &Path) -> Result<()> {
    std::fs::create_dir_all(sources).with_context(|| format!("cannot make {}", sources.display()))?;
    let archive = sources.with_extension("tar");
    let mut git = Command::new("git");
    workspace::run(
        git.args(["archive", "--output"]).arg(&archive).arg(COMMIT).current_dir(workspace::root()),
    )?;
    workspace::run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(sources))?;
    std::fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
}

/// Builds the program of the release; where cargo put it. It is chosen by a test of its package, and among the whole
/// workspace, so that its dependencies have the features that the suites give them: they are built already.
fn compile(sources: &Path) -> Result<PathBuf> {
    let target = std::path::absolute(workspace::target())?;
    let mut cargo = workspace::cargo(&["test", "--workspace", "--locked", "--no-run", "--test", "docs"]);
    workspace::run(cargo.current_dir(sources).env("CARGO_TARGET_DIR", &target))?;
    // The suite puts its own there again.
    let built = target.join("debug/quorate");
    let output = Command::new(&built).arg("version").output().context("the program cannot be run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.trim() == format!("quorate {VERSION}") {
        true => Ok(built),
        false => bail!("{COMMIT} is not the release {VERSION}: its program says {:?}", said.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two crates of one name and version would be taken for one by cargo, and built over each other.
    #[test]
    fn the_release_before_is_another_one() {
        assert_ne!(VERSION, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn where_there_is_no_history_nothing_is_in_it() {
        let folder = std::env::temp_dir();
        assert!(!is_in_history(&folder, COMMIT));
        assert!(!is_in_history(workspace::root(), "0000000000000000000000000000000000000000"));
    }
}
