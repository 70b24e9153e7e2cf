//! `cargo xtask bench`: measurements, each a program that prints one `name=value unit` per line and judges nothing.

use anyhow::Result;
use clap::ValueEnum;

use crate::{control_plane, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these benchmarks; all of them when none is named.
    #[arg(value_enum)]
    benches: Vec<Bench>,
    /// Of the evictions, only the storms that have one of these in their names, such as c16_b1.
    #[arg(long)]
    only: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Decisions, events and memory of the engine by itself.
    Engine,
    /// The embedded cluster's API server: pods created, watch fan-out, time until it is up.
    Cluster,
    /// Evictions on a real control plane: without a budget, under a native one, under Quorate. Needs Go.
    Evictions,
    /// The server as a process: memory, processor time, time until it is ready.
    Server,
    /// The agent as a process: processor time, memory, punctuality, with 1,000 pods probed every second.
    Agent,
}

impl Bench {
    /// The crate it measures, and the name of its program there.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Engine => ("quorate-engine", "engine"),
            Self::Cluster => ("quorate-devcluster", "cluster"),
            Self::Evictions => ("quorate", "evictions"),
            Self::Server => ("quorate", "server"),
            Self::Agent => ("quorate", "agent"),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = if args.benches.is_empty() { Bench::value_variants() } else { &args.benches };
    for bench in chosen {
        if *bench == Bench::Evictions {
            control_plane::build(control_plane::Minor::V1_36, control_plane::Part::Whole)?;
        }
        let (package, program) = bench.program();
        let command = ["bench", "--quiet", "--locked", "--package", package, "--bench", program];
        let mut cargo = workspace::cargo(&command);
        if *bench == Bench::Evictions {
            cargo.arg("--").args(&args.only);
        }
        workspace::run(&mut cargo)?;
    }
    Ok(())
}
