//! Simulates runs, and judges them: `cargo xtask robustness`.
//!
//! Each run has a process of its own, so that its clocks and its randomness can be replaced, and so that a run that ends
//! badly ends alone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use quorate_robustness::campaign::{self, Campaign};
use quorate_robustness::every_rule::{self, Limits};
use quorate_robustness::process;
use quorate_robustness::process::run::{Cluster, Plan};
use quorate_robustness::run::Shape;
use quorate_robustness::{determinism, verdict};
use tracing_subscriber::EnvFilter;

/// Simulate clusters that live and fail at random, and judge every admitted disruption
#[derive(Parser)]
#[command(name = "quorate-robustness")]
struct Args {
    /// Seconds to run for; with --seed, only that run is made; with --every-rule, seconds for each rule
    #[arg(long, default_value_t = 60, default_value_if("every_rule", "true", "600"))]
    seconds: u64,
    /// Number of admissions after which no run begins
    #[arg(long)]
    admissions: Option<u64>,
    /// Number of runs at most
    #[arg(long, conflicts_with_all = ["seed", "every_rule"])]
    runs: Option<u64>,
    /// Seed of the only run, to replay it
    #[arg(long)]
    seed: Option<u64>,
    /// First seed of many runs
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Number of runs at the same time
    #[arg(long, default_value_t = 2)]
    at_once: usize,
    /// All mixed applications instead of some of all kinds, and no provocations
    #[arg(long, requires = "seed")]
    mixed: bool,
    /// Simulated seconds with faults in each run
    #[arg(long, default_value_t = 600)]
    life: u64,
    /// Rule of the servers to leave out
    #[arg(long)]
    without: Option<String>,
    /// Stop at the first run that is not clean
    #[arg(long)]
    stop_at_first: bool,
    /// Make the first run again at the end, and fail if its history is another one
    #[arg(long, conflicts_with_all = ["seed", "every_rule"])]
    replay: bool,
    /// Leave out each rule that has a provocation, or only that of --without, until a run shows it
    #[arg(long, conflicts_with_all = ["seed", "stop_at_first", "admissions"])]
    every_rule: bool,
    /// Number of seeds in which each rule must be found
    #[arg(long, default_value_t = 50, requires = "every_rule")]
    seeds: u64,
    /// File to write the history of the run to, as lines of JSON
    #[arg(long, requires = "seed")]
    dump: Option<PathBuf>,
    /// What to run
    #[arg(long, value_enum, default_value = "simulation")]
    tier: Tier,
    /// Cluster of the runs in real time
    #[arg(long, value_enum, default_value = "embedded")]
    cluster: Cluster,
    /// Path of the program to run in real time
    #[arg(long, required_if_eq("tier", "process"))]
    program: Option<PathBuf>,
    /// Folder for the histories and the logs of the runs in real time
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Print the provocations of this many seeds, without a run
    #[arg(long)]
    provocations: Option<u64>,
    /// Print one line of JSON instead of a report
    #[arg(long, hide = true)]
    json: bool,
}

/// How servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// In this process, in simulated time
    Simulation,
    /// The shipped program in processes of its own, in real time
    Process,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.tier == Tier::Process {
        return in_real_time(args);
    }
    if let Some(count) = args.provocations {
        for seed in args.first_seed..args.first_seed + count {
            println!("seed={seed} provocations={:?}", quorate_robustness::provocations::of_seed(seed));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.every_rule {
        let Args { seeds, seconds, at_once, life, .. } = args;
        return every_rule::run(&Limits { seeds, seconds, at_once, life }, args.without.as_deref());
    }
    let shape = Shape { life: Duration::from_secs(args.life), mixed: args.mixed, ..Shape::default() };
    let Some(seed) = args.seed else {
        let campaign = Campaign {
            seconds: args.seconds,
            admissions: args.admissions,
            runs: args.runs,
            first_seed: args.first_seed,
            at_once: args.at_once,
            life: args.life,
            without: args.without,
            stop_at_first: args.stop_at_first,
            replay: args.replay,
        };
        return campaign::run(&campaign);
    };
    determinism::begin(seed);
    log(EnvFilter::from_default_env());
    let verdict = verdict::run(seed, shape, args.without.as_deref(), args.dump.as_deref())?;
    if args.json {
        println!("{}", verdict.to_json());
    } else {
        print!("{verdict}");
    }
    Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn log(filter: EnvFilter) {
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

fn in_real_time(args: Args) -> Result<ExitCode> {
    // Clients of an API server that restarts report each request that fails.
    log(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("quorate_robustness=warn")));
    let plan = Plan {
        seed: args.seed.unwrap_or(args.first_seed),
        cluster: args.cluster,
        program: args.program.unwrap_or_default(),
        without: args.without,
        life: Duration::ZERO,
        long: false,
        keep: args.keep,
    };
    process::campaign::run(&plan, args.seconds, args.seed.is_some(), args.stop_at_first)
}
