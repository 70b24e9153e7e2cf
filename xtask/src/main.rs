//! The project's own commands: `cargo xtask test`, `bench`, `generate`, and what comes with them.

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
mod soak;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests and measures Quorate.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures, and prints one `name=value unit` per line.
    Bench(bench::Args),
    /// Writes the files that are made from code.
    Generate(generate::Args),
    /// Runs every check and every test, or only the named suites.
    Test(test::Args),
    /// Builds a real Kubernetes control plane to test against; needs Go.
    ControlPlane(control_plane::Args),
    /// Builds programs ahead of the suites that need them.
    #[command(hide = true)]
    Prebuild(prebuild::Args),
    /// Searches the large cases of the ledger, for as long as that takes.
    Soak,
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Test(args) => test::run(&args),
        Command::ControlPlane(args) => control_plane::run(&args),
        Command::Prebuild(args) => prebuild::run(&args),
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
