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
use quorate_robustness::process;
use quorate_robustness::process::run::{Cluster, Plan};
use quorate_robustness::run::Shape;
use quorate_robustness::{determinism, judge};
use tracing_subscriber::EnvFilter;

/// Simulate clusters that live and fail at random, and judge every admitted disruption
#[derive(Parser)]
#[command(name = "quorate-robustness")]
struct Args {
    /// Seconds to run for; with --seed, only that run is made
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of admissions after which no run begins
    #[arg(long)]
    admissions: Option<u64>,
    /// Seed of the only run, to replay it
    #[arg(long)]
    seed: Option<u64>,
    /// First seed of many runs
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Number of runs at the same time
    #[arg(long, default_value_t = 2)]
    at_once: usize,
    /// Simulated seconds with faults in each run
    #[arg(long, default_value_t = 600)]
    life: u64,
    /// Rule of the servers to leave out
    #[arg(long)]
    without: Option<String>,
    /// Stop at the first run that is not clean
    #[arg(long)]
    stop_at_first: bool,
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
    /// Print the stories of this many seeds, without a run
    #[arg(long)]
    stories: Option<u64>,
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
    if let Some(count) = args.stories {
        for seed in args.first_seed..args.first_seed + count {
            println!("seed={seed} stories={:?}", quorate_robustness::run::stories(seed));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let shape = Shape { life: Duration::from_secs(args.life), ..Shape::default() };
    let Some(seed) = args.seed else {
        let campaign = Campaign {
            seconds: args.seconds,
            admissions: args.admissions,
            first_seed: args.first_seed,
            at_once: args.at_once,
            life: args.life,
            without: args.without,
            stop_at_first: args.stop_at_first,
        };
        return campaign::run(&campaign);
    };
    determinism::begin(seed);
    log(EnvFilter::from_default_env());
    let verdict = judge::run(seed, shape, args.without.as_deref(), args.dump.as_deref())?;
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
