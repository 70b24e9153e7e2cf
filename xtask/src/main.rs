//! The project's own commands: `cargo xtask test`, `bench`, `generate` and others.

mod alone;
mod bench;
mod chart;
mod control_plane;
mod generate;
mod golang;
mod node;
mod prebuild;
mod release_before;
mod rights;
mod robustness;
mod soak;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, test and measure Quorate
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run benchmarks; print one `name=value unit` per line
    Bench(bench::Args),
    /// Write the files that are generated from code
    Generate(generate::Args),
    /// Run all checks and tests, or only the named suites
    Test(test::Args),
    /// Build a real Kubernetes control plane to test against; needs Go
    ControlPlane(control_plane::Args),
    /// Let clusters live and fail at random, and judge every admitted disruption
    Robustness(robustness::Args),
    /// Build programs ahead of the suites that need them
    #[command(hide = true)]
    Prebuild(prebuild::Args),
    /// Check each crate alone, search the large cases of the ledger, and run the robustness suite for an hour
    Soak,
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Test(args) => test::run(&args),
        Command::ControlPlane(args) => control_plane::run(&args),
        Command::Prebuild(args) => prebuild::run(&args),
        Command::Robustness(args) => robustness::run(&args),
        Command::Soak => soak::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
