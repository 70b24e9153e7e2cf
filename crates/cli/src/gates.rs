//! Feature gates by their names.

use quorate_server::Gates;

/// Reads `Name=true,Other=false`.
pub(crate) fn parse(text: &str) -> Result<Gates, String> {
    let mut gates = Gates::default();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, value) =
            item.split_once('=').ok_or_else(|| format!("{item} must be written as {item}=true"))?;
        let value = value.parse().map_err(|_| format!("{name} must be true or false, not {value}"))?;
        match name {
            "MultiPodPDBs" => gates.multi_pod_pdbs = value,
            "DisruptionProbe" => gates.disruption_probe = value,
            _ => return Err(format!("{name} is not known: there are MultiPodPDBs and DisruptionProbe")),
        }
    }
    Ok(gates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_by_their_names() {
        let off = Gates { multi_pod_pdbs: false, ..Gates::default() };
        for (text, expected) in [
            ("", Ok(Gates::default())),
            ("MultiPodPDBs=false", Ok(off)),
            (" MultiPodPDBs=false , DisruptionProbe=true,", Ok(off)),
            ("MultiPodPDBs", Err("MultiPodPDBs must be written as MultiPodPDBs=true")),
            ("MultiPodPDBs=off", Err("MultiPodPDBs must be true or false, not off")),
            ("Nonsense=true", Err("Nonsense is not known: there are MultiPodPDBs and DisruptionProbe")),
        ] {
            assert_eq!(parse(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
