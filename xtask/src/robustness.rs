//! `cargo xtask robustness`: clusters that live and fail at random, in which every admitted disruption is judged.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::control_plane::{self, Minor, Part};
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds to run for, 60 by default; with --every-rule, seconds for each rule, 600 by default
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed of a run to replay
    #[arg(long)]
    seed: Option<u64>,
    /// First seed of many runs
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Rule of the servers to leave out
    #[arg(long)]
    without: Option<String>,
    /// Leave out each rule that has a provocation, or only that of --without, until a run shows it
    #[arg(long, conflicts_with_all = ["seed", "tier"])]
    every_rule: bool,
    /// Stop at the first run that is not clean
    #[arg(long)]
    stop_at_first: bool,
    /// How the servers run
    #[arg(long, value_enum, default_value = "simulation")]
    tier: Tier,
    /// Cluster of the tier process
    #[arg(long, value_enum, default_value = "embedded")]
    cluster: Cluster,
    /// Folder for the histories and the logs of the tier process
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// In one process, in simulated time: a seed replays
    Simulation,
    /// The released program in processes of its own, in real time: only the schedule replays
    Process,
}

/// The cluster of a run in real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cluster {
    /// The embedded API server, with every fault that it offers
    Embedded,
    /// A real control plane, with faults of processes and of rights; needs Go
    Real,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut more = vec![format!("--first-seed={}", args.first_seed)];
    more.extend(args.seconds.map(|seconds| format!("--seconds={seconds}")));
    more.extend(args.every_rule.then(|| "--every-rule".to_owned()));
    more.extend(args.seed.map(|seed| format!("--seed={seed}")));
    more.extend(args.without.as_ref().map(|rule| format!("--without={rule}")));
    more.extend(args.stop_at_first.then(|| "--stop-at-first".to_owned()));
    if let Some(folder) = &args.keep {
        std::fs::create_dir_all(folder)?;
        more.push(format!("--keep={}", folder.display()));
    }
    match args.tier {
        Tier::Simulation => simulate(&more),
        Tier::Process => in_real_time(args.cluster, args.without.is_some(), &more),
    }
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

/// Runs the suite with processes of the released program. With `mutations`, the program can leave out rules.
pub(crate) fn in_real_time(cluster: Cluster, mutations: bool, args: &[String]) -> Result<()> {
    // Not in one build with the suite, which turns on features for tests.
    let mut build = workspace::cargo(&[
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "simulation",
        "--package",
        "quorate",
        "--no-default-features",
    ]);
    if mutations {
        build.args(["--features", "mutations"]);
    }
    workspace::run(&mut build)?;
    let cluster = match cluster {
        Cluster::Embedded => "embedded",
        Cluster::Real => {
            control_plane::build(Minor::V1_36, Part::Whole)?;
            "real"
        }
    };
    let program = workspace::target().join("simulation/quorate");
    let own = [
        "--tier=process".to_owned(),
        format!("--cluster={cluster}"),
        format!("--program={}", program.display()),
    ];
    simulate(&[&own[..], args].concat())
}
