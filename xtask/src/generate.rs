//! `cargo xtask generate`: writes the files that are made from code.
//!
//! They are checked in, so that a change of a type shows as a change of what users install; a test compares them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_yaml_ng::{Number, Value};

use crate::workspace;

/// A file made from code.
struct Generated {
    /// Where it goes, from the root of the workspace.
    path: PathBuf,
    text: String,
}

/// Writes every generated file that is not up to date.
pub(crate) fn run() -> Result<()> {
    for file in files()?.into_iter().chain([reference()?]) {
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

/// All generated files.
fn files() -> Result<Vec<Generated>> {
    quorate_api::crds::all()
        .iter()
        .map(|crd| {
            let names = &crd.spec.names;
            let yaml = yaml(crd).with_context(|| format!("cannot write the definition of {}", names.kind))?;
            Ok(Generated {
                path: PathBuf::from(format!("config/crd/{}_{}.yaml", crd.spec.group, names.plural)),
                text: format!("# Made by `cargo xtask generate` from crates/api.\n{yaml}"),
            })
        })
        .collect()
}

/// The reference of the command line. The program itself knows it, and its own tests compare it.
fn reference() -> Result<Generated> {
    let args = ["run", "--quiet", "--package", "quorate", "--", "reference"];
    let output = workspace::cargo(&args).output().context("cannot run quorate")?;
    anyhow::ensure!(output.status.success(), "quorate does not print its reference");
    Ok(Generated { path: PathBuf::from("docs/cli.md"), text: String::from_utf8(output.stdout)? })
}

fn yaml(object: &impl Serialize) -> Result<String> {
    let mut value = serde_yaml_ng::to_value(object)?;
    whole_numbers(&mut value);
    Ok(serde_yaml_ng::to_string(&value)?)
}

/// Writes bounds as `1` where the type of a schema, which allows fractions, would give `1.0`.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) =
                number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0 && n.abs() < 1e15)
            {
                *value = Value::Number(Number::from(whole as i64));
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(whole_numbers),
        Value::Mapping(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_checked_in_files_are_what_the_code_makes() {
        for file in files().unwrap() {
            let current = std::fs::read_to_string(workspace::root().join(&file.path)).unwrap_or_default();
            assert!(
                current == file.text,
                "{} is not what the code makes: run `cargo xtask generate`",
                file.path.display()
            );
        }
    }

    #[test]
    fn no_file_is_left_over() {
        let made: BTreeSet<PathBuf> = files().unwrap().into_iter().map(|file| file.path).collect();
        for entry in std::fs::read_dir(workspace::root().join("config/crd")).unwrap() {
            let path = PathBuf::from("config/crd").join(entry.unwrap().file_name());
            assert!(made.contains(&path), "nothing makes {} any more: remove it", path.display());
        }
    }
}
