//! `quorate check`: whether Quorate works on a cluster, and what to do where it does not.
//!
//! Nothing is changed: what is tried is tried as a dry run.

mod budgets;
mod definitions;
mod report;
mod servers;
mod webhooks;

use std::process::ExitCode;

use anyhow::Result;
use kube::Client;

use crate::cluster::Cluster;
use crate::output::{self, Format};
use report::{Report, Section};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Print data rather than words
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// Checks everything; the exit code is 0 only if nothing is wrong.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let (client, _) = args.cluster.connect().await?;
    let own = args.cluster.quorate_namespace.as_str();
    let mut report = Report::default();
    let api = api(&client).await;
    let reached = !api.is_bad();
    report.sections.push(api);
    if reached {
        let definitions = definitions::check(&client).await;
        let installed = !definitions.is_bad();
        report.sections.push(definitions);
        report.sections.push(webhooks::check(&client, own).await);
        report.sections.push(servers::check(&client, own).await);
        if installed {
            report.sections.push(budgets::check(&client, own).await);
        }
    }
    let good = !report.sections.iter().any(Section::is_bad);
    report.good = good;
    output::print(args.output, &report, || report.words())?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The oldest release that Quorate was tried on.
const OLDEST: u32 = 32;

async fn api(client: &Client) -> Section {
    let mut section = Section::new("kubernetes-api");
    match client.apiserver_version().await {
        Err(error) => section.bad(
            format!("the API server does not answer: {}", quorate_kit::Plain(&error)),
            "look at the address in the kubeconfig, and whether you may reach it",
        ),
        Ok(version) => {
            let minor: Option<u32> = version.minor.trim_end_matches('+').parse().ok();
            let release = format!("the API server answers, release {}", version.git_version);
            match minor {
                Some(minor) if version.major == "1" && minor < OLDEST => section.bad(
                    format!("release {} is too old", version.git_version),
                    format!("Quorate is tried on 1.{OLDEST} and later"),
                ),
                _ => section.good(release),
            }
        }
    }
    section
}
