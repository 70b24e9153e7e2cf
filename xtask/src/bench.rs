//! `cargo xtask bench`: measurements, each a program that prints one `name=value unit` per line.

use anyhow::Result;
use clap::ValueEnum;

use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure.
    #[arg(value_enum)]
    what: Bench,
}

#[derive(Clone, Copy, ValueEnum)]
enum Bench {
    /// The embedded cluster's API server: pods created, watch fan-out, time until it is up.
    Cluster,
    /// Decisions, events and memory of the engine by itself.
    Engine,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let command: &[&str] = match args.what {
        Bench::Cluster => &["bench", "--quiet", "--package", "quorate-devcluster", "--bench", "cluster"],
        Bench::Engine => &["bench", "--quiet", "--package", "quorate-engine", "--bench", "engine"],
    };
    workspace::run(&mut workspace::cargo(command))
}
