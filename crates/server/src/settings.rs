//! How a server was started, as its Lease shows it: a client that computes the decisions of the servers must know it.

use std::time::Duration;

use quorate_engine::{FRESH_FOR, Gates};
use serde::{Deserialize, Serialize};

use crate::kruise::ServePub;

/// How a server was started, as far as its decisions depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Feature gates.
    pub gates: Gates,
    /// Whether it serves OpenKruise's budgets.
    pub serve_pub: ServePub,
    /// How long what it knows of a kind is fresh.
    pub fresh_for: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self { gates: Gates::default(), serve_pub: ServePub::default(), fresh_for: FRESH_FOR }
    }
}

/// The annotation of the Lease. What an older server does not write has its default.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SettingsAnnotation {
    serve_pub: String,
    #[serde(rename = "featureGates")]
    gates: GatesAnnotation,
    fresh_for_seconds: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
struct GatesAnnotation {
    #[serde(rename = "MultiPodPDBs")]
    multi_pod_pdbs: bool,
    #[serde(rename = "DisruptionProbe")]
    disruption_probe: bool,
}

impl Default for GatesAnnotation {
    fn default() -> Self {
        let Gates { multi_pod_pdbs, disruption_probe } = Gates::default();
        Self { multi_pod_pdbs, disruption_probe }
    }
}

impl Default for SettingsAnnotation {
    fn default() -> Self {
        ServerSettings::default().into()
    }
}

impl From<ServerSettings> for SettingsAnnotation {
    fn from(settings: ServerSettings) -> Self {
        let Gates { multi_pod_pdbs, disruption_probe } = settings.gates;
        Self {
            serve_pub: settings.serve_pub.name().to_owned(),
            gates: GatesAnnotation { multi_pod_pdbs, disruption_probe },
            fresh_for_seconds: settings.fresh_for.as_secs(),
        }
    }
}

impl ServerSettings {
    /// As JSON.
    pub(crate) fn to_text(self) -> String {
        serde_json::to_string(&SettingsAnnotation::from(self)).unwrap_or_default()
    }

    /// From JSON; `None` if that cannot be read.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let written: serde_json::Map<_, _> = serde_json::from_str(text).ok()?;
        let SettingsAnnotation { serve_pub, gates, fresh_for_seconds } =
            serde_json::from_value(written.into()).ok()?;
        let GatesAnnotation { multi_pod_pdbs, disruption_probe } = gates;
        Some(Self {
            gates: Gates { multi_pod_pdbs, disruption_probe },
            serve_pub: ServePub::named(&serve_pub)?,
            fresh_for: Duration::from_secs(fresh_for_seconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        let settings = ServerSettings {
            gates: Gates { multi_pod_pdbs: false, disruption_probe: true },
            serve_pub: ServePub::Always,
            fresh_for: Duration::from_secs(25),
        };
        let text = r#"{"servePub":"always","featureGates":{"MultiPodPDBs":false,"DisruptionProbe":true},"freshForSeconds":25}"#;
        assert_eq!(settings.to_text(), text);
        assert_eq!(ServerSettings::from_text(text), Some(settings));
        assert_eq!(ServerSettings::from_text("{}"), Some(ServerSettings::default()));
        assert_eq!(
            ServerSettings::from_text(r#"{"servePub":"never","unknown":1}"#),
            Some(ServerSettings { serve_pub: ServePub::Never, ..ServerSettings::default() })
        );
        for text in ["", "[]", r#"{"servePub":"sometimes"}"#] {
            assert_eq!(ServerSettings::from_text(text), None, "{text}");
        }
    }
}
