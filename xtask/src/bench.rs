//! `cargo xtask bench`: measurements, each a program that prints what it measured and judges nothing.

use anyhow::Result;
use clap::ValueEnum;

use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these benchmarks; all of them when none is named.
    #[arg(value_enum)]
    benches: Vec<Bench>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Decisions, events and memory of the engine by itself.
    Engine,
    /// The embedded cluster's API server: pods created, watch fan-out, time until it is up.
    Cluster,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = if args.benches.is_empty() { Bench::value_variants() } else { &args.benches };
    for bench in chosen {
        let (package, name) = match bench {
            Bench::Engine => ("quorate-engine", "engine"),
            Bench::Cluster => ("quorate-devcluster", "cluster"),
        };
        workspace::run(&mut workspace::cargo(&[
            "bench",
            "--quiet",
            "--locked",
            "--package",
            package,
            "--bench",
            name,
        ]))?;
    }
    Ok(())
}
