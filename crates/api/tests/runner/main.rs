//! The tests of this crate that read data files.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "here a panic is how a test fails"
)]

mod definitions;
mod objects;
mod rules;
mod slim;

use serde_json::Value;

/// Reads a file of `tests/data`. YAML there is JSON that people can read; tests decode JSON, as the client does.
fn data(name: &str) -> Value {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("cannot parse {path}: {error}"))
}
