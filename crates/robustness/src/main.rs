//! Simulates runs, and judges them: `cargo xtask robustness`.
//!
//! Each run has a process of its own, so that its clocks and its randomness can be replaced, and so that a run that ends
//! badly ends alone.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use quorate_robustness::campaign::{self, Campaign};
use quorate_robustness::run::Shape;
use quorate_robustness::{determinism, judge};

/// Simulate clusters that live and fail at random, and judge every admitted disruption
#[derive(Parser)]
#[command(name = "quorate-robustness")]
struct Args {
    /// Seconds to run for; with --seed, only that run is made
    #[arg(long, default_value_t = 60)]
    seconds: u64,
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
    dump: Option<std::path::PathBuf>,
    /// Print one line of JSON instead of a report
    #[arg(long, hide = true)]
    json: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let shape = Shape { life: Duration::from_secs(args.life), ..Shape::default() };
    let Some(seed) = args.seed else {
        let campaign = Campaign {
            seconds: args.seconds,
            first_seed: args.first_seed,
            at_once: args.at_once,
            life: args.life,
            without: args.without,
            stop_at_first: args.stop_at_first,
        };
        return campaign::run(&campaign);
    };
    determinism::begin(seed);
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let verdict = judge::run(seed, shape, args.without.as_deref(), args.dump.as_deref())?;
    if args.json {
        println!("{}", verdict.to_json());
    } else {
        print!("{verdict}");
    }
    Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
