//! `cargo xtask soak`: runs the checks that take too long for daily use.

use anyhow::Result;

use crate::robustness::{self, Cluster};
use crate::workspace;

/// The longest time of the simulated runs, in seconds.
const SIMULATION_SECONDS: u64 = 2400;

/// So many admissions are enough.
const ADMISSIONS: u64 = 100_000;

/// The time of the runs of real processes on each cluster, in seconds.
const PROCESS_SECONDS: u64 = 900;

/// So many random histories of the engine are compared with the oracle.
const HISTORIES: &str = "40000";

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
        "histories",
        "--nocapture",
    ]);
    let mut outcome = workspace::run(command.env("QUORATE_SOAK", "1").env("HISTORIES", HISTORIES));
    println!("==> robustness: simulated runs");
    let simulation = [
        "--replay".to_owned(),
        format!("--seconds={SIMULATION_SECONDS}"),
        format!("--admissions={ADMISSIONS}"),
    ];
    outcome = robustness::simulate(&simulation).and(outcome);
    println!("==> robustness: each rule left out");
    outcome = robustness::simulate(&["--every-rule".to_owned()]).and(outcome);
    for (cluster, name) in
        [(Cluster::Embedded, "the embedded API server"), (Cluster::Real, "a real control plane")]
    {
        println!("==> robustness: processes on {name}");
        let seconds = [format!("--seconds={PROCESS_SECONDS}")];
        outcome = robustness::in_real_time(cluster, false, &seconds).and(outcome);
    }
    outcome
}
