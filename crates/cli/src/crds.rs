//! `quorate crds`, and the CustomResourceDefinitions as files of this repository: plain, and as chart templates.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_yaml_ng::{Number, Value};

/// Prints the CustomResourceDefinitions for `kubectl apply`.
pub(crate) fn run() -> Result<()> {
    for definition in quorate_api::crds::all() {
        println!("---");
        print!("{}", serde_yaml_ng::to_string(&definition)?);
    }
    Ok(())
}

/// A file that is generated from code.
#[derive(Serialize)]
pub(crate) struct Generated {
    /// Path relative to the root of the workspace.
    path: PathBuf,
    text: String,
}

/// The CustomResourceDefinitions, plain and as chart templates.
pub(crate) fn files() -> Result<Vec<Generated>> {
    let mut files = Vec::new();
    for mut crd in quorate_api::crds::all() {
        let kind = crd.spec.names.kind.clone();
        let made = || format!("cannot write the definition of {kind}");
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let text =
            format!("# Made by `cargo xtask generate` from crates/api.\n{}", yaml(&crd).with_context(made)?);
        files.push(Generated { path: PathBuf::from("config/crd").join(&name), text });
        // The definition is part of the release, so that an upgrade changes it. Helm installs its folder crds/ only
        // once.
        crd.metadata.annotations = Some([(KEEP.0.to_owned(), KEEP.1.to_owned())].into());
        crd.metadata.labels = Some([(LABELS.0.to_owned(), LABELS.1.to_owned())].into());
        let yaml = yaml(&crd).with_context(made)?;
        files.push(Generated { path: PathBuf::from(CHART_CRDS).join(&name), text: template(&yaml)? });
    }
    Ok(files)
}

/// The folder of the definitions in the chart.
const CHART_CRDS: &str = "charts/quorate/templates/crds";

/// Placeholders for the parts that depend on values.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");
const LABELS: (&str, &str) = ("quorate.labels", "here");

/// A definition as a chart template.
fn template(yaml: &str) -> Result<String> {
    anyhow::ensure!(!yaml.contains("{{"), "Helm would execute a part of this definition:\n{yaml}");
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

/// Writes bounds as `1`. The schema type allows fractions and would write `1.0`.
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
    fn the_generated_files_are_current() {
        for file in files().unwrap() {
            let current = std::fs::read_to_string(root().join(&file.path)).unwrap_or_default();
            assert!(
                current == file.text,
                "{} is out of date: run `cargo xtask generate`",
                file.path.display()
            );
        }
    }

    #[test]
    fn no_stale_generated_file_is_left() {
        let made: BTreeSet<PathBuf> = files().unwrap().into_iter().map(|file| file.path).collect();
        for folder in ["config/crd", CHART_CRDS] {
            for entry in std::fs::read_dir(root().join(folder)).unwrap() {
                let path = PathBuf::from(folder).join(entry.unwrap().file_name());
                assert!(made.contains(&path), "{} is no longer generated: remove it", path.display());
            }
        }
    }
}
