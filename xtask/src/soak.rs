//! `cargo xtask soak`: what takes too long for every day.

use anyhow::Result;

use crate::workspace;

pub(crate) fn run() -> Result<()> {
    // The suite of lints checks alone only those crates whose direct dependencies differ.
    for name in workspace::crates()? {
        println!("==> {name} alone");
        workspace::run(&mut workspace::cargo(&["check", "--quiet", "--locked", "--package", &name]))?;
    }
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
