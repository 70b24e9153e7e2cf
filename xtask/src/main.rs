//! The project's own commands: `cargo xtask test`, `generate`, and what comes with them.

mod bench;
mod control_plane;
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
    /// Runs every check and every test, or only the named suites.
    Test(test::Args),
    /// Builds a real Kubernetes control plane to test against; needs Go.
    ControlPlane(control_plane::Args),
    /// Measures, and prints what it measured.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Test(args) => test::run(&args),
        Command::ControlPlane(args) => control_plane::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
