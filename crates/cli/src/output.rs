//! Output formats: text for users, or data for programs.

use anyhow::Result;
use serde::Serialize;

/// The format of data output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
}

/// Prints data in the given format, or text if there is none.
pub(crate) fn print(
    format: Option<Format>,
    data: &impl Serialize,
    words: impl FnOnce() -> String,
) -> Result<()> {
    match format {
        None => print!("{}", words()),
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(data)?),
        Some(Format::Yaml) => print!("{}", serde_yaml_ng::to_string(data)?),
    }
    Ok(())
}
