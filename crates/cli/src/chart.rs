//! The webhook configurations as a chart template. The same code registers them in a server.

use std::fmt::Write as _;

use anyhow::Result;
use quorate_server::webhooks::{self, Address, Endpoint};
use serde::Serialize;

/// The webhook that exists only if its feature gate is on.
const OWNERS: &str = "owners.quorate.dev";

/// Both configurations. Helm fills in the namespace and everything that depends on values.
pub(crate) fn webhooks() -> Result<String> {
    let address = Address {
        endpoint: Endpoint::Service { name: "quorate".to_owned(), port: 443 },
        bundle: String::new(),
        namespace: "{{ .Release.Namespace }}".to_owned(),
        owners: true,
    };
    let mut template =
        "# Made by `cargo xtask generate` from crates/server. Servers keep the caBundle of each entry current.\n"
            .to_owned();
    let mutating = webhooks::mutating(&address).webhooks.unwrap_or_default();
    configuration(&mut template, "Mutating", mutating.iter().map(|entry| (&entry.name, entry)))?;
    template.push_str("---\n");
    let validating = webhooks::validating(&address).webhooks.unwrap_or_default();
    configuration(&mut template, "Validating", validating.iter().map(|entry| (&entry.name, entry)))?;
    Ok(template)
}

fn configuration<'a, E: Serialize + 'a>(
    template: &mut String,
    kind: &str,
    entries: impl Iterator<Item = (&'a String, &'a E)>,
) -> Result<()> {
    let name = webhooks::NAME;
    let _ = write!(
        template,
        "apiVersion: admissionregistration.k8s.io/v1
kind: {kind}WebhookConfiguration
metadata:
  name: {name}
  labels: {{{{- include \"quorate.labels\" . | nindent 4 }}}}
  {{{{- if .Values.certManager.enabled }}}}
  annotations:
    cert-manager.io/inject-ca-from: {{{{ .Release.Namespace }}}}/quorate-webhook
  {{{{- end }}}}
webhooks:
"
    );
    for (name, entry) in entries {
        let yaml = serde_yaml_ng::to_string(&[entry])?;
        let lines: String = yaml.lines().map(|line| format!("  {line}\n")).collect();
        match name == OWNERS {
            true => {
                let condition = "{{- if .Values.featureGates.PropagateOwnerReferences }}";
                let _ = write!(template, "  {condition}\n{lines}  {{{{- end }}}}\n");
            }
            false => template.push_str(&lines),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_chart_has_the_webhooks_of_the_code() {
        let stored = include_str!("../../../charts/quorate/templates/webhooks.yaml");
        let message = "charts/quorate/templates/webhooks.yaml is out of date: run `cargo xtask generate`";
        assert_eq!(stored, super::webhooks().unwrap(), "{message}");
    }
}
