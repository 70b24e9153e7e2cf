//! `cargo xtask soak`: runs the checks that take too long for daily use.

use anyhow::Result;

use crate::workspace;

pub(crate) fn run() -> Result<()> {
    // The lint suite checks alone only the crates whose direct dependencies differ; this checks all of them.
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
