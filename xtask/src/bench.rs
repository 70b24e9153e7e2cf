//! `cargo xtask bench`: measurements that print and judge nothing.

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
    /// The embedded cluster's API server: pods created, watch fan-out, time until it is up.
    Cluster,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = if args.benches.is_empty() { Bench::value_variants() } else { &args.benches };
    for bench in chosen {
        match bench {
            Bench::Cluster => workspace::run(&mut workspace::cargo(&[
                "bench",
                "--quiet",
                "--locked",
                "--package",
                "quorate-devcluster",
                "--bench",
                "cluster",
            ]))?,
        }
    }
    Ok(())
}
