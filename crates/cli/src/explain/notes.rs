//! What the answer depends on besides the objects: which servers run, and how they were started.

use quorate_server::ServerSettings;
use quorate_server::view::{Servers, View};

/// Notes about the servers. `assumed`: the user says how they were started.
pub(super) fn about(view: &View, assumed: bool) -> Vec<String> {
    let readable = !view.unlisted().iter().any(|unlisted| unlisted.what.starts_with("leases."));
    of_servers(view.servers(), readable, assumed)
}

fn of_servers(servers: &Servers, readable: bool, assumed: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if !readable {
        return notes;
    }
    if servers.count() == 0 {
        notes.push("no server is deciding: this is what one that starts now would decide".to_owned());
    }
    if let Some(settings) = servers.settings().filter(|_| !assumed)
        && let Some(flags) = flags(settings)
    {
        notes.push(format!("the servers run with {flags}"));
    }
    if servers.differ() {
        notes.push("the servers were started in different ways: the answer depends on which one the API server calls".to_owned());
    }
    notes
}

/// The settings that are not the default, as flags.
fn flags(settings: ServerSettings) -> Option<String> {
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
