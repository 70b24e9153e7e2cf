//! Builds the previous release from the repository's history. The upgrade and rollback tests use its program and its
//! rendered chart.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Update both constants after each release.
const VERSION: &str = "0.1.0";
const COMMIT: &str = "d7790f34dd38891ccb777c77ff58fc6d5efb2992";

/// The parts of the previous release that the stories use.
pub(crate) struct ReleaseBefore {
    pub(crate) program: PathBuf,
    pub(crate) rendered: PathBuf,
}

/// Builds the previous release, unless it is built already. If its sources are not available (in a shallow clone or a
/// source archive), prints a note and returns `None`.
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
            "{VERSION} ({COMMIT}) is not in this history: the upgrade tests use the same program on both sides"
        );
        return Ok(None);
    }
    unpack(&sources)?;
    let built = compile(&sources)?;
    // The rename is atomic: the final name never holds a partial copy.
    let copy = home.join("quorate.part");
    std::fs::copy(&built, &copy).with_context(|| format!("cannot copy {}", built.display()))?;
    std::fs::rename(&copy, &release.program)
        .with_context(|| format!("cannot make {}", release.program.display()))?;
    Ok(Some(release))
}

fn is_in_history(repository: &Path, commit: &str) -> bool {
    let mut git = Command::new("git");
    let cat_file = git.args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).current_dir(repository);
    cat_file.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Writes the sources of the release to the folder `sources`.
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

/// Builds the program of the release and returns its path. Builds it as part of a test of the whole workspace, so that
/// its dependencies have the same features as in the suites: those dependencies are already built.
fn compile(sources: &Path) -> Result<PathBuf> {
    let target = std::path::absolute(workspace::target())?;
    let mut cargo = workspace::cargo(&["test", "--workspace", "--locked", "--no-run", "--test", "docs"]);
    workspace::run(cargo.current_dir(sources).env("CARGO_TARGET_DIR", &target))?;
    // The suite later overwrites this file with its own build.
    let built = target.join("debug/quorate");
    let output = Command::new(&built).arg("version").output().context("cannot run the program")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match printed.trim() == format!("quorate {VERSION}") {
        true => Ok(built),
        false => bail!("{COMMIT} is not the release {VERSION}: its program says {:?}", printed.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo treats two crates with the same name and version as one, and would overwrite one build with the other.
    #[test]
    fn the_previous_release_has_another_version() {
        assert_ne!(VERSION, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn a_commit_is_not_found_without_history() {
        let folder = std::env::temp_dir();
        assert!(!is_in_history(&folder, COMMIT));
        assert!(!is_in_history(workspace::root(), "0000000000000000000000000000000000000000"));
    }
}
