//! Finds crates that compile only because another crate of the workspace enables a feature.
//!
//! Cargo enables for a dependency the union of the features that all selected crates request. If the direct
//! dependencies of a crate have the same features alone as in the workspace, the crate compiles alone exactly as it
//! does there. One check of the workspace, without dev-dependencies, therefore covers all such crates. The other crates
//! are checked alone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use crate::test::TEST_FEATURES;
use crate::workspace;

/// Enabled features by package.
type Features = BTreeMap<String, BTreeSet<String>>;

/// A crate to check alone, and the direct dependency that has more features in the workspace.
pub(crate) struct Differing {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// Lists the crates that must be checked alone.
pub(crate) fn differing(crates: &[String]) -> Result<Vec<Differing>> {
    let together = tree(&["--workspace", "--exclude", TEST_FEATURES])?;
    let mut found = Vec::new();
    for name in crates.iter().filter(|name| *name != TEST_FEATURES) {
        let alone = tree(&["--package", name])?;
        let direct = tree(&["--package", name, "--depth", "1"])?;
        if let Some(why) = difference(&direct, &alone, &together) {
            found.push(Differing { name: name.clone(), why });
        }
    }
    Ok(found)
}

/// Describes the first direct dependency that has more features in the workspace than with the crate alone.
fn difference(direct: &Features, alone: &Features, together: &Features) -> Option<String> {
    direct.keys().find_map(|package| {
        let (own, all) = (alone.get(package)?, together.get(package)?);
        let more: Vec<&str> = all.difference(own).map(String::as_str).collect();
        (!more.is_empty()).then(|| format!("{package} has {} in the workspace", more.join(", ")))
    })
}

fn tree(chosen: &[&str]) -> Result<Features> {
    let args = ["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}|{f}"];
    let output = workspace::cargo(&args).args(chosen).output().context("cannot start cargo tree")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree {}: {}", chosen.join(" "), errors.trim());
    let features = read(&String::from_utf8_lossy(&output.stdout));
    ensure!(!features.is_empty(), "cargo tree {} prints nothing", chosen.join(" "));
    Ok(features)
}

/// Parses lines like `serde v1.0.0|default,std`. A package can occur twice: build scripts can use other features.
fn read(text: &str) -> Features {
    let mut features = Features::new();
    for line in text.lines() {
        let Some((package, list)) = line.split_once('|') else { continue };
        // The path of a workspace crate follows in brackets.
        let package = package.split(" (").next().unwrap_or(package);
        let list = list.split(" (").next().unwrap_or(list);
        let known = features.entry(package.to_owned()).or_default();
        known.extend(list.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned));
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_checked_alone_if_a_direct_dependency_has_fewer_features_there() {
        let together = read("tokio v1.0.0|fs,rt,time\nsyn v3.0.0|full\nours v0.2.0 (/here)|");
        let direct = read("ours v0.2.0 (/here)|\ntokio v1.0.0|");
        let found = |alone: &str| difference(&direct, &read(alone), &together);
        assert_eq!(found("tokio v1.0.0|rt,fs,time (*)\nsyn v3.0.0|\nours v0.2.0 (/here)|"), None);
        let fewer = found("tokio v1.0.0|rt\nsyn v3.0.0|full\nours v0.2.0 (/here)|");
        assert_eq!(fewer.as_deref(), Some("tokio v1.0.0 has fs, time in the workspace"));
    }
}
