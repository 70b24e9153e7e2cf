//! The command line of Quorate.

mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps groups of pods whole while a cluster is being changed.
#[derive(Parser)]
#[command(name = "quorate", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watches budgets and pods, and answers the API server.
    Server(server::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Server(args) => server::run(args).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
