//! Checks the chart: Helm accepts it, rejects invalid values, and renders the files that are checked in.
//!
//! `charts/rendered` holds the output of Helm with default values, with everything enabled, and with custom values. A
//! change of the chart therefore shows as a change of the objects that users get. The stories install the same objects
//! that Helm would install.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::generate::Generated;
use crate::golang::{Pinned, Program, required};
use crate::workspace;

const HELM: Program = Program { name: "helm", package: "helm.sh/helm/v3/cmd/helm" };

/// Name and namespace of each rendered file. Its values are in `<name>.values.yaml`, if that file exists.
const RENDERED: [(&str, &str); 3] =
    [("default", "quorate-system"), ("everything", "quorate-system"), ("own", "disruption")];

/// Invalid values, and the message that Helm must print for each.
const REFUSED: [(&str, &str); 6] = [
    ("server.replicas=0", "at '/server/replicas': minimum: got 0, want 1"),
    ("server.servePub=sometimes", "at '/server/servePub': value must be one of 'auto', 'always', 'never'"),
    ("server.claimExpirySeconds=10", "at '/server/claimExpirySeconds': minimum: got 10, want 40"),
    ("server.replcias=3", "at '/server': additional properties 'replcias' not allowed"),
    ("featureGates.Nonsense=true", "at '/featureGates': additional properties 'Nonsense' not allowed"),
    (
        "agent.exec.socket=containerd.sock",
        "at '/agent/exec/socket': 'containerd.sock' does not match pattern",
    ),
];

