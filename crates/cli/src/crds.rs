//! `quorate crds`, and the definitions as files of this repository: by themselves and as templates of the chart.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_yaml_ng::{Number, Value};

/// Prints the CustomResourceDefinitions, to be applied.
pub(crate) fn run() -> Result<()> {
    for definition in quorate_api::crds::all() {
        println!("---");
        print!("{}", serde_yaml_ng::to_string(&definition)?);
    }
    Ok(())
}

/// A file that is made from code.
#[derive(Serialize)]
pub(crate) struct Generated {
    /// Where it goes, from the root of the workspace.
    path: PathBuf,
    text: String,
}

/// The definitions, by themselves and as templates of the chart.
pub(crate) fn files() -> Result<Vec<Generated>> {
    let mut files = Vec::new();
    for mut crd in quorate_api::crds::all() {
        let kind = crd.spec.names.kind.clone();
        let made = || format!("cannot write the definition of {kind}");
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let text =
            format!("# Made by `cargo xtask generate` from crates/api.\n{}", yaml(&crd).with_context(made)?);
        files.push(Generated { path: PathBuf::from("config/crd").join(&name), text });
        // It is part of the release, so that an upgrade changes it; Helm never looks at its folder crds/ again.
        crd.metadata.annotations = Some([(KEEP.0.to_owned(), KEEP.1.to_owned())].into());
        crd.metadata.labels = Some([(LABELS.0.to_owned(), LABELS.1.to_owned())].into());
        let yaml = yaml(&crd).with_context(made)?;
        files.push(Generated { path: PathBuf::from(CHART_CRDS).join(&name), text: template(&yaml)? });
    }
    Ok(files)
}

/// Where the chart keeps the definitions.
const CHART_CRDS: &str = "charts/quorate/templates/crds";

/// Marks the place of what depends on values.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");
const LABELS: (&str, &str) = ("quorate.labels", "here");

/// A definition as a template.
fn template(yaml: &str) -> Result<String> {
    anyhow::ensure!(!yaml.contains("{{"), "Helm would take a part of this definition for its own:\n{yaml}");
    let keep = format!("  annotations:\n    {}: {}\n", KEEP.0, KEEP.1);
    let labels = format!("  labels:\n    {}: {}\n", LABELS.0, LABELS.1);
    for marked in [&keep, &labels] {
        anyhow::ensure!(yaml.matches(marked.as_str()).count() == 1, "{marked:?} is not once in\n{yaml}");
    }
    let yaml = yaml
        .replace(&keep, &format!("  {{{{- if .Values.crds.keep }}}}\n{keep}  {{{{- end }}}}\n"))
        .replace(&labels, "  labels: {{- include \"quorate.labels\" . | nindent 4 }}\n");
    let made = "# Made by `cargo xtask generate` from crates/api.";
    Ok(format!("{{{{- if .Values.crds.install }}}}\n{made}\n{yaml}{{{{- end }}}}\n"))
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
    use std::path::Path;

    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn the_checked_in_files_are_what_the_code_makes() {
        for file in files().unwrap() {
            let current = std::fs::read_to_string(root().join(&file.path)).unwrap_or_default();
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
        for folder in ["config/crd", CHART_CRDS] {
            for entry in std::fs::read_dir(root().join(folder)).unwrap() {
                let path = PathBuf::from(folder).join(entry.unwrap().file_name());
                assert!(made.contains(&path), "nothing makes {} any more: remove it", path.display());
            }
        }
    }
}
