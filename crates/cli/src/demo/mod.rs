//! `quorate demo`: a cluster in this process, and the steps of a demo on it.
//!
//! - [`cluster`]: the cluster, the server, the agents and the workloads.
//! - [`witness`]: an independent watch of the pods.
//! - [`picture`]: the pods as a picture of groups and nodes; [`screen`] shows it below the text.
//! - [`drain`]: a drain, as kubectl does it.
//! - [`scenes`]: the steps of the demo.

mod cluster;
mod drain;
mod picture;
mod scenes;
mod screen;
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
    screen.say("Starting a cluster in this process: 6 nodes. It needs no setup and leaves no files behind.");
    let cluster = tokio::select! {
        cluster = DemoCluster::set(&screen) => cluster?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    };
    tokio::select! {
        told = scenes::tell(&cluster, &screen) => told?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    }
    if args.once {
        screen.say("End of the demo: every step had the expected result.");
        return Ok(ExitCode::SUCCESS);
    }
    let kubeconfig = cluster.kubeconfig()?;
    let kubeconfig = kubeconfig.display();
    screen.say("");
    screen.say("The cluster stays up until Ctrl-C. Try in another terminal:");
    screen.say(&format!("  export KUBECONFIG={kubeconfig}"));
    screen.say("  kubectl get dbu -A");
    screen.say("  kubectl drain node-3 --ignore-daemonsets");
    screen.say("  quorate explain node/node-3");
    tokio::signal::ctrl_c().await?;
    Ok(ExitCode::SUCCESS)
}
