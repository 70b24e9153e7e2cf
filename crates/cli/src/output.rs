//! What is printed: words for people, or data for programs.

use anyhow::Result;
use serde::Serialize;

/// How to print.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Data as JSON
    Json,
    /// Data as YAML
    Yaml,
}

/// Prints data, or words where no format was asked for.
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
