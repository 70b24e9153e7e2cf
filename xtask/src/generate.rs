//! `cargo xtask generate`: writes the files that are generated from code.
//!
//! The files are checked in, so that a change of a type shows as a change of the files that users install. A test
//! compares them with the code.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{chart, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write only the rendered chart files; needs Go
    #[arg(long)]
    rendered: bool,
}

/// A file that is generated from code.
#[derive(Deserialize)]
pub(crate) struct Generated {
    /// The path, relative to the root of the workspace.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Writes each generated file that is not up to date.
pub(crate) fn run(args: &Args) -> Result<()> {
    let made = match args.rendered {
        true => chart::rendered()?,
        false => printed()?,
    };
    for file in made {
        let path = workspace::root().join(&file.path);
        if std::fs::read_to_string(&path).is_ok_and(|current| current == file.text) {
            println!("{}: up to date", file.path.display());
            continue;
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        std::fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}: written", file.path.display());
    }
    Ok(())
}

/// Collects the files that `quorate` itself prints; the tests of `quorate` compare them. xtask does not depend on the
/// product's crates, so that `cargo xtask` builds in seconds.
fn printed() -> Result<Vec<Generated>> {
    let print = |command: &str| -> Result<String> {
        let args = ["run", "--quiet", "--package", "quorate", "--", command];
        let output = workspace::cargo(&args).output().context("cannot run quorate")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "quorate {command} failed: {}", errors.trim());
        Ok(String::from_utf8(output.stdout)?)
    };
    let file = |command: &str, path: &str| -> Result<Generated> {
        Ok(Generated { path: PathBuf::from(path), text: print(command)? })
    };
    let mut files: Vec<Generated> = serde_json::from_str(&print("chart-crds")?)?;
    files.push(file("reference", "docs/cli.md")?);
    files.push(file("chart-webhooks", "charts/quorate/templates/webhooks.yaml")?);
    Ok(files)
}
