//! How servers were started, in words. They publish that in their Leases.

use quorate_server::ServerSettings;

/// The settings that are not the default, as flags.
pub(crate) fn flags(settings: ServerSettings) -> Option<String> {
    let usual = ServerSettings::default();
    let mut flags = Vec::new();
    if settings.serve_pub != usual.serve_pub {
        flags.push(format!("--serve-pub={}", settings.serve_pub.name()));
    }
    let gates = [
        ("MultiPodPDBs", settings.gates.multi_pod_pdbs, usual.gates.multi_pod_pdbs),
        ("DisruptionProbe", settings.gates.disruption_probe, usual.gates.disruption_probe),
    ];
    let changed: Vec<String> = gates
        .iter()
        .filter(|(_, is, usual)| is != usual)
        .map(|(name, is, _)| format!("{name}={is}"))
        .collect();
    if !changed.is_empty() {
        flags.push(format!("--feature-gates={}", changed.join(",")));
    }
    (!flags.is_empty()).then(|| flags.join(" "))
}

#[cfg(test)]
mod tests {
    use quorate_server::{Gates, ServePub};

    use super::*;

    #[test]
    fn only_settings_that_are_not_the_default_are_named() {
        let usual = ServerSettings::default();
        let off = Gates { multi_pod_pdbs: false, disruption_probe: false };
        for (settings, expected) in [
            (usual, None),
            (ServerSettings { serve_pub: ServePub::Always, ..usual }, Some("--serve-pub=always")),
            (
                ServerSettings { serve_pub: ServePub::Never, gates: off, ..usual },
                Some("--serve-pub=never --feature-gates=MultiPodPDBs=false,DisruptionProbe=false"),
            ),
        ] {
            assert_eq!(flags(settings).as_deref(), expected);
        }
    }
}
