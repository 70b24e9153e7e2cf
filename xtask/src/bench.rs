//! `cargo xtask bench`: runs the benchmarks. Each is a program that prints one `name=value unit` per line. No benchmark
//! passes or fails.

use anyhow::Result;
use clap::ValueEnum;

use crate::{control_plane, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Benchmarks to run; default: all
    #[arg(value_enum)]
    benches: Vec<Bench>,
    /// Run only the eviction storms whose name contains this text, such as c16_b1
    #[arg(long)]
    only: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Engine alone: decisions, events, memory
    Engine,
    /// API server of the embedded cluster: pod creation, watch fan-out, startup time
    Cluster,
    /// Evictions on a real control plane: without a budget, with a native one, with Quorate; needs Go
    Evictions,
    /// Server process: memory, CPU time, time until ready
    Server,
    /// Agent process with 1,000 pods probed every second: CPU time, memory, punctuality
    Agent,
}

impl Bench {
    /// The crate that this benchmark measures, and the name of the bench target in that crate.
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
