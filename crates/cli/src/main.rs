//! The command line of Quorate.

mod agent;
mod chart;
mod check;
mod cleanup;
mod cluster;
mod crds;
#[cfg(feature = "demo")]
mod demo;
mod explain;
mod gates;
mod output;
mod process;
mod reference;
mod server;
mod started;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Disruption budgets for groups of pods.
#[derive(Parser)]
#[command(name = "quorate", version, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the admission webhook server
    Server(server::Args),
    /// Run the disruption probes of the pods on a node
    Agent(agent::Args),
    /// Run a demo on a cluster inside this process
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    /// Show whether pods may be disrupted now, and which budgets deny it
    Explain(explain::Args),
    /// Check the installation of Quorate on a cluster, and print a remedy for each problem
    Check(check::Args),
    /// Remove webhooks and namespace labels before uninstalling
    Cleanup(cleanup::Args),
    /// Print the CustomResourceDefinitions
    Crds,
    /// Print the version
    Version,
    /// Print the command-line reference
    #[command(hide = true)]
    Reference,
    /// Print the CustomResourceDefinitions as files of the repository
    #[command(hide = true)]
    ChartCrds,
    /// Print the webhook configurations as a chart template
    #[command(hide = true)]
    ChartWebhooks,
    /// Print shell completions
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let mut usage = Args::command().bin_name(called_as(args.first()));
    let parsed = usage.try_get_matches_from_mut(args).and_then(|matches| Args::from_arg_matches(&matches));
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    match run(parsed.command, usage).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command, mut usage: clap::Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Server(args) => server::run(args).await?,
        Command::Agent(args) => agent::run(args).await?,
        #[cfg(feature = "demo")]
        Command::Demo(args) => return demo::run(args).await,
        Command::Explain(args) => return explain::run(args).await,
        Command::Check(args) => return check::run(args).await,
        Command::Cleanup(args) => cleanup::run(args).await?,
        Command::Crds => crds::run()?,
        Command::Version => println!("quorate {}", env!("CARGO_PKG_VERSION")),
        Command::Reference => print!("{}", reference::markdown(&mut Args::command())),
        Command::ChartCrds => println!("{}", serde_json::to_string(&crds::files()?)?),
        Command::ChartWebhooks => print!("{}", chart::webhooks()?),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut usage, "quorate", &mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The name for the usage text. kubectl runs its plugins under the name `kubectl-<plugin>`.
fn called_as(program: Option<&OsString>) -> &'static str {
    let name = program.map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    match name {
        Some(name) if name.starts_with("kubectl-") => "kubectl quorate",
        _ => "quorate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_names_kubectl_if_run_as_a_plugin() {
        for (program, expected) in [
            ("quorate", "quorate"),
            ("/usr/bin/kubectl-quorate", "kubectl quorate"),
            ("target/release/quorate", "quorate"),
        ] {
            assert_eq!(called_as(Some(&OsString::from(program))), expected, "{program}");
        }
        assert_eq!(called_as(None), "quorate");
    }

    #[test]
    fn the_command_line_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_reference_is_current() {
        let stored = include_str!("../../../docs/cli.md");
        let current = reference::markdown(&mut Args::command());
        assert_eq!(stored, current, "docs/cli.md is out of date: run `cargo xtask generate`");
    }
}
