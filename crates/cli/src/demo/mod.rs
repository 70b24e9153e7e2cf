//! `quorate demo`: a cluster in this process, and the steps of a demo on it.
//!
//! - [`cluster`]: the cluster, the server, the agents and the workloads.
//! - [`witness`]: an independent watch of the pods.
//! - [`picture`]: the pods as a picture of groups and nodes; [`screen`] shows it below the text.
//! - [`drain`]: a drain, as kubectl does it.
//! - [`steps`]: the steps of the demo.

mod cluster;
mod drain;
mod picture;
mod screen;
mod steps;
mod witness;

use std::process::ExitCode;

use anyhow::Result;

use cluster::DemoCluster;
use screen::Screen;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit after the demo; the exit code is 0 if every step had the expected result
    #[arg(long)]
    once: bool,
}

/// Runs the demo, and keeps the cluster up until Ctrl-C.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let screen = Screen::new();
    screen
        .print("Starting a cluster in this process: 6 nodes. It needs no setup and leaves no files behind.");
    let cluster = tokio::select! {
        cluster = DemoCluster::set(&screen) => cluster?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    };
    tokio::select! {
        outcome = steps::run(&cluster, &screen) => outcome?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    }
    if args.once {
        screen.print("End of the demo: every step had the expected result.");
        return Ok(ExitCode::SUCCESS);
    }
    let kubeconfig = cluster.kubeconfig()?;
    let kubeconfig = kubeconfig.display();
    screen.print("");
    screen.print("The cluster stays up until Ctrl-C. Try in another terminal:");
    screen.print(&format!("  export KUBECONFIG={kubeconfig}"));
    screen.print("  kubectl get dbu -A");
    screen.print("  kubectl drain node-3 --ignore-daemonsets");
    screen.print("  quorate explain node/node-3");
    tokio::signal::ctrl_c().await?;
    Ok(ExitCode::SUCCESS)
}
