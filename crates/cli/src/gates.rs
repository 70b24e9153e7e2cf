//! Feature gates.

use quorate_server::Gates;

/// The features that gates switch on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// The gates of the engine.
    pub(crate) gates: Gates,
    /// Whether PodUnavailableBudgets are read.
    pub(crate) pod_unavailable_budget: bool,
    /// Whether pods get the owners that their templates name.
    pub(crate) propagate_owner_references: bool,
}

/// Reads `Name=true,Other=false`.
pub(crate) fn parse(text: &str) -> Result<Features, String> {
    let mut features =
        Features { gates: Gates::default(), pod_unavailable_budget: true, propagate_owner_references: false };
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, value) =
            item.split_once('=').ok_or_else(|| format!("{item} must be written as {item}=true"))?;
        let value = value.parse().map_err(|_| format!("{name} must be true or false, not {value}"))?;
        match name {
            "MultiPodPDBs" => features.gates.multi_pod_pdbs = value,
            "DisruptionProbe" => features.gates.disruption_probe = value,
            "PodUnavailableBudget" => features.pod_unavailable_budget = value,
            "PropagateOwnerReferences" => features.propagate_owner_references = value,
            _ => {
                return Err(format!(
                    "{name} is not a feature gate: use MultiPodPDBs, DisruptionProbe, PodUnavailableBudget or \
                     PropagateOwnerReferences"
                ));
            }
        }
    }
    Ok(features)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_parsed_by_name() {
        let all = Features {
            gates: Gates::default(),
            pod_unavailable_budget: true,
            propagate_owner_references: false,
        };
        let owned = Features { propagate_owner_references: true, ..all };
        let off = Features { gates: Gates { multi_pod_pdbs: false, ..Gates::default() }, ..all };
        let alone = Features { pod_unavailable_budget: false, ..all };
        for (text, expected) in [
            ("", Ok(all)),
            ("PodUnavailableBudget=false", Ok(alone)),
            ("MultiPodPDBs=false", Ok(off)),
            ("PropagateOwnerReferences=true", Ok(owned)),
            (" MultiPodPDBs=false , DisruptionProbe=true,", Ok(off)),
            ("MultiPodPDBs", Err("MultiPodPDBs must be written as MultiPodPDBs=true")),
            ("MultiPodPDBs=off", Err("MultiPodPDBs must be true or false, not off")),
            (
                "Nonsense=true",
                Err(
                    "Nonsense is not a feature gate: use MultiPodPDBs, DisruptionProbe, PodUnavailableBudget or \
                     PropagateOwnerReferences",
                ),
            ),
        ] {
            assert_eq!(parse(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
