//! The options of a delete or an eviction.

use serde::Deserialize;

/// The fields of `DeleteOptions` that Quorate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeleteOptions {
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Preconditions {
    uid: Option<String>,
}

impl DeleteOptions {
    /// The UID that the caller requires.
    pub(super) fn uid(&self) -> Option<&str> {
        self.preconditions.as_ref()?.uid.as_deref().filter(|uid| !uid.is_empty())
    }

    pub(super) fn no_grace(&self) -> bool {
        self.grace_period_seconds == Some(0)
    }

    /// `All` is the only valid value; the API server rejects every other.
    pub(super) fn is_dry_run(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|words| !words.is_empty())
    }
}
