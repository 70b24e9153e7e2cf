//! `quorate crds`.

use anyhow::Result;

/// Prints the CustomResourceDefinitions, to be applied.
pub(crate) fn run() -> Result<()> {
    for definition in quorate_api::crds::all() {
        println!("---");
        print!("{}", serde_yaml_ng::to_string(&definition)?);
    }
    Ok(())
}
