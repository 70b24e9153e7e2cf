//! `cargo xtask robustness`: simulates clusters that live and fail at random, and judges every admitted disruption.

use anyhow::Result;

use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds to run for
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of a run to replay
    #[arg(long)]
    seed: Option<u64>,
    /// First seed of many runs
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Rule of the servers to leave out
    #[arg(long)]
    without: Option<String>,
    /// Stop at the first run that is not clean
    #[arg(long)]
    stop_at_first: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut more = vec![format!("--seconds={}", args.seconds), format!("--first-seed={}", args.first_seed)];
    more.extend(args.seed.map(|seed| format!("--seed={seed}")));
    more.extend(args.without.as_ref().map(|rule| format!("--without={rule}")));
    more.extend(args.stop_at_first.then(|| "--stop-at-first".to_owned()));
    simulate(&more)
}

/// Runs the program of the suite with these arguments. It is built with a profile of its own.
pub(crate) fn simulate(args: &[String]) -> Result<()> {
    let mut command = workspace::cargo(&[
        "run",
        "--quiet",
        "--locked",
        "--profile",
        "simulation",
        "--package",
        "quorate-robustness",
        "--",
    ]);
    workspace::run(command.args(args))
}
