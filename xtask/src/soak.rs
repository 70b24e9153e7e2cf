//! `cargo xtask soak`: what takes too long for every day.

use anyhow::Result;

use crate::workspace;

pub(crate) fn run() -> Result<()> {
    let mut command = workspace::cargo(&[
        "test",
        "--release",
        "--locked",
        "--package",
        "quorate-engine",
        "--test",
        "runner",
        "--",
        "ledger",
        "simulation",
        "--nocapture",
    ]);
    workspace::run(command.env("QUORATE_SOAK", "1"))
}
