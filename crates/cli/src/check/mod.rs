//! `quorate check`: checks the installation of Quorate on a cluster, with a remedy for each problem.
//!
//! It changes nothing: the only write is a dry run.

mod budgets;
mod definitions;
mod report;
mod servers;
mod stores;
mod watches;
mod webhooks;

use std::process::ExitCode;

use anyhow::Result;

use crate::cluster::{CHECK_ADDRESS, Cluster, Connection, OLDEST, is_too_old};
use crate::output::{self, Format};
use report::{Report, Section};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Output format: json or yaml
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// Runs all checks; the exit code is 0 only if there is no problem.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let client = &cluster.client;
    let own = args.cluster.quorate_namespace.as_str();
    let mut report = Report::default();
    let api = api(&cluster).await;
    let reached = !api.is_bad();
    report.sections.push(api);
    if reached {
        let definitions = definitions::check(client).await;
        let installed = !definitions.is_bad();
        report.sections.push(definitions);
        report.sections.push(webhooks::check(client, own).await);
        let (mut servers, alive) = servers::check(client, own).await;
        // Budgets are read as the servers do, so first comes how these were started.
        let budgets = match installed {
            true => Some(budgets::check(client, own, &mut servers).await),
            false => None,
        };
        report.sections.push(servers);
        report.sections.extend(watches::check(&alive));
        report.sections.extend(budgets);
    }
    let good = !report.sections.iter().any(Section::is_bad);
    report.good = good;
    output::print(args.output, &report, || report.words())?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn api(cluster: &Connection) -> Section {
    let mut section = Section::new("kubernetes-api");
    match cluster.release().await {
        Err(silent) => section.bad(silent.to_string(), CHECK_ADDRESS),
        Ok(None) => section.warn(
            "the API server answers, but does not return its version",
            "you need the verb get on the path /version, which the role system:public-info-viewer grants",
        ),
        Ok(Some(release)) if is_too_old(&release) => section.bad(
            format!("release {} is too old", release.git_version),
            format!("Quorate is tested on 1.{OLDEST} and later"),
        ),
        Ok(Some(release)) => section.good(format!("the API server answers, release {}", release.git_version)),
    }
    section
}
