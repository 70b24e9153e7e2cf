//! Output formats: text for users, or data for programs.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

/// The format of data output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
}

/// How a finding is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mark {
    Good,
    /// Not a problem yet, but the user should know.
    Warning,
    Bad,
}

impl Mark {
    /// Good or bad.
    pub(crate) fn of(good: bool) -> Self {
        if good { Self::Good } else { Self::Bad }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "✓",
            Self::Warning => "!",
            Self::Bad => "✗",
        })
    }
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