/// Runs all checks, and counts the passed and the failed ones.
pub(crate) fn check(passed: &mut u64, failed: &mut u64) -> Result<()> {
    let helm = Helm::build()?;
    let mut outcomes = vec![("helm lint".to_owned(), helm.lint())];
    for file in rendered_by(&helm)? {
        let name = file.path.display().to_string();
        let current = std::fs::read_to_string(workspace::root().join(&file.path)).unwrap_or_default();
        let outcome = match current == file.text {
            true => Ok(()),
            false => {
                Err(anyhow::anyhow!("{name} differs from Helm output: run `cargo xtask generate --rendered`"))
            }
        };
        outcomes.push((name, outcome));
    }
    for (value, expected) in REFUSED {
        outcomes.push((format!("{value} is rejected"), helm.refuses(value, expected)));
    }
    let mut first = None;
    for (name, outcome) in outcomes {
        match outcome {
            Ok(()) => {
                *passed += 1;
                println!("{name}: ok");
            }
            Err(error) => {
                *failed += 1;
                println!("{name}: FAILED: {error:#}");
                first.get_or_insert(error);
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Builds Helm, unless it is built already.
pub(crate) fn build() -> Result<()> {
    Helm::build().map(drop)
}

/// Renders the files of `charts/rendered`.
pub(crate) fn rendered() -> Result<Vec<Generated>> {
    rendered_by(&Helm::build()?)
}

fn rendered_by(helm: &Helm) -> Result<Vec<Generated>> {
    let made = RENDERED.iter().map(|(name, namespace)| {
        let values = workspace::root().join(format!("charts/rendered/{name}.values.yaml"));
        let mut command = helm.template(namespace);
        if values.exists() {
            command.arg("--values").arg(&values);
        }
        let output = command.output().context("cannot start helm")?;
        anyhow::ensure!(output.status.success(), "helm cannot render {name}: {}", output_text(&output));
        let path = PathBuf::from(format!("charts/rendered/{name}.yaml"));
        Ok(Generated { path, text: String::from_utf8(output.stdout)? })
    });
    made.collect()
}

/// Helm itself, built from source.
struct Helm {
    program: PathBuf,
}

impl Helm {
    fn build() -> Result<Self> {
        let module = workspace::root().join("xtask/helm");
        let go_mod =
            std::fs::read_to_string(module.join("go.mod")).context("cannot read xtask/helm/go.mod")?;
        let version =
            required(&go_mod, "helm.sh/helm/v3").context("xtask/helm/go.mod does not require Helm")?;
        let home = workspace::target().join("helm");
        let flags = format!("-s -w -X helm.sh/helm/v3/internal/version.version={version}");
        let pinned = Pinned { name: format!("Helm {version}"), module, home, flags };
        pinned.build(&[&HELM])?;
        Ok(Self { program: pinned.home.join("bin").join(HELM.name) })
    }

    /// A helm command that does not depend on the user's environment or configuration.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("HOME", workspace::target().join("helm"))
            .current_dir(workspace::root())
            .args(args);
        // There is no cluster from which Helm could read the Kubernetes version.
        command.args(["charts/quorate", "--kube-version", "1.36.0"]);
        command
    }

    fn template(&self, namespace: &str) -> Command {
        self.command(&["template", "quorate", "--namespace", namespace])
    }

    fn lint(&self) -> Result<()> {
        let output = self.command(&["lint", "--strict"]).output().context("cannot start helm")?;
        anyhow::ensure!(output.status.success(), "{}", output_text(&output));
        Ok(())
    }

    fn refuses(&self, value: &str, expected: &str) -> Result<()> {
        let output =
            self.template("quorate-system").args(["--set", value]).output().context("cannot start helm")?;
        if output.status.success() {
            bail!("helm accepts it");
        }
        let output = output_text(&output);
        anyhow::ensure!(output.contains(expected), "expected {expected:?}, got {output:?}");
        Ok(())
    }
}

fn output_text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    both.concat().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_yaml_ng::Value;

    use super::*;

    fn read(path: &str) -> Value {
        let text = std::fs::read_to_string(workspace::root().join(path)).unwrap();
        serde_yaml_ng::from_str(&text).unwrap()
    }

    #[test]
    fn the_chart_has_the_version_of_the_program() {
        let chart = read("charts/quorate/Chart.yaml");
        for field in ["version", "appVersion"] {
            assert_eq!(chart[field].as_str(), Some(env!("CARGO_PKG_VERSION")), "{field}");
        }
    }

    /// The chart uses the image tag of its own version, so the documented build commands must use that tag.
    #[test]
    fn images_are_built_under_the_version_of_the_chart() {
        for path in ["Dockerfile", "docs/install.md"] {
            let text = std::fs::read_to_string(workspace::root().join(path)).unwrap();
            let tagged: Vec<&str> = text.split("docker build --tag ").skip(1).collect();
            assert!(!tagged.is_empty(), "{path} builds no image");
            for command in tagged {
                let image = command.split_whitespace().next().unwrap();
                assert!(image.ends_with(concat!(":", env!("CARGO_PKG_VERSION"))), "{path}: {image}");
            }
        }
    }

    /// Collects the fields of an object, or of its schema, as paths.
    fn paths(at: &str, fields: &Value, into: &mut BTreeSet<String>, inner: &str) {
        for (name, value) in fields.as_mapping().into_iter().flatten() {
            let path = format!("{at}.{}", name.as_str().unwrap_or_default());
            let deeper = if inner.is_empty() { value } else { &value[inner] };
            // Kubernetes defines the fields of its own types; the chart's schema does not list them.
            let free = deeper.as_mapping().is_none_or(|fields| fields.is_empty());
            if free || path.ends_with("resources") || path.ends_with("odeSelector") {
                into.insert(path);
            } else {
                paths(&path, deeper, into, inner);
            }
        }
    }

    #[test]
    fn every_value_is_in_the_schema_and_has_a_default() {
        let (mut values, mut schema) = (BTreeSet::new(), BTreeSet::new());
        paths("", &read("charts/quorate/values.yaml"), &mut values, "");
        paths("", &read("charts/quorate/values.schema.json")["properties"], &mut schema, "properties");
        // The schema lists the feature gates; the program has their defaults. The fields of issuerRef have no defaults.
        let known = |path: &&String| {
            !path.starts_with(".featureGates")
                && !path.starts_with(".certManager.issuerRef")
                && *path != ".global"
        };
        let (values, schema): (BTreeSet<_>, BTreeSet<_>) =
            (values.iter().filter(known).collect(), schema.iter().filter(known).collect());
        assert_eq!(values, schema);
    }
}
